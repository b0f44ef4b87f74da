"""`python -m stockade` is the `stockade` command."""

from __future__ import annotations

from stockade.tools.cli.app import main

if __name__ == "__main__":
    main()
