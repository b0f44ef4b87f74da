"""MCP over our own stdin and stdout, for a client that has started us.

The SDK's reader waits on a thread that no signal wakes; this one belongs to the event loop, so that a server that is told to go goes.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from stockade.errors import InvalidRequest
from stockade.tools.cli.outlet import Outlet

LONGEST: Final = 16 << 20  # bytes of one message


class _Input:
    """The lines of our stdin."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                return  # longer than any message: whoever sends that is no client
            if not line:
                return
            yield line.decode("utf-8", "replace")


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
        given = (cast("anyio.AsyncFile[str]", _Input(reader)), cast("anyio.AsyncFile[str]", _Output(outlet)))
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
