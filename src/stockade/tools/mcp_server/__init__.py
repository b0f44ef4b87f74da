"""Stockade over the Model Context Protocol: the tools, the texts that a model sees, and both transports."""
