"""Waiting for a condition with a bound: the one place where tests poll."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

SLOWNESS = float(os.environ.get("STOCKADE_TEST_SLOWNESS", "1"))  # by how much this machine is slower: every bound is stretched by it
BOUND = 15.0 * SLOWNESS  # seconds within which whatever is waited for must be so
PERIOD = 0.01


def until(condition: Callable[[], object], what: str, *, bound: float = BOUND) -> None:
    """Waits until the condition holds. Raises: AssertionError, naming `what`, after the bound."""
    deadline = time.monotonic() + bound
    while not condition():
        assert time.monotonic() < deadline, f"not within {bound:g} s: {what}"
        threading.Event().wait(PERIOD)


async def eventually(condition: Callable[[], object], what: str, *, bound: float = BOUND) -> None:
    """As `until`, for the event loop; the condition runs on a thread, so that it may look at files."""
    deadline = time.monotonic() + bound
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not within {bound:g} s: {what}"
        await asyncio.sleep(PERIOD)


def sizes(files: list[Path]) -> dict[str, int]:
    """The size of each file that is there."""
    return {file.name: file.stat().st_size for file in files if file.exists()}


def grows(files: list[Path], *, window: float = 0.25) -> bool:
    """True where one of the files gets longer within the window; their writers write every 20 ms."""
    before, deadline = sizes(files), time.monotonic() + window
    while time.monotonic() < deadline:
        if sizes(files) != before:
            return True
        threading.Event().wait(PERIOD)
    return False


__all__ = ["BOUND", "SLOWNESS", "eventually", "grows", "sizes", "until"]
