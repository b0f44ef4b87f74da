"""The limits that only the executor can hold: wall, CPU and idle time, and memory where no controller does it.

What is looked at anyway is looked at for more: whether a place is full, and whether as many processes are there as may be.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stockade.jobs.budget import Budget
from stockade.jobs.pace import LONGEST as PERIOD
from stockade.jobs.pace import Pace
from stockade.launcher.outcome import OutOfMemory, TimedOut
from stockade.launcher.process import ProcessTree
from stockade.launcher.sampling import Uncountable, tree_memory
from stockade.launcher.scratch import Filling

if TYPE_CHECKING:
    from stockade.jobs.supervisor import LiveJob

_LONGEST: Final = 3600.0  # seconds without a look


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a job that runs: seconds of CPU, bytes, threads with those of init; None for what nobody asks."""

    cpu: float | None
    filled: dict[str, Filling]
    threads: int | None
    memory: int | None
    processes: int
    uncountable: str | None = None  # why what it holds is not known, and may be anything


async def watch_limits(job: LiveJob, tree: ProcessTree, began: float) -> None:
    """Looks at one job until a limit is reached, and then asks for its end; cancelled when the job has ended.

    The limits may change meanwhile, and so may whether the job is frozen; the budget tells.
    """
    pace = Pace()
    while True:
        job.budget.changed.clear()
        now = time.monotonic()
        left = _time_left(job.budget, began, now)
        if left <= 0:
            assert job.budget.limits.wall_time is not None
            job.ending.ask(TimedOut("wall", job.budget.limits.wall_time))
            return
        try:
            async with asyncio.timeout(min(left, _pause(job.budget, pace))):
                await job.budget.changed.wait()
            continue
        except TimeoutError:
            pass
        try:
            if _has_to_look(job.budget) and await _look(job, tree, began, pace):
                return
        except (OSError, RuntimeError):
            pass  # no descriptor or thread was free, say; the next look comes soon


def _time_left(budget: Budget, began: float, now: float) -> float:
    """Seconds of wall time that are left; without a limit, and while a frozen job's clock stands still, more than any look waits."""
    limits = budget.limits
    if limits.wall_time is None:
        return _LONGEST
    left = limits.wall_time - budget.passed(began, now)
    return _LONGEST if left > 0 and budget.clock.is_frozen and not limits.count_frozen else left


def _has_to_look(budget: Budget) -> bool:
    limits = budget.limits
    return (limits.memory is not None and budget.samples_memory) or limits.cpu_time is not None or limits.idle_time is not None


def _pause(budget: Budget, pace: Pace) -> float:
    """Seconds until the next look, or until there may be a reason for one."""
    if not _has_to_look(budget):
        return _LONGEST
    return pace.pause if budget.limits.memory is not None and budget.samples_memory else PERIOD


async def _look(job: LiveJob, tree: ProcessTree, began: float, pace: Pace) -> bool:
    budget, limits = job.budget, job.budget.limits
    if limits.idle_time is not None:
        last = job.output.last_activity(began)
        if job.input is not None:  # somebody at work with it
            last = max(last, job.input.last_activity)
        if budget.passed(max(last, began), time.monotonic()) >= limits.idle_time:
            return job.ending.ask(TimedOut("idle", limits.idle_time))
    asked = time.monotonic()
    sample = await job.engine.call_watching(_sample, budget, tree)
    if limits.memory is not None and sample.memory is not None:
        seen = time.monotonic()
        pace.saw(sample.memory, limits.memory, at=seen, cost=seen - asked)
    budget.note_sample(sample.filled, sample.threads, sample.memory)
    if limits.cpu_time is not None and sample.cpu is not None and sample.cpu >= limits.cpu_time:
        return job.ending.ask(TimedOut("cpu", limits.cpu_time))
    if limits.memory is not None and sample.memory is not None and sample.memory > limits.memory:
        return job.ending.ask(OutOfMemory(limit=limits.memory, peak=sample.memory, processes=sample.processes))
    if limits.memory is not None and sample.uncountable is not None:
        job.ending.notes.append(sample.uncountable)
        return job.ending.ask(OutOfMemory(limit=limits.memory, processes=sample.processes))
    return False


def _sample(budget: Budget, tree: ProcessTree) -> Sample:
    """Blocks."""
    limits, leaf = budget.limits, tree.leaf
    filled = tree.scratch.measure()
    memory, processes, uncountable = None, 0, None
    if limits.memory is not None and budget.samples_memory:
        try:
            memory = tree_memory(leaf, limits.memory, sum(each.used_bytes for each in filled.values()))
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
        uncountable=uncountable,
    )
