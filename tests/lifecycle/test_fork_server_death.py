"""SIGKILL of the fork server, of a job's init and of the command by somebody else: told truthfully, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from stockade import Executor, Job, Policy
from stockade.errors import Closed, LaunchFailed, StockadeError
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Exited, Killed, Signaled
from support.programs import python, shell
from support.survivors import SURVIVORS, beats, members
from support.waiting import SLOWNESS, eventually, grows

ROUNDS = 10
BY_SERVER = Killed(by="foreign", detail="the fork server was killed, and every job with it")
BY_INIT = Killed(by="foreign", detail="the sandbox's init was killed from outside")


def server_pid(executor: Executor) -> int:
    assert executor._engine is not None
    return executor._engine.server.pid


def tree_path(executor: Executor) -> str:
    assert executor._engine is not None
    return executor._engine.tree.path


async def pids(executor: Executor, job: Job) -> list[int]:
    """The host pids of a job, its init first."""
    tree = executor._live[job.id].tree
    assert tree is not None
    return await asyncio.to_thread(tree.leaf.processes)


async def until_it_says(executor: Executor, job: Job, line: bytes) -> None:
    async for data in executor.follow(job.id):
        if line in data:
            return
    raise AssertionError(f"{line!r} was never written")


async def test_no_process_of_any_job_outlives_the_fork_server(workspace: Path) -> None:
    chance = random.Random(3)
    for number in range(ROUNDS):
        async with Executor(Policy(workspace=str(workspace))) as executor:
            jobs = [await executor.start(python(SURVIVORS)), await executor.start(["/usr/bin/sleep", "60"])]
            await eventually(lambda: all(beat.exists() for beat in beats(workspace)), f"round {number}: the survivors beat")
            for job in jobs:
                await executor._live[job.id].has_begun.wait()
            await asyncio.sleep(chance.uniform(0, 0.05))
            assert len(await asyncio.to_thread(members, tree_path(executor))) >= 8
            os.kill(server_pid(executor), signal.SIGKILL)
            records = [await job.wait(10 * SLOWNESS) for job in jobs]
            assert [record.outcome for record in records] == [BY_SERVER, BY_SERVER]
            await eventually(lambda path=tree_path(executor): not members(path), f"round {number}: nothing is left")
            assert not await asyncio.to_thread(grows, beats(workspace))
        for beat in beats(workspace):
            beat.unlink()


async def test_no_process_of_a_job_that_is_being_launched_outlives_the_fork_server(workspace: Path) -> None:
    chance = random.Random(4)
    ends: list[JobState] = []
    for number in range(ROUNDS):
        async with Executor(Policy(workspace=str(workspace))) as executor:
            started = [asyncio.create_task(executor.start(python(SURVIVORS))) for _ in range(6)]
            await asyncio.sleep(chance.uniform(0, 0.1))
            os.kill(server_pid(executor), signal.SIGKILL)
            for task in started:
                try:
                    record = await (await task).wait(10)
                except Closed:
                    continue  # it came after the death
                assert record.settled
                assert record.outcome in (None, BY_SERVER)
                ends.append(record.state)
            await eventually(lambda path=tree_path(executor): not members(path), f"round {number}: nothing is left")
            assert not await asyncio.to_thread(grows, beats(workspace))
    assert ends


async def test_starts_are_refused_once_the_fork_server_is_gone() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(shell("echo ready; exec sleep 60"))
        await until_it_says(executor, job, b"ready")
        os.kill(server_pid(executor), signal.SIGKILL)
        await job.wait(10 * SLOWNESS)
        with pytest.raises(Closed, match=r"fork server is gone.*\n.*make a new executor"):
            await executor.start(["/usr/bin/true"])
        with pytest.raises(Closed):
            await executor.run(["/usr/bin/true"])
        assert (await executor.get(job.id)).outcome == BY_SERVER  # what was, can still be read
        assert len(await executor.list()) == 1


async def test_a_start_that_overlaps_the_death_of_the_fork_server_fails_with_its_reason() -> None:
    async with Executor(Policy()) as executor:
        os.kill(server_pid(executor), signal.SIGKILL)  # nobody has noticed yet
        try:
            job = await executor.start(["/usr/bin/true"])
        except Closed:
            return
        with pytest.raises(StockadeError, match="fork server") as caught:
            await executor.result(job.id)
        assert isinstance(caught.value, Closed | LaunchFailed)
        assert (await executor.get(job.id)).state is JobState.FAILED


@pytest.mark.parametrize("member", ["init", "command"])
async def test_a_job_whose_init_or_command_was_killed_by_somebody_says_so(member: str, workspace: Path) -> None:
    async with Executor(Policy(workspace=str(workspace))) as executor:
        neighbour = await executor.start(["/usr/bin/sleep", "60"])
        job = await executor.start(python(SURVIVORS))
        await until_it_says(executor, job, b"ready")
        living = await pids(executor, job)
        os.kill(living[0 if member == "init" else 1], signal.SIGKILL)
        record = await job.wait(5)
        assert record.outcome == (BY_INIT if member == "init" else Signaled(9))
        assert (await executor.read_bytes(job.id)).data == b"ready\n"
        assert not await asyncio.to_thread(grows, beats(workspace))
        assert not any(os.path.exists(f"/proc/{pid}") for pid in living)
        assert (await executor.get(neighbour.id)).state is JobState.RUNNING
        assert (await executor.run(shell("exit 2"))).outcome == Exited(2)


async def test_a_sandbox_that_was_built_ahead_and_killed_is_not_used() -> None:
    async with Executor(Policy()) as executor:
        await executor.run(["/usr/bin/true"])
        path = tree_path(executor)
        await eventually(lambda: len(members(path)) == 2, "one is built ahead")
        for pid in await asyncio.to_thread(members, path):
            if pid != server_pid(executor):
                os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(members(path)) == 1, "only the fork server is left")
        assert (await executor.run(shell("exit 3"))).outcome == Exited(3)


async def test_killing_one_child_from_outside_does_not_end_the_job() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(shell("sleep 60 & echo ready; wait; exit 7"))
        await until_it_says(executor, job, b"ready")
        os.kill((await pids(executor, job))[-1], signal.SIGKILL)
        assert (await job.wait(5)).outcome == Exited(7)
