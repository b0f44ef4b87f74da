"""One of our own output descriptors, written to from an event loop.

Whoever reads our output may be slow, stopped or gone. A thread does the writing, so that the loop never waits; it is a daemon, so that
our exit does not wait either.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import threading


class Outlet:
    """Writes in order; belongs to the event loop that made it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._turns: queue.SimpleQueue[tuple[bytes, asyncio.Future[None] | None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"stockade-output-{descriptor}", daemon=True).start()

    async def write(self, data: bytes) -> None:
        """Waits until all of it has been written. Raises: OSError, BrokenPipeError where the reader is gone."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._turns.put((data, written))
        await written

    def post(self, data: bytes) -> None:
        """Has it written when its turn comes; whether it was, nobody will know."""
        self._turns.put((data, None))

    def close(self) -> None:
        """Ends the thread after what is in the queue."""
        self._turns.put(None)

    def _run(self) -> None:
        while (turn := self._turns.get()) is not None:
            data, written = turn
            error: OSError | None = None
            try:
                write_all(self._descriptor, data)
            except OSError as why:
                error = why
            if written is not None:
                try:
                    self._loop.call_soon_threadsafe(_settle, written, error)
                except RuntimeError:
                    return  # the loop has been closed, and nobody waits any more


def _settle(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():  # given up
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it. Blocks, also where somebody has made the descriptor non-blocking. Raises: OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT)
            ready.poll()
