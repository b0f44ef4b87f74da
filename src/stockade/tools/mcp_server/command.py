"""`stockade mcp`: one executor, one server, until its client goes or somebody tells it to; then every job is dead and recorded."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from stockade.config import Config
from stockade.errors import StockadeError
from stockade.executor import Executor
from stockade.policy.model import Policy
from stockade.tools.cli import exit_codes
from stockade.tools.cli.interrupts import Interrupts
from stockade.tools.mcp_server import http, stdio
from stockade.tools.mcp_server.http import Address
from stockade.tools.mcp_server.logs import log_to
from stockade.tools.mcp_server.protocol import make_server
from stockade.tools.mcp_server.surfaces import Surface, offer


@dataclass(frozen=True, slots=True)
class Serving:
    """What is to be served, to whom. `address` is None for stdio."""

    policy: Policy
    config: Config
    environment: dict[str, str]
    surface: Surface
    wait: float
    address: Address | None = None
    tokens: tuple[str, ...] = ()


def serve(wanted: Serving, say: Callable[[str], None]) -> int:
    """Serves until the end; the exit code. `say` gets the URL of an HTTP server. Raises: StockadeError."""
    log_to(sys.stderr.fileno())
    return asyncio.run(_serve(wanted, say))


async def _serve(wanted: Serving, say: Callable[[str], None]) -> int:
    interrupts = Interrupts()
    stopping = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        stopping.set()

    interrupts.listen(stop)
    try:
        if wanted.address is not None:
            http.check_tokens(wanted.address, wanted.tokens)
        async with Executor(wanted.policy, config=wanted.config, environment=wanted.environment) as executor:
            server = make_server(await offer(wanted.surface, executor, wanted.policy, wait=wanted.wait))
            if wanted.address is None:
                await _until(stopping, stdio.serve(server))
            else:
                await http.serve(server, wanted.address, wanted.tokens, on_ready=say, stopping=stopping)
    except StockadeError:
        if interrupts.first is None:
            raise
    finally:
        interrupts.close()
    return 0 if interrupts.first is None else exit_codes.SIGNALLED + interrupts.first


async def _until(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Does the work until it is done or we are to stop."""
    working = asyncio.create_task(work, name="stockade-mcp")
    stopped = asyncio.create_task(stopping.wait(), name="stockade-mcp-stop")
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        stopped.cancel()
        await asyncio.wait({working, stopped})
    if not working.cancelled():
        working.result()
