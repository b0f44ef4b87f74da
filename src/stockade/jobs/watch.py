"""The limits that only the executor can hold: wall, CPU and idle time, and memory where no controller does it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from stockade.launcher.outcome import OutOfMemory, TimedOut
from stockade.launcher.process import ProcessTree
from stockade.launcher.sampling import tree_memory

if TYPE_CHECKING:
    from stockade.jobs.supervisor import LiveJob

PERIOD: Final = 0.1  # seconds between two looks


async def watch_limits(job: LiveJob, tree: ProcessTree) -> None:
    """Looks at one job until a limit is reached, and then asks for its end; cancelled when the job has ended."""
    limits = job.policy.limits
    samples_memory = limits.memory is not None and ("memory", "memory.sampled") in job.spec.mechanisms
    looks = samples_memory or limits.cpu_time is not None or limits.idle_time is not None
    began = time.monotonic()
    deadline = None if limits.wall_time is None else began + limits.wall_time
    now = began
    while True:
        pause = PERIOD if looks else 3600.0
        await asyncio.sleep(pause if deadline is None else max(0.0, min(pause, deadline - now)))
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            assert limits.wall_time is not None
            job.ending.ask(TimedOut("wall", limits.wall_time))
            return
        try:
            if looks and await _look(job, tree, began, samples_memory=samples_memory):
                return
        except (OSError, RuntimeError):
            pass  # no descriptor or thread was free, say; the next look comes soon


async def _look(job: LiveJob, tree: ProcessTree, began: float, *, samples_memory: bool) -> bool:
    limits = job.policy.limits
    if limits.idle_time is not None:
        last = max((stream.last_activity for stream in job.streams), default=began)
        if time.monotonic() - max(last, began) >= limits.idle_time:
            return job.ending.ask(TimedOut("idle", limits.idle_time))
    if limits.cpu_time is not None:
        used = await job.engine.call_watching(tree.leaf.cpu_seconds)
        if used is not None and used >= limits.cpu_time:
            return job.ending.ask(TimedOut("cpu", limits.cpu_time))
    if samples_memory and limits.memory is not None:
        held = await job.engine.call_watching(tree_memory, tree.leaf, limits.memory)
        job.peak_sample = max(held, job.peak_sample or 0)
        if held > limits.memory:
            processes = len(await job.engine.call_watching(tree.leaf.processes)) - 1  # init is none of the job's
            return job.ending.ask(OutOfMemory(limit=limits.memory, peak=held, processes=processes))
    return False
