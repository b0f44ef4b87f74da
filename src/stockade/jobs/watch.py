"""The limits that only the executor can hold: wall, CPU and idle time, and memory where no controller does it.

What is looked at anyway is looked at for more: whether a place is full, and whether as many processes are there as may be.
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
from stockade.launcher.sampling import MemorySampler, Uncountable
from stockade.launcher.scratch import Filling

if TYPE_CHECKING:
    from stockade.jobs.supervisor import LiveJob

_log = logging.getLogger(__name__)
_LONGEST: Final = 3600.0  # seconds without a look
_BLIND: Final = "memory files of a process that had made itself invisible (PR_SET_DUMPABLE) were not counted"


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
    """Looks at one job and asks for its end when a limit is reached; cancelled when the job has ended.

    Its memory is looked at until then, also while it is being ended: it may use all of its grace to take more. The limits may change
    meanwhile, and so may whether the job is frozen; the budget tells.
    """
    pace, sampler = Pace(), MemorySampler(tree.leaf)
    while True:
        job.budget.changed.clear()
        left = _time_left(job, began)
        if left <= 0:
            _ask_for_wall_time(job)
            continue
        try:
            async with asyncio.timeout(min(left, _pause(job, pace))):
                await job.budget.changed.wait()
            continue
        except TimeoutError:
            pass
        try:
            if _has_to_look(job) and await _look(job, sampler, tree, began, pace):
                return
        except (OSError, RuntimeError):
            pass  # no descriptor or thread was free, say; the next look comes soon
        except Exception:  # noqa: BLE001 - a bug of ours must not end the watch
            _log.exception("job %s could not be looked at", job.id)


def _time_left(job: LiveJob, began: float) -> float:
    """Seconds of wall time that are left; without a limit, once the job is being ended, and while a frozen job's clock stands still, more
    than any look waits.
    """
    budget, limits = job.budget, job.budget.limits
    if limits.wall_time is None or job.ending.cause is not None:
        return _LONGEST
    left = limits.wall_time - budget.passed(began, time.monotonic())
    return _LONGEST if left > 0 and budget.clock.is_frozen and not limits.count_frozen else left


def _ask_for_wall_time(job: LiveJob) -> None:
    assert job.budget.limits.wall_time is not None
    job.ending.ask(TimedOut("wall", job.budget.limits.wall_time))


def _samples_memory(job: LiveJob) -> bool:
    return job.budget.limits.memory is not None and job.budget.samples_memory


def _has_to_look(job: LiveJob) -> bool:
    limits = job.budget.limits
    return _samples_memory(job) or (job.ending.cause is None and (limits.cpu_time is not None or limits.idle_time is not None))


def _pause(job: LiveJob, pace: Pace) -> float:
    """Seconds until the next look, or until there may be a reason for one."""
    if not _has_to_look(job):
        return _LONGEST
    return pace.pause if _samples_memory(job) else PERIOD


async def _look(job: LiveJob, sampler: MemorySampler, tree: ProcessTree, began: float, pace: Pace) -> bool:
    """Looks once; True where there is nothing left to look for."""
    budget, limits = job.budget, job.budget.limits
    if limits.idle_time is not None and job.ending.cause is None:
        last = job.output.last_activity(began)
        if job.input is not None:  # somebody at work with it
            last = max(last, job.input.last_activity)
        if budget.passed(max(last, began), time.monotonic()) >= limits.idle_time:
            job.ending.ask(TimedOut("idle", limits.idle_time))
    asked = time.monotonic()
    sample = await _sampled(job, sampler, tree, began)
    if limits.memory is not None and sample.memory is not None:
        seen = time.monotonic()
        pace.saw(sample.memory, limits.memory, at=seen, cost=seen - asked)
    budget.note_sample(sample.filled, sample.threads, sample.memory)
    if sampler.is_blind and _BLIND not in job.ending.notes:
        job.ending.notes.append(_BLIND)
    if limits.cpu_time is not None and sample.cpu is not None and sample.cpu >= limits.cpu_time and job.ending.cause is None:
        job.ending.ask(TimedOut("cpu", limits.cpu_time))
    if limits.memory is None or (sample.uncountable is None and (sample.memory or 0) <= limits.memory):
        return False
    if sample.uncountable is not None:
        job.ending.notes.append(sample.uncountable)
    if job.ending.cause is None:
        job.ending.ask(OutOfMemory(limit=limits.memory, peak=sample.memory, processes=sample.processes))
    else:
        job.ending.notes.append("while it was being ended it went beyond its memory limit, and was killed at once")
        job.shorten_grace(0)
    return True


async def _sampled(job: LiveJob, sampler: MemorySampler, tree: ProcessTree, began: float) -> Sample:
    """One look on a thread; a job can make it last, and its wall time ends meanwhile as well."""
    looking = asyncio.ensure_future(job.engine.call_watching(_sample, job.budget, sampler, tree))
    try:
        await asyncio.wait({looking}, timeout=max(0.0, _time_left(job, began)))
        if not looking.done():
            _ask_for_wall_time(job)
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
        uncountable=uncountable,
    )
