"""Thin surfaces on the executor: the command line, and the tools that agents call."""
