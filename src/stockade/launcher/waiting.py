"""Waiting: for work that cannot be taken back, where a cancellation waits until it is over, and for what happens once."""

from __future__ import annotations

import asyncio
from typing import Any


class Milestone:
    """What happens once, or is known never to happen; for the tasks of one event loop.

    Whoever waits is woken in the very next turn of the loop. A future that several tasks wait for would have to be shielded from
    the cancellation of each, which costs two turns more.
    """

    def __init__(self) -> None:
        self.is_reached = False  # or will never be
        self._error: BaseException | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def reach(self, error: BaseException | None = None) -> None:
        """It has happened, or with `error` never will; the first call counts."""
        if self.is_reached:
            return
        self.is_reached, self._error = True, error
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Waits until it has happened. Raises: the error that keeps it from happening."""
        await first(self)
        if self._error is not None:
            raise self._error

    def join(self, waiter: asyncio.Future[None]) -> None:
        """Has a future end with it."""
        self._waiting.add(waiter)

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """Takes `join` back."""
        self._waiting.discard(waiter)


async def first(*milestones: Milestone) -> None:
    """Waits until one of them is reached, or known not to be."""
    if any(milestone.is_reached for milestone in milestones):
        return
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for milestone in milestones:
        milestone.join(waiter)
    try:
        await waiter
    finally:
        for milestone in milestones:
            milestone.leave(waiter)


async def wait_done(work: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Waits until `work` is done, whatever happens; gives the cancellation that came meanwhile, for the caller to raise."""
    cancelled = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if not work.cancelled():
        work.exception()  # looked at: who was cancelled may not care
    return cancelled
