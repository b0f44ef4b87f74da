"""MCP over streamable HTTP: on loopback unless told otherwise, for clients that name this host, with a token where it is reachable."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from stockade.errors import InvalidRequest
from stockade.tools.mcp_server.tokens import BearerTokens

PATH: Final = "/mcp"
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
GOODBYE: Final = 5  # seconds that open responses have when the server ends
FIRST_REQUEST: Final = 10.0  # seconds that a connection has to ask for something
_SHARE: Final = 4  # connections have at most one in so many of the descriptors that this process may open
_BURST: Final = 16  # and one in so many are taken in one turn of the loop, before the first of them can be refused
_BACKLOG: Final = 2_048  # more than that never wait


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens, and under which names clients may ask for it."""

    host: str
    port: int
    names: tuple[str, ...] = ()

    @property
    def is_loopback(self) -> bool:
        """True where only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shown_host(self) -> str:
        """As it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_address(written: str, names: tuple[str, ...] = ()) -> Address:
    """`HOST:PORT`, `[HOST]:PORT` or `PORT`, which is on 127.0.0.1. Raises: InvalidRequest."""
    host, separator, port = written.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if separator else "127.0.0.1"
    if not host or not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise InvalidRequest(f"--http: {written!r} is no address", field="http", hint="give HOST:PORT, such as 127.0.0.1:8080, or PORT")
    return Address(host, int(port), names)


def check_tokens(address: Address, tokens: tuple[str, ...]) -> None:
    """Raises: InvalidRequest where others can reach the server and it has no token."""
    if not tokens and not address.is_loopback:
        raise InvalidRequest(
            f"--http: {address.host} can be reached from outside of this machine, and there is no token",
            field="http",
            hint="give --token-file FILE or set STOCKADE_MCP_TOKEN, or listen on 127.0.0.1",
        )


async def serve(
    server: Server[Any],
    address: Address,
    tokens: tuple[str, ...],
    *,
    on_ready: Callable[[str], None],
    stopping: asyncio.Event,
) -> None:
    """Serves until `stopping` is set; `on_ready` gets the URL. Raises: InvalidRequest where the address cannot be listened on."""
    check_tokens(address, tokens)
    listening = await asyncio.to_thread(_listen, address)
    port = listening.getsockname()[1]
    app: ASGIApp = server.streamable_http_app(streamable_http_path=PATH, transport_security=_names(address), host=address.host)
    if tokens:
        app = BearerTokens(app, tokens)
    web = _Web(
        uvicorn.Config(
            app,
            http=_Impatient,
            lifespan="on",
            backlog=_at_once(),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=GOODBYE,
        )
    )
    serving = asyncio.create_task(web.serve(sockets=[listening]), name="stockade-http")
    stopped = asyncio.create_task(stopping.wait(), name="stockade-http-stop")
    try:
        on_ready(f"http://{address.shown_host}:{port}{PATH}")
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        web.should_exit = True
        stopped.cancel()
        await asyncio.wait({serving, stopped})
        listening.close()
    serving.result()


class _Impatient(H11Protocol):
    """One connection: it has to ask for something soon, and there may be only so many, so that descriptors are left for jobs."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _descriptors() // _SHARE:
            transport.abort()
            return
        self.loop.call_later(FIRST_REQUEST, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None and self.transport is not None:
            self.transport.close()


def _descriptors() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _at_once() -> int:
    """The backlog of the socket, which asyncio also takes for how many connections to accept in one turn.

    It does not stop at EMFILE (CPython 3.11, `_accept_connection`): each further try logs the error again.
    """
    return max(1, min(_descriptors() // _BURST, _BACKLOG))


class _Web(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _names(address: Address) -> TransportSecuritySettings:
    """Which `Host` and `Origin` are let in: a page in a browser that has another name resolve to this host has neither."""
    unspecified = address.host in ("0.0.0.0", "::")
    names = dict.fromkeys((*LOOPBACK, *(() if unspecified else (address.shown_host,)), *address.names))
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[each for name in names for each in (name, f"{name}:*")],
        allowed_origins=[f"{scheme}://{name}{port}" for name in names for scheme in ("http", "https") for port in ("", ":*")],
    )


def _listen(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address.host, address.port), family=family)
    except (OSError, UnicodeError) as error:  # the latter for a name that can be none
        raise InvalidRequest(
            f"--http: {address.host}:{address.port} cannot be listened on: {getattr(error, 'strerror', None) or error}",
            field="http",
            hint="name another port; 0 takes a free one",
        ) from None
