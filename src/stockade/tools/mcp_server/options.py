"""What the options of `stockade mcp` mean, before the SDK is needed: so that what is wrong with them is said first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stockade.config import mcp_token
from stockade.errors import InvalidRequest, StockadeError
from stockade.tools.cli.options import Ground
from stockade.tools.mcp_server.surfaces import Surface

if TYPE_CHECKING:
    from stockade.tools.mcp_server.command import Serving


def surface_of(name: str) -> Surface:
    """The surface of that name. Raises: InvalidRequest."""
    try:
        return Surface(name)
    except ValueError:
        raise InvalidRequest(f"--tools: there is no surface {name!r}", field="tools", hint=f"give one of {', '.join(Surface)}") from None


def serving(
    ground: Ground, *, tools: str, wait: float, http: str | None, names: Sequence[str], token_file: str | None
) -> tuple[Serving, Callable[[Serving, Callable[[str], None]], int]]:
    """What is to be served, and what serves it. Raises: InvalidRequest; StockadeError where the SDK is not installed."""
    surface = surface_of(tools)
    for option, is_given in (("--host-name", bool(names)), ("--token-file", token_file is not None)):
        if is_given and http is None:
            raise InvalidRequest(f"{option} goes with --http", field="http", hint="leave it out, or give --http HOST:PORT")
    try:
        from stockade.tools.mcp_server.command import Serving, serve
        from stockade.tools.mcp_server.http import parse_address
        from stockade.tools.mcp_server.tokens import read_tokens
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in ("mcp", "mcp_types", "anyio", "starlette", "uvicorn"):
            raise
        raise StockadeError(
            f"the MCP server needs the package {missing.name.split('.')[0]!r}, which is not installed", hint="pip install 'stockade[mcp]'"
        ) from None
    address = None if http is None else parse_address(http, tuple(names))
    tokens = () if address is None else read_tokens(token_file, mcp_token())
    return Serving(ground.policy, ground.config, ground.environment, surface, wait, address, tokens), serve
