"""How another process of the same user ends a job: a socket in the state directory, `run/control`, for as long as its executor lives.

One JSON object a line each way: {"kill": id, "signal": number, "grace": seconds or null} is answered by {"sentence": …} when the job has
settled, or by {"code", "message", "hint"}; until then an empty line now and then says that somebody is there. Who may connect is who
may enter the directory (mode 0700); the peer's uid is checked too (SO_PEERCRED, unix(7)).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from stockade.errors import StateError, StockadeError
from stockade.jobs.directory import Layout
from stockade.jobs.records import JobRecord

MAX_LINE: Final = 4096
READ_BOUND: Final = 10.0  # seconds that a client may take to say what it wants
LONGEST_GRACE: Final = 3600.0  # seconds; that of the job's policy is not known to a client that names none
KILL_MARGIN: Final = 60.0  # seconds beyond the grace that a client waits for the end
SEND_BOUND: Final = 10.0  # seconds within which an executor takes a request
BEAT: Final = 5.0  # seconds between two empty lines
SILENCE: Final = 30.0  # seconds without any line after which nobody is there

Kill = Callable[[str, int, float | None], Awaitable[JobRecord]]


class ControlSocket:
    """The listening end; belongs to the event loop of its executor."""

    def __init__(self, layout: Layout, kill: Kill) -> None:
        self._layout = layout
        self._kill = kill
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begins to listen. Raises: StateError, where the socket cannot be made."""
        try:
            listening = await asyncio.to_thread(_listen, self._layout)
        except OSError as error:
            why = f"the control socket cannot be made in {self._layout.run!r}: {error.strerror}"
            raise StateError(why, hint="see that it can be written") from None
        self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=MAX_LINE)

    async def close(self) -> None:
        """Stops listening; who is being answered is hung up on."""
        if self._server is not None:
            self._server.close()
            for client in self._clients:
                client.cancel()
            if self._clients:
                await asyncio.wait(self._clients)
            await asyncio.to_thread(_forget, self._layout)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.create_task(self._serve(reader, writer), name="stockade-control")
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer_uid(writer.get_extra_info("socket")) == os.geteuid():
                async with asyncio.timeout(READ_BOUND):
                    line = await reader.readuntil()
                answering = asyncio.create_task(self._answer(line), name="stockade-control-answer")
                try:
                    while not (await asyncio.wait({answering}, timeout=BEAT))[0]:
                        writer.write(b"\n")
                        await writer.drain()
                    writer.write(json.dumps(await answering).encode() + b"\n")
                    await writer.drain()
                finally:
                    answering.cancel()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client's own affair
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            record = await self._kill(request["kill"], request["signal"], request["grace"])
        except StockadeError as error:
            return {"code": error.code, "message": error.message, "hint": error.hint}
        except (ValueError, TypeError, KeyError) as error:
            return {"code": "protocol", "message": f"not a request: {error}", "hint": None}
        return {"sentence": record.sentence()}


def ask_to_kill(layout: Layout, job_id: str, *, signal: int, grace: float | None, silence: float = SILENCE) -> str:
    """Has the living executor of a state directory end a job; how it ended, in a few words. Blocks, at most for `silence` seconds
    where nobody is there, and for the grace and a margin where somebody is.

    Raises: StateError, where no executor answers; StockadeError, where it refuses.
    """
    directory = os.open(layout.run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(SEND_BOUND)
            connection.connect(_address(directory))
            connection.sendall(json.dumps({"kill": job_id, "signal": signal, "grace": grace}).encode() + b"\n")
            connection.settimeout(silence)
            deadline = time.monotonic() + (LONGEST_GRACE if grace is None else grace) + KILL_MARGIN
            answers = connection.makefile("rb")
            while (line := answers.readline(MAX_LINE * 16)) == b"\n":
                if time.monotonic() > deadline:
                    raise TimeoutError("the job does not end")
            answer = json.loads(line)
    except (OSError, ValueError) as error:
        why = f"the executor of {layout.root!r} does not answer: {error}"
        raise StateError(why, hint="it may be closing; look again with `ps`") from None
    finally:
        os.close(directory)
    if "sentence" not in answer:
        raise StockadeError(str(answer.get("message")), hint=answer.get("hint"))
    return str(answer["sentence"])


def _listen(layout: Layout) -> socket.socket:
    directory = os.open(layout.run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.bind(_address(directory))
        listening.listen()
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    finally:
        os.close(directory)
    return listening


def _forget(layout: Layout) -> None:
    try:
        os.unlink(f"{layout.run}/control")
    except FileNotFoundError:
        pass


def _address(directory: int) -> str:
    """By descriptor: a socket's address has room for 107 bytes, and a state directory may lie deeper."""
    return f"/proc/self/fd/{directory}/control"


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
