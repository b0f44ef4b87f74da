"""Public bug reports about jobs that take all there is, where the kernel's own controllers hold them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited, Killed, OutOfMemory
from support.corpus import observed, place
from support.limits import MIB, amounts, answer_times, shared_memory, trivial_time, until_said
from support.programs import TRUE, shell

pytestmark = pytest.mark.vm
SLEEP = ["/usr/bin/sleep", "120"]


def policy(workspace: Path, **limits: object) -> Policy:
    return Policy(workspace=str(workspace), limits={"wall_time": 90, "grace": 0.3, **limits})


@pytest.mark.case("c01")
async def test_a_child_that_the_kernel_kills_for_its_memory_ends_the_job_by_name(workspace: Path) -> None:
    async with Executor(policy(workspace, memory=96 * MIB)) as executor:
        idle = await executor.start(SLEEP)
        result = await executor.run([place("c01", workspace)], env={"MAX_MB": "512"})
        assert not (await executor.get(idle.id)).settled
        await idle.kill()
    outcome = result.outcome
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.limit, (outcome.processes or 0) >= 1) == (96 * MIB, True)
    assert 80 * MIB < (outcome.peak or 0) <= 96 * MIB
    assert b"VERDICT" not in result.stdout  # main was not left to go on


@pytest.mark.case("c02")
async def test_memory_in_files_is_the_jobs_memory_and_is_given_back(workspace: Path) -> None:
    """/dev/shm is larger than the limit, so the first way ends the job; with small places only the memory file does."""
    large, small = {"shm_size": 256 * MIB}, {"shm_size": 16 * MIB, "tmp_size": 16 * MIB}
    async with Executor(policy(workspace, memory=96 * MIB)) as executor:
        program, before = place("c02", workspace), await asyncio.to_thread(shared_memory)
        results = []
        for sizes in (large, small, large, small):
            narrow = executor.policy.replace(limits=sizes)
            job = await executor.start_with_policy([program], narrow, env={"MAX_MB": "256"})
            results.append(await job.result())
        after = await asyncio.to_thread(shared_memory)
    assert all(isinstance(result.outcome, OutOfMemory) for result in results)
    assert [amounts(result.stdout) for result in results] == [{}, {"dev-shm": 16, "tmp": 16, "run": 0}] * 2
    assert after - before < 8 * MIB


@pytest.mark.case("c04")
async def test_the_number_of_processes_is_the_kernels_count_and_each_jobs_own(workspace: Path) -> None:
    async with Executor(policy(workspace, processes=48)) as executor:
        job = await executor.start([place("c04", workspace)])
        await until_said(executor, job, b"fork: ", "stderr")
        began = time.monotonic()
        assert not (await executor.get(job.id)).settled
        assert (await executor.run(TRUE)).ok
        record = await job.kill()
        assert time.monotonic() - began < 15
    assert isinstance(record.outcome, Killed)
    assert 40 <= (record.usage.peak_processes or 0) <= 49  # with init


@pytest.mark.case("c05")
async def test_each_job_gets_its_share_of_the_processors_and_no_more(workspace: Path) -> None:
    """The virtual machine has two, so the shares are a quarter of one each."""
    async with Executor(policy(workspace, cpus=0.25, processes=512)) as executor:
        program = place("c05", workspace)
        idle = await executor.start(SLEEP)
        jobs = [await executor.start([program], env={"LIFE": "12"}) for _ in range(3)]
        for job in jobs:
            await until_said(executor, job, b"READY")
        assert max(await answer_times(executor, idle)) < 1
        assert await trivial_time(executor) < 10
        results = await asyncio.gather(*(job.result() for job in jobs))
        await idle.kill()
    for result in results:
        assert result.outcome == Exited(0)
        assert observed(result.stdout, "nice -20") == "refused: Operation not permitted"
        used = (result.usage.user or 0) + (result.usage.system or 0)
        wall = result.usage.wall or 0
        assert 0.1 * wall < used <= 1.1 * 0.25 * wall + 0.1
        assert (result.usage.throttled or 0) > 1


@pytest.mark.case("c06")
async def test_files_in_memory_that_fill_their_place_are_charged_to_the_job(workspace: Path) -> None:
    """`/tmp` is larger than the memory limit: the child that fills it is killed for memory, and with it the job."""
    async with Executor(policy(workspace, memory=64 * MIB, tmp_size=256 * MIB)) as executor:
        program = place("c06", workspace)
        before = await asyncio.to_thread(shared_memory)
        result = await executor.run(shell(f"P=$PWD/{program}; cd /tmp && exec $P"), env={"CAP": str(192 * MIB)})
        assert (await executor.run(TRUE)).ok
        after = await asyncio.to_thread(shared_memory)
    assert isinstance(result.outcome, OutOfMemory)
    assert after - before < 8 * MIB
    assert not os.path.exists("/tmp/c06.big")
