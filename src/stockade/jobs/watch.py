"""The limits that only the executor can hold: wall, CPU and idle time, and memory where no controller does it.

Each look, and there is one a second at least, sees more: whether a place is full, and whether as many processes, or descriptors of one,
are there as may be.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stockade.jobs.budget import Budget
from stockade.jobs.pace import LONGEST as PERIOD
from stockade.jobs.pace import Pace
from stockade.launcher.outcome import OutOfMemory, TimedOut
from stockade.launcher.process import ProcessTree
from stockade.launcher.sampling import MemorySampler, Uncountable, most_open
from stockade.launcher.scratch import Filling

if TYPE_CHECKING:
    from stockade.jobs.supervisor import LiveJob

_log = logging.getLogger(__name__)
_LONGEST: Final = 3600.0  # seconds, where no deadline is near
_SELDOM: Final = 1.0  # seconds between two looks that no limit asks for
_BLIND: Final = "memory files of a process that had made itself invisible (PR_SET_DUMPABLE) were not counted"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a job that runs: seconds of CPU, bytes, threads with those of init; None for what nobody asks."""

    cpu: float | None
    filled: dict[str, Filling]
    threads: int | None
    memory: int | None
    processes: int
    most_open: int  # descriptors, of the process that has most
    uncountable: str | None = None  # why what it holds is not known, and may be anything


async def watch_limits(job: LiveJob, tree: ProcessTree, began: float) -> None:
    """Looks at one job and asks for its end when a limit is reached; cancelled when the job has ended."""
    await _Watch(job, tree, began).run()


class _Watch:
    """The watch over one job. The limits may change meanwhile, and so may whether the job is frozen; the budget tells."""

    def __init__(self, job: LiveJob, tree: ProcessTree, began: float) -> None:
        self._job = job
        self._tree = tree
        self._began = began
        self._pace = Pace()
        self._sampler = MemorySampler(tree.leaf)
        self._over: set[str] = set()  # the clocks that have run out; each is told once

    async def run(self) -> None:
        """Goes on while the job is being ended: it may use all of its grace to take memory."""
        budget = self._job.budget
        while True:
            budget.changed.clear()
            left = self._time_left()
            if left <= 0:
                self._tell_wall_time()
                continue
            try:
                async with asyncio.timeout(min(left, self._pause())):
                    await budget.changed.wait()
                continue
            except TimeoutError:
                pass
            try:
                if await self._look():
                    return
            except (OSError, RuntimeError):
                pass  # no descriptor or thread was free, say; the next look comes soon
            except Exception:  # noqa: BLE001 - a bug of ours must not end the watch
                _log.exception("job %s could not be looked at", self._job.id)

    def _time_left(self) -> float:
        """Seconds of wall time that are left; without a limit, once it has been told, and while a frozen job's clock stands still, more
        than any look waits.
        """
        budget, limits = self._job.budget, self._job.budget.limits
        if limits.wall_time is None or "wall" in self._over:
            return _LONGEST
        left = limits.wall_time - budget.passed(self._began, time.monotonic())
        return _LONGEST if left > 0 and budget.clock.is_frozen and not limits.count_frozen else left

    def _tell_wall_time(self) -> None:
        assert self._job.budget.limits.wall_time is not None
        self._tell(TimedOut("wall", self._job.budget.limits.wall_time))

    def _tell(self, cause: TimedOut) -> None:
        if cause.clock not in self._over:
            self._over.add(cause.clock)
            self._job.ending.ask(cause)

    def _samples_memory(self) -> bool:
        return self._job.budget.limits.memory is not None and self._job.budget.samples_memory

    def _has_to_look(self) -> bool:
        limits = self._job.budget.limits
        return self._samples_memory() or limits.cpu_time is not None or limits.idle_time is not None

    def _pause(self) -> float:
        """Seconds until the next look, or until there may be a reason for one."""
        if not self._has_to_look():
            return _SELDOM
        return self._pace.pause if self._samples_memory() else PERIOD

    async def _look(self) -> bool:
        """Looks once; True where the job is going to be killed at once."""
        job, budget, limits = self._job, self._job.budget, self._job.budget.limits
        if limits.idle_time is not None:
            last = job.output.last_activity(self._began)
            if job.input is not None:  # somebody at work with it
                last = max(last, job.input.last_activity)
            if budget.passed(max(last, self._began), time.monotonic()) >= limits.idle_time:
                self._tell(TimedOut("idle", limits.idle_time))
        asked = time.monotonic()
        sample = await self._sampled()
        if limits.memory is not None and sample.memory is not None:
            seen = time.monotonic()
            self._pace.saw(sample.memory, limits.memory, at=seen, cost=seen - asked)
        budget.note_sample(sample.filled, sample.threads, sample.memory, sample.most_open)
        if self._sampler.is_blind and _BLIND not in job.ending.notes:
            job.ending.notes.append(_BLIND)
        if limits.cpu_time is not None and sample.cpu is not None and sample.cpu >= limits.cpu_time:
            self._tell(TimedOut("cpu", limits.cpu_time))
        if limits.memory is None or (sample.uncountable is None and (sample.memory or 0) <= limits.memory):
            return False
        if sample.uncountable is not None:
            job.ending.notes.append(sample.uncountable)
        job.ending.ask(OutOfMemory(limit=limits.memory, peak=sample.memory, processes=sample.processes))
        job.shorten_grace(0)
        return True

    async def _sampled(self) -> Sample:
        """One look on a thread; a job can make it last, and its wall time ends meanwhile as well."""
        looking = asyncio.ensure_future(self._job.engine.call_watching(_sample, self._job.budget, self._sampler, self._tree))
        try:
            await asyncio.wait({looking}, timeout=max(0.0, self._time_left()))
            if not looking.done():
                self._tell_wall_time()
            return await looking
        finally:
            looking.cancel()


def _sample(budget: Budget, sampler: MemorySampler, tree: ProcessTree) -> Sample:
    """Blocks."""
    limits, leaf = budget.limits, tree.leaf
    filled = tree.scratch.measure()
    memory, processes, uncountable = None, 0, None
    if limits.memory is not None and budget.samples_memory:
        try:
            memory = sampler.look(limits.memory, sum(each.used_bytes for each in filled.values()))
        except Uncountable as reason:
            uncountable = str(reason)
        if memory is None or memory > limits.memory:
            processes = len(leaf.processes()) - 1  # init is none of the job's
    return Sample(
        cpu=None if limits.cpu_time is None else leaf.cpu_seconds(),
        filled=filled,
        threads=leaf.count_threads() if budget.samples_processes else None,
        memory=memory,
        processes=processes,
        most_open=sampler.most_open if budget.samples_memory and limits.memory is not None else most_open(leaf),
        uncountable=uncountable,
    )
