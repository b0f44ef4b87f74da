"""Our own standard input, read for a job from an event loop.

Whoever feeds us may be slow or silent, so a thread waits for it; it reads only what somebody is waiting for, and ends when it is told,
so that what nobody has asked for is left to whoever reads after us.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading

from stockade.errors import InputClosed, InputNotTaken
from stockade.jobs.handle import Job

CHUNK = 64 * 1024
_PATIENCE = 600.0  # seconds of one write; a job that does not read for longer is written to again


class Inlet:
    """Reads a descriptor, piece by piece; belongs to the event loop that made it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._wanted = threading.Semaphore(0)
        self._stopped = False
        self._piece: asyncio.Future[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"stockade-input-{descriptor}", daemon=True)
        self._thread.start()

    async def read(self) -> bytes:
        """The next bytes, at most 64 KiB; none at the end. Raises: OSError."""
        self._piece = self._loop.create_future()
        self._wanted.release()
        return await self._piece

    async def close(self) -> None:
        """Ends the thread."""
        self._stopped = True
        os.write(self._stop_write, b"s")
        self._wanted.release()
        await asyncio.to_thread(self._thread.join)
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            self._wanted.acquire()
            data, error = b"", None
            while not self._stopped:
                poll.poll()
                if self._stopped:
                    return
                try:
                    data = os.read(self._descriptor, CHUNK)
                except BlockingIOError:
                    continue
                except OSError as why:
                    error = why
                break
            if self._stopped:
                return
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._give, data, error)

    def _give(self, data: bytes, error: OSError | None) -> None:
        if self._piece is None or self._piece.done():
            return
        if error is None:
            self._piece.set_result(data)
        else:
            self._piece.set_exception(error)


async def feed(job: Job, inlet: Inlet) -> None:
    """Passes what comes on to the job until one of the two ends it. Raises: OSError where ours cannot be read; that ends it too."""
    try:
        try:
            while data := await inlet.read():
                await _write(job, data)
        except OSError:
            await _close(job)
            raise
        await _close(job)
    except InputClosed:
        pass  # the job wants no more, and whoever feeds us will notice when we end


async def _write(job: Job, data: bytes) -> None:
    while data:
        try:
            await job.write_stdin(data, timeout=_PATIENCE)
            return
        except InputClosed:
            raise
        except InputNotTaken as late:
            data = data[late.taken :]


async def _close(job: Job) -> None:
    while True:
        try:
            await job.close_stdin(timeout=_PATIENCE)
            return
        except InputClosed:
            raise
        except InputNotTaken:
            continue
