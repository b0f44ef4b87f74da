"""What is written to a job while it runs: the one way in, for a pipe and for a terminal.

Back-pressure is the kernel's: a pipe holds 64 KiB and a terminal about as much, whoever writes more waits for the job to read, and
no byte waits in this process but those in the hands of a caller. Nothing here blocks: a job that does not read, that is stopped or
that has closed its end is an answer with a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import time
from collections.abc import AsyncIterator
from errno import EAGAIN, EIO, EPIPE
from typing import Final

from stockade.errors import InputClosed, InputNotTaken

CHUNK: Final = 64 * 1024
MAX_WAITING: Final = 16 * 1024 * 1024  # bytes in the hands of all callers who wait to write to one job
_END_OF_FILE: Final = b"\x04"  # ^D, where the job's terminal has no other character for it
_CLOSED: Final = "its standard input has been closed"


class _Progress:
    """How much of one call's bytes the kernel has taken."""

    def __init__(self, wanted: int) -> None:
        self.taken = 0
        self.wanted = wanted


class Input:
    """The standard input of one job, from admission until the job is over; belongs to one event loop."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self.last_activity = 0.0  # when the job last took something, on the monotonic clock
        self._loop = asyncio.get_running_loop()
        self._descriptor = -1
        self._closed: str | None = None  # why nothing can be written any more
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()  # there is room, or the input has been opened or closed
        self._waiting = 0
        self._size: tuple[int, int] | None = None  # asked for before there was a terminal

    def open(self, descriptor: int) -> None:
        """The sandbox stands: `descriptor`, non-blocking and ours from now on, leads to its program."""
        self._descriptor = descriptor
        if self._closed is not None:
            self._shut()
            return
        if self._size is not None:
            self.resize(*self._size)
        self._changed.set()

    def end(self, why: str) -> None:
        """The job is over: closes the descriptor, and whoever waits is told `why`. More than once is no harm."""
        self._closed = self._closed or why
        self._shut()

    async def write(self, data: bytes | bytearray | memoryview, timeout: float) -> None:
        """Returns when the kernel has taken all of it for the job; several callers take turns, whole call by whole call.

        Raises: InputNotTaken after `timeout` seconds, InputClosed; both say how many bytes were taken.
        """
        view = memoryview(data).cast("B")
        progress = _Progress(len(view))
        if self._waiting + len(view) > MAX_WAITING:
            raise InputNotTaken(
                f"{self._waiting} bytes wait for the job to read already, and at most {MAX_WAITING} may",
                taken=0,
                hint="wait until they have been taken, or give fewer at once",
            )
        self._waiting += len(view)
        try:
            async with self._in_turn(timeout, progress):
                await self._write_all(view, progress)
        finally:
            self._waiting -= len(view)

    async def close(self, timeout: float) -> None:
        """Ends the input once what others are writing has been taken: the job reads the end of file.

        A terminal has no end: its end-of-file character is typed, which a program in canonical mode takes for one, and more can be
        written afterwards. A pipe that is closed already stays so.

        Raises: InputNotTaken after `timeout` seconds; of a terminal also InputClosed.
        """
        progress = _Progress(1)
        async with self._in_turn(timeout, progress):
            if self.is_terminal:
                await self._opened(progress)
                await self._write_all(memoryview(self._end_of_file()), progress)
            elif self._closed is None:
                await self._opened(progress)
                self._closed = _CLOSED
                self._shut()
                progress.taken = 1

    def resize(self, rows: int, columns: int) -> None:
        """Sets the size of the terminal, which the kernel tells its foreground processes by SIGWINCH. Raises: InputClosed."""
        if self._closed is not None:
            raise self._refusal(0)
        self._size = (rows, columns)
        if self._descriptor >= 0:
            termios.tcsetwinsize(self._descriptor, self._size)

    @contextlib.asynccontextmanager
    async def _in_turn(self, timeout: float, progress: _Progress) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout), self._turn:
                yield
        except TimeoutError:
            if progress.taken == progress.wanted:  # it ran out at the very end
                return
            raise InputNotTaken(
                f"the job has taken {progress.taken} of {progress.wanted} bytes within {timeout:g} s",
                taken=progress.taken,
                hint="it does not read: look at its output, then write the rest, send it a signal, or kill it",
            ) from None

    async def _write_all(self, view: memoryview, progress: _Progress) -> None:
        while progress.taken < len(view):
            await self._opened(progress)
            try:
                progress.taken += os.write(self._descriptor, view[progress.taken : progress.taken + CHUNK])
            except OSError as error:
                if error.errno in (EPIPE, EIO):
                    self._closed = self._closed or "nobody reads it any more, the program has closed its standard input or is ending"
                    self._shut()
                    raise self._refusal(progress.taken) from None
                if error.errno != EAGAIN:
                    raise
                await self._room()
            else:
                self.last_activity = time.monotonic()
                await asyncio.sleep(0)  # a job that reads as fast as we write must not keep the loop

    async def _opened(self, progress: _Progress) -> None:
        while self._descriptor < 0 and self._closed is None:
            self._changed.clear()
            await self._changed.wait()
        if self._closed is not None:
            raise self._refusal(progress.taken)

    async def _room(self) -> None:
        self._changed.clear()
        self._loop.add_writer(self._descriptor, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if self._descriptor >= 0:  # else it went with the descriptor
                self._loop.remove_writer(self._descriptor)

    def _refusal(self, taken: int) -> InputClosed:
        return InputClosed(f"the job cannot be written to: {self._closed}", taken=taken, hint="start the command again to give it more")

    def _end_of_file(self) -> bytes:
        if self._descriptor < 0:
            return _END_OF_FILE
        try:
            character = termios.tcgetattr(self._descriptor)[6][termios.VEOF]
        except termios.error:  # the terminal has gone
            return _END_OF_FILE
        return character if isinstance(character, bytes) and character != b"\0" else _END_OF_FILE

    def _shut(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self._changed.set()
