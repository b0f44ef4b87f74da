"""Public bug reports about processes that outlive, resist or hide, run inside and judged from the host."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from stockade import Executor, Job, Policy
from stockade.launcher.outcome import Exited, Killed
from support.corpus import place, verdict
from support.survivors import members
from support.waiting import BOUND, SLOWNESS, eventually, grows

KILLED = Killed(by="caller", detail="SIGTERM by the caller")


async def start(executor: Executor, case: str, workspace: Path, **env: str) -> Job:
    return await executor.start([await asyncio.to_thread(place, case, workspace)], env={"LIFE": "40", **env})


async def until_ready(executor: Executor, job: Job) -> bytes:
    text = b""
    async with asyncio.timeout(BOUND):
        async for data in executor.follow(job.id):
            text += data
            if b"READY" in text:
                return text
    return text


async def nothing_is_left(executor: Executor) -> None:
    """Only the fork server, and the sandbox that is built ahead, are in the executor's cgroups; the next job runs."""
    assert (await executor.run(["/usr/bin/true"])).ok
    engine = executor._engine
    assert engine is not None
    await eventually(lambda: len(members(engine.tree.path)) == 2, "only the fork server and the next sandbox are left")


@pytest.fixture
def policy(workspace: Path) -> Policy:
    return Policy(workspace=str(workspace), limits={"wall_time": 30 * SLOWNESS, "processes": 512})


@pytest.mark.case("a01")
async def test_a_daemon_with_a_false_name_ends_with_its_job(policy: Policy, workspace: Path) -> None:
    async with Executor(policy) as executor:
        job = await start(executor, "a01", workspace)
        record = await job.wait(BOUND)
        assert record.outcome == Exited(0)
        await nothing_is_left(executor)
        assert not await asyncio.to_thread(grows, [workspace / "a01.heartbeat"], window=1.5)  # it would write every second


@pytest.mark.case("a02")
async def test_escalation_does_not_stop_when_the_leader_is_gone(policy: Policy, workspace: Path) -> None:
    async with Executor(policy) as executor:
        job = await start(executor, "a02", workspace)
        await until_ready(executor, job)
        began = time.monotonic()
        record = await job.kill(grace=2)
        assert time.monotonic() - began < 4 * SLOWNESS
        assert record.outcome == Killed(by="caller", detail="SIGTERM by the caller", signal=15)
        assert not await asyncio.to_thread(grows, [workspace / f"a02.hb.{number}" for number in range(3)], window=0.5)
        await nothing_is_left(executor)


@pytest.mark.case("a04")
async def test_a_kill_converges_on_processes_that_replace_themselves(policy: Policy, workspace: Path) -> None:
    async with Executor(policy) as executor:
        job = await start(executor, "a04", workspace)
        await until_ready(executor, job)
        await eventually(lambda: (workspace / "a04.gen").exists(), "some hundred generations have passed")
        began = time.monotonic()
        record = await job.kill(grace=1)
        assert time.monotonic() - began < 4 * SLOWNESS
        assert isinstance(record.outcome, Killed)
        assert not await asyncio.to_thread(grows, [workspace / "a04.gen"], window=0.5)
        await nothing_is_left(executor)


@pytest.mark.case("a05")
async def test_a_grandchild_that_holds_the_pipes_does_not_hold_the_result(policy: Policy, workspace: Path) -> None:
    async with Executor(policy) as executor:
        began = time.monotonic()
        result = await (await start(executor, "a05", workspace)).result()
        assert time.monotonic() - began < 5 * SLOWNESS
        assert (result.outcome, result.stdout, result.stderr) == (Exited(0), b"before-exit stdout\n", b"before-exit stderr\n")
        await nothing_is_left(executor)


@pytest.mark.case("a07")
@pytest.mark.parametrize("main_exits", [False, True])
async def test_namespaces_of_its_own_hide_no_process(policy: Policy, workspace: Path, main_exits: bool) -> None:
    async with Executor(policy) as executor:
        job = await start(executor, "a07", workspace, **({"MAIN_EXITS": "1"} if main_exits else {}))
        if main_exits:
            record = await job.wait(BOUND)
            assert record.outcome == Exited(0)
            said = (await executor.read_bytes(job.id)).data
        else:
            await eventually(lambda: executor._live[job.id].account is not None, "it has an account")
            async for said in executor.follow(job.id):
                break
            assert isinstance((await job.kill(grace=1)).outcome, Killed)
        assert said.startswith(b"SKIP errno=")  # nested namespaces are refused, so there is nothing to hide in
        await nothing_is_left(executor)


@pytest.mark.case("a08")
async def test_orphans_are_reaped_and_zombies_hold_nothing_up(policy: Policy, workspace: Path) -> None:
    async with Executor(policy) as executor:
        result = await (await start(executor, "a08", workspace)).result()
        assert result.outcome == Exited(0)
        assert verdict(result.stdout) == "PASS"
        await nothing_is_left(executor)


@pytest.mark.case("a09")
async def test_a_process_in_the_d_state_is_killed_and_asking_never_blocks(policy: Policy, workspace: Path) -> None:
    async with Executor(policy) as executor:
        job = await start(executor, "a09", workspace)
        assert b"state=D" in await until_ready(executor, job)
        killing = asyncio.create_task(job.kill(grace=1))
        began = time.monotonic()
        while not killing.done():
            asked = time.monotonic()
            await executor.get(job.id)
            assert time.monotonic() - asked < 0.3 * SLOWNESS
            await asyncio.sleep(0.02)
        assert time.monotonic() - began < 3 * SLOWNESS
        assert isinstance((await killing).outcome, Killed)
        await nothing_is_left(executor)


@pytest.mark.case("a11")
@pytest.mark.parametrize(("grace", "code", "signal", "cleaned"), [(6, 0, None, True), (0.5, None, None, False)])
async def test_a_clean_up_gets_its_grace_and_its_last_words_are_kept(
    policy: Policy, workspace: Path, grace: float, code: int | None, signal: int | None, cleaned: bool
) -> None:
    async with Executor(policy.replace(limits={"grace": 10})) as executor:
        job = await start(executor, "a11", workspace)
        await until_ready(executor, job)
        began = time.monotonic()
        record = await job.kill(grace=grace)
        assert time.monotonic() - began < 5 * SLOWNESS
        assert record.outcome == Killed(by="caller", detail="SIGTERM by the caller", exit_code=code, signal=signal)
        said = (await executor.read_bytes(job.id)).data
        assert said.startswith(b"READY\nCLEANUP-START\n")
        assert (b"CLEANUP-DONE" in said, not (workspace / "a11.lock").exists()) == (cleaned, cleaned)
        await nothing_is_left(executor)
