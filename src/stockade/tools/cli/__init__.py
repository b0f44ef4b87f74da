"""The command line: `stockade run`, `explain`, `doctor`, `ps`, `show`, `logs`, `kill`, `purge`, `tools`, `mcp`."""
