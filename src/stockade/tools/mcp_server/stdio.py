"""MCP over our own stdin and stdout, for a client that has started us.

The SDK's reader waits on a thread that no signal wakes; this one belongs to the event loop, so that a server that is told to go goes.
"""

from __future__ import annotations

import asyncio
import json
import re
import select
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from stockade.errors import InvalidRequest
from stockade.tools.cli.outlet import Outlet

LONGEST: Final = 16 << 20  # bytes of one message
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of a surrogate, alone or in a pair
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _NoMessage(Exception):
    """What a client has sent is none; it is answered, which the SDK does not do."""

    def __init__(self, code: int, message: str, request: object) -> None:
        super().__init__(message)
        number = request if isinstance(request, str | int) and not isinstance(request, bool) else None
        self.answer = {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _checked(line: bytes) -> str:
    """The message of a line; half a character, as of a text that was cut, becomes U+FFFD. Raises: _NoMessage."""
    text = line.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _NoMessage(-32700, "this line is not JSON", None) from None
    if not isinstance(value, dict):
        raise _NoMessage(-32600, "a message is one JSON object on a line of its own", None)
    is_message = value.get("jsonrpc") == "2.0" and (isinstance(value.get("method"), str) or "result" in value or "error" in value)
    if not is_message:
        raise _NoMessage(-32600, 'a message has "jsonrpc": "2.0" and a method, a result or an error', value.get("id"))
    return text if _HALF.search(text) is None else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False))


class _Input:
    """The lines of our stdin."""

    def __init__(self, reader: asyncio.StreamReader, output: _Output) -> None:
        self._reader = reader
        self._output = output

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                return  # longer than any message: whoever sends that is no client
            if not line:
                return
            try:
                yield _checked(line)
            except _NoMessage as wrong:
                await self._output.write(json.dumps(wrong.answer) + "\n")


class _Output:
    """Our stdout; a client that has gone hears nothing more, and its going is seen at our stdin."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    async def write(self, text: str) -> None:
        try:
            await self._outlet.write(text.encode())
        except OSError:
            pass

    async def flush(self) -> None:
        """It has been written already."""


async def serve(server: Server[Any], *, stdin: int = 0, stdout: int = 1) -> None:
    """Serves the one client until the end of our stdin. Raises: InvalidRequest where stdin is nothing to wait for."""
    if not _can_be_awaited(stdin):
        raise InvalidRequest("stdin is no pipe", field="stdin", hint="let a client start `stockade mcp`, or give --http HOST:PORT")
    reader = asyncio.StreamReader(limit=LONGEST)
    pipe = await asyncio.to_thread(open, stdin, "rb", 0, closefd=False)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    outlet = Outlet(stdout)
    try:
        output = _Output(outlet)
        given = (cast("anyio.AsyncFile[str]", _Input(reader, output)), cast("anyio.AsyncFile[str]", output))
        async with stdio_server(*given) as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())
    finally:
        transport.close()
        outlet.close()


def _can_be_awaited(descriptor: int) -> bool:
    """False for a file and for /dev/null, which epoll(7) does not take."""
    with select.epoll() as probe:
        try:
            probe.register(descriptor, select.EPOLLIN)
        except OSError:
            return False
    return True
