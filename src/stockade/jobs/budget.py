"""What one job may use at this moment, how its time is counted, and what has been seen of its use while it ran."""

from __future__ import annotations

import asyncio
from collections.abc import Set

from stockade.jobs.clocks import JobClock
from stockade.jobs.reached import fuller
from stockade.launcher.scratch import Filling
from stockade.policy.model import Limits


class Budget:
    """The limits of one job that runs; belongs to the event loop of its executor."""

    def __init__(self, limits: Limits, controllers: Set[str]) -> None:
        """`controllers` are those that the job's cgroup has."""
        self.limits = limits
        self.changed = asyncio.Event()  # the limits, or whether it is frozen; whoever watches clears it
        self.updating = asyncio.Lock()
        self.clock = JobClock()
        self.filled: dict[str, Filling] = {}  # of each of its own places, the fullest that it was seen
        self.was_crowded = False  # as many processes were seen as may be
        self.most_open = 0  # descriptors that one process was seen to have
        self.peak_sample: int | None = None
        self.samples_memory = "memory" not in controllers
        self.samples_processes = "pids" not in controllers

    def passed(self, begin: float, end: float) -> float:
        """Seconds between two moments as its limits count them: without those in which it was frozen, where they say so."""
        return end - begin - (0.0 if self.limits.count_frozen else self.clock.frozen_seconds(begin, end))

    def set_frozen(self, now: float, *, frozen: bool) -> None:
        """It is frozen, or thawed, at `now`."""
        (self.clock.freeze if frozen else self.clock.thaw)(now)
        self.changed.set()

    def replace(self, limits: Limits) -> None:
        """Other limits hold from now on."""
        self.limits = limits
        self.changed.set()

    def note_sample(self, filled: dict[str, Filling], threads: int | None, memory: int | None, most_open: int) -> None:
        """What was seen while it ran; `threads` with init's, `most_open` descriptors of one process."""
        self.most_open = max(self.most_open, most_open)
        self.filled = fuller(self.filled, filled)
        self.was_crowded = self.was_crowded or (threads is not None and threads > self.limits.processes)
        if memory is not None:
            self.peak_sample = max(memory, self.peak_sample or 0)
