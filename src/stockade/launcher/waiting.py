"""Waiting for what cannot be taken back, such as work that a thread has begun: a cancellation waits until it is over."""

from __future__ import annotations

import asyncio
from typing import Any


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
