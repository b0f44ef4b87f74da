"""Freezing and thawing a job: every process of it stops, and nothing of its record is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.errors import UnknownJob
from stockade.launcher.outcome import Killed, TimedOut
from support.programs import python

COUNT = "import itertools, time\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.01)"
FAMILY = f"import os\nos.fork(); os.fork()\n{COUNT}"


async def grown(executor: Executor, job: str, seconds: float) -> int:
    """Bytes that a job writes within some time, measured by another job that lasts so long."""
    before = (await executor.read_bytes(job, limit=1)).total_bytes
    await executor.run(["/bin/sleep", str(seconds)])
    return (await executor.read_bytes(job, limit=1)).total_bytes - before


async def test_a_frozen_job_stands_still_with_all_its_processes_and_goes_on_when_thawed() -> None:
    async with Executor(Policy(limits={"grace": 0.1})) as executor:
        job = await executor.start(python(FAMILY))
        assert await grown(executor, job.id, 0.3) > 0
        assert await executor.freeze(job.id)
        await grown(executor, job.id, 0.2)  # what was in the pipe
        assert await grown(executor, job.id, 0.3) == 0
        assert await executor.thaw(job.id)
        assert await grown(executor, job.id, 0.3) > 0


async def test_a_frozen_job_can_be_killed() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(python(COUNT))
        assert await grown(executor, job.id, 0.2) > 0
        assert await executor.freeze(job.id)
        async with asyncio.timeout(10):
            record = await job.kill(grace=0.5)
    assert isinstance(record.outcome, Killed)


async def test_the_deadline_of_a_frozen_job_holds() -> None:
    async with Executor(Policy(limits={"wall_time": 1, "grace": 0.1})) as executor:
        job = await executor.start(python(COUNT))
        assert await executor.freeze(job.id)
        async with asyncio.timeout(10):
            record = await job.wait()
    assert isinstance(record.outcome, TimedOut)


async def test_a_deadline_that_does_not_count_frozen_time_waits_for_the_thaw() -> None:
    async with Executor(Policy(limits={"wall_time": 1.5, "grace": 0.1, "count_frozen": False})) as executor:
        job = await executor.start(python(COUNT))
        assert await executor.freeze(job.id)
        assert not (await job.wait(2.5)).settled
        assert await executor.thaw(job.id)
        async with asyncio.timeout(10):
            record = await job.wait()
    assert isinstance(record.outcome, TimedOut)
    assert record.usage.frozen is not None
    assert 2.4 < record.usage.frozen < (record.duration or 0) - 1.2


async def test_idle_time_that_does_not_count_frozen_time_waits_for_the_thaw() -> None:
    async with Executor(Policy(limits={"idle_time": 1, "grace": 0.1, "count_frozen": False})) as executor:
        silent = await executor.start(["/usr/bin/sleep", "60"])
        assert await executor.freeze(silent.id)
        assert not (await silent.wait(2)).settled
        assert await executor.thaw(silent.id)
        async with asyncio.timeout(10):
            record = await silent.wait()
    assert record.sentence() == "timed out after 1 s without output"


async def test_a_frozen_job_whose_clock_stands_still_can_be_killed() -> None:
    async with Executor(Policy(limits={"wall_time": 30, "count_frozen": False})) as executor:
        job = await executor.start(python(COUNT))
        assert await executor.freeze(job.id)
        async with asyncio.timeout(10):
            record = await job.kill(grace=0.2)
    assert isinstance(record.outcome, Killed)


async def test_what_has_ended_cannot_be_frozen_and_what_is_unknown_is_refused(workspace: Path) -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["/usr/bin/true"])
        await job.wait()
        assert not await executor.freeze(job.id)
        assert not await executor.thaw(job.id)
        with pytest.raises(UnknownJob):
            await executor.freeze("nosuch")
