"""What the corpus programs about limits need on either kind of host, with the kernel's controllers and without."""

from __future__ import annotations

import asyncio
import re
import time

from stockade import Executor, Job
from support.programs import TRUE
from support.waiting import SLOWNESS

MIB = 1 << 20


def shared_memory() -> int:
    """Bytes of tmpfs and shared memory that the host has in use."""
    with open("/proc/meminfo") as table:
        (line,) = (line for line in table if line.startswith("Shmem:"))
    return int(line.split()[1]) << 10


def amounts(output: bytes) -> dict[str, int]:
    """How many MiB each way of c02 got before it was stopped; 0 where it was not possible at all."""
    rows = re.findall(r"OBS ([\w-]+) +(?:\w+ after (\d+) MiB|reached the cap of (\d+)|(unavailable))", output.decode())
    return {way: int(after or cap or 0) for way, after, cap, _ in rows}


async def until_said(executor: Executor, job: Job, what: bytes, stream: str = "stdout", *, bound: float = 60 * SLOWNESS) -> None:
    text = b""
    async with asyncio.timeout(bound):
        async for data in executor.follow(job.id, stream):
            text += data
            if what in text:
                return
    raise AssertionError(f"{what!r} was not said in {text[-1000:]!r}")


async def answer_times(executor: Executor, job: Job, count: int = 20) -> list[float]:
    """How long the executor took each time it was asked about a job, over two seconds."""
    waits = []
    for _ in range(count):
        began = time.monotonic()
        assert not (await executor.get(job.id)).settled
        waits.append(time.monotonic() - began)
        await asyncio.sleep(2 / count)
    return waits


async def trivial_time(executor: Executor) -> float:
    """How long a whole job takes that does nothing."""
    began = time.monotonic()
    assert (await executor.run(TRUE)).ok
    return time.monotonic() - began


__all__ = ["MIB", "amounts", "answer_times", "shared_memory", "trivial_time", "until_said"]
