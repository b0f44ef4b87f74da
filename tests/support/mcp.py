"""The official MCP client, on servers that are processes of their own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from support.cli import COMMAND, Running, environment, started

LEGACY, MODERN = "legacy", "2026-07-28"  # the handshake of 2025-11-25 and before, and the wire without one
MODES = (LEGACY, MODERN)


def over_stdio(*arguments: str, mode: str = MODERN, **options: Any) -> Client:
    """A client that starts `stockade mcp` with these arguments."""
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "mcp", *arguments], env=environment())
    return Client(server, mode=mode, **options)


@contextlib.contextmanager
def http_server(*arguments: str) -> Iterator[str]:
    """`stockade mcp --http` on a free port of loopback; its URL."""
    with http_process(*arguments) as (_, url):
        yield url


@contextlib.contextmanager
def http_process(*arguments: str, open_files: int | None = None) -> Iterator[tuple[Running, str]]:
    """The same, and the process that serves, with so many open files at most."""
    with started("mcp", "--http", "127.0.0.1:0", *arguments, open_files=open_files) as running:
        line = running.line("stderr").decode()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield running, found[0]
        running.signal(15)
        assert running.end() == 143


@contextlib.asynccontextmanager
async def over_http(url: str, *, token: str | None = None, mode: str = MODERN, **options: Any) -> AsyncIterator[Client]:
    """A client of an HTTP server."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as web,
        Client(streamable_http_client(url, http_client=web), mode=mode, **options) as client,
    ):
        yield client


async def text_of(client: Client, tool: str, /, **arguments: Any) -> str:
    """What a call shows; it must be one text, no error, and nothing but text."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, result
    return only_text(result)


async def refused(client: Client, tool: str, /, **arguments: Any) -> str:
    """The text of a call that is an error."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error, result
    return only_text(result)


def only_text(result: CallToolResult) -> str:
    assert result.structured_content is None
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def id_in(text: str) -> str:
    """The short id that an answer names."""
    found = re.search(r"\bid ([0-9a-z]{4,6})\b", text) or re.search(r'id="([0-9a-z]{4,6})"', text)
    assert found, text
    return found[1]


__all__ = [
    "LEGACY",
    "MODERN",
    "MODES",
    "http_process",
    "http_server",
    "id_in",
    "only_text",
    "over_http",
    "over_stdio",
    "refused",
    "text_of",
]
