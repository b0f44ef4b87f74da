"""The streams of one running job, from its pipes to its account, and whoever waits for them to grow or to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec

from stockade.bank.account import Account
from stockade.bank.streams import SinkFailed
from stockade.jobs.budget import Budget
from stockade.jobs.ending import Ending
from stockade.launcher.outcome import Killed, OutputLimited
from stockade.launcher.stdio import Pump, Stream

P = ParamSpec("P")

DRAIN: Final = 5.0  # seconds that a stream may stay open after the last process of its job is gone


class JobOutput:
    """Belongs to the event loop of its executor; the pump's thread passes word to it."""

    def __init__(self, pump: Pump, ending: Ending, budget: Budget) -> None:
        self.followers: set[asyncio.Event] = set()  # each is its own follower's to clear
        self._pump = pump
        self._ending = ending
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._closed: dict[Stream, asyncio.Event] = {}

    def add(self, account: Account, name: str, descriptor: int) -> None:
        """Has what comes from a descriptor, which is the pump's to close, kept as that stream. Raises: OSError, as of `Pump.add`."""
        stream = Stream(
            name,
            descriptor,
            account.writer(name),
            on_over_cap=self._from_pump(self._on_over_cap),
            on_failed=self._from_pump(self._on_sink_failed),
            on_progress=self._on_progress,
            on_closed=self._from_pump(self._on_closed),
        )
        self._closed[stream] = asyncio.Event()
        self._pump.add(stream)

    def last_activity(self, default: float) -> float:
        """When bytes came last, of the monotonic clock; `default` where there is no stream."""
        return max((stream.last_activity for stream in self._closed), default=default)

    async def drain(self) -> None:
        """Every byte up to the end of file; a pipe that somebody outside still holds is given up after a while (U-11)."""
        for stream, closed in self._closed.items():
            if closed.is_set():
                continue
            try:
                async with asyncio.timeout(DRAIN):
                    await closed.wait()
            except TimeoutError:
                self._ending.notes.append(f"{stream.name} was still held open {DRAIN:g} s after the last process was gone")
                self._pump.abandon(stream)
                try:
                    async with asyncio.timeout(DRAIN):
                        await closed.wait()
                except TimeoutError:  # its sink hangs, say: what it holds is on its way to the disk
                    self._ending.notes.append(f"{stream.name} could not be stored within {DRAIN:g} s, its end may be missing")

    def wake_followers(self) -> None:
        """Has everybody who follows look again: a stream has grown or closed, or the job is over."""
        for follower in self.followers:
            follower.set()

    def forget(self) -> None:
        """Lets go of the streams, once they are done with; they are in cycles with their callbacks."""
        self._closed.clear()

    def _from_pump(self, function: Callable[P, None]) -> Callable[P, None]:
        """Passes a call of the pump's thread on to the event loop."""

        def passed_on(*args: P.args, **kwargs: P.kwargs) -> None:
            self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

        return passed_on

    def _on_over_cap(self, stream: Stream) -> None:
        self._ending.ask(OutputLimited(stream.name, self._budget.limits.output))

    def _on_sink_failed(self, stream: Stream, error: Exception) -> None:
        detail = error.message if isinstance(error, SinkFailed) else f"{stream.name} sink failed: {error}"
        self._ending.ask(Killed(by="sink", detail=detail))

    def _on_progress(self, stream: Stream) -> None:
        if self.followers:
            self._loop.call_soon_threadsafe(self.wake_followers)

    def _on_closed(self, stream: Stream) -> None:
        if (closed := self._closed.get(stream)) is not None:
            closed.set()
        self.wake_followers()
