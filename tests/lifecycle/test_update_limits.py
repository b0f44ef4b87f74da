"""Limits of a job that runs, changed: they hold at once, all of them or none, and the record says so."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from stockade import Executor, Job, Policy
from stockade.errors import HostUnfit, InvalidRequest, NotAllowed, PolicyError, StockadeError, UnknownJob
from stockade.jobs.records import JobRecord
from stockade.launcher.outcome import Exited, OutOfMemory, OutputLimited, TimedOut
from stockade.policy.model import Limits
from support.programs import TRUE, python, shell

MIB = 1 << 20
HOLD = "data = bytearray(100 << 20); print('held', flush=True); import time; time.sleep(30)"
SLEEP = ["/usr/bin/sleep", "30"]


def build_policy(**limits: Any) -> Policy:
    return Policy(limits={"grace": 0.2, "wall_time": 60, **limits})


async def said(executor: Executor, job: Job, text: bytes) -> None:
    async with asyncio.timeout(20):
        async for data in executor.follow(job.id):
            if text in data:
                return


async def ended(job: Job) -> JobRecord:
    async with asyncio.timeout(30):
        return await job.wait()


def limits_of(executor: Executor, job: Job) -> Limits:
    return executor._live[job.id].budget.limits


async def test_less_memory_than_a_job_holds_ends_it_by_the_new_limit() -> None:
    async with Executor(build_policy(memory=512 * MIB)) as executor:
        job = await executor.start(python(HOLD))
        await said(executor, job, b"held")
        held = await job.update_limits(memory="300M")
        assert held.memory == 300 * MIB
        assert not (await job.wait(1)).settled  # it has room
        await job.update_limits(memory=64 * MIB)
        record = await ended(job)
    assert isinstance(record.outcome, OutOfMemory)
    assert record.outcome.limit == 64 * MIB
    assert record.sentence().startswith("killed: out of memory, 64 MiB limit, peak ")
    assert [note.partition(": ")[2] for note in record.notes] == ["memory 512M → 300M", "memory 300M → 64M"]


async def test_a_deadline_that_is_moved_holds_and_one_that_has_passed_ends_the_job_at_once() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(SLEEP)
        await executor.run(["/usr/bin/sleep", "0.5"])
        began = time.monotonic()
        await job.update_limits(wall_time=0.4)
        record = await ended(job)
        assert time.monotonic() - began < 5
    assert isinstance(record.outcome, TimedOut)
    assert record.sentence() == "timed out after 0.4 s"


async def test_the_host_may_widen_up_to_its_policy_and_a_caller_may_not() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(["/usr/bin/sleep", "2"], timeout=1, owner="ann")
        with pytest.raises(NotAllowed, match="wall_time: 10s is wider than 1s"):
            await executor.update_limits(job.id, caller="ann", wall_time=10)
        with pytest.raises(NotAllowed, match="at most 60s"):
            await executor.update_limits(job.id, wall_time=61)
        await executor.update_limits(job.id, wall_time=10)
        record = await ended(job)
        assert record.outcome == Exited(0)
        other = await executor.start(SLEEP, owner="ann")
        await executor.update_limits(other.id, caller="ann", wall_time=0.1)
        assert (await ended(other)).sentence() == "timed out after 0.1 s"


async def test_limits_that_were_not_set_hold_from_then_on_and_are_named() -> None:
    async with Executor(build_policy()) as executor:
        spinning, silent = await executor.start(shell("while :; do :; done")), await executor.start(SLEEP)
        await spinning.update_limits(cpu_time=0.3)
        await silent.update_limits(idle_time=0.3)
        records = [await ended(job) for job in (spinning, silent)]
    assert [record.sentence() for record in records] == ["timed out after 0.3 s of CPU time", "timed out after 0.3 s without output"]
    assert (records[0].isolation["cpu_time"], records[1].isolation["idle_time"]) == ("cpu_time.cgroup", "idle_time.supervisor")
    assert "cpu_time" not in records[1].isolation
    assert {"namespace.pid", "seccomp"} <= set(records[0].isolation)


async def test_an_output_cap_that_is_lowered_keeps_exactly_that_much() -> None:
    async with Executor(build_policy(output=10 * MIB)) as executor:
        job = await executor.start(shell("echo begun; read; yes"), stdin=None)
        record = await ended(job)
        assert record.outcome is not None
        slow = await executor.start(python("import time, os\nwhile True: os.write(1, b'x' * 999 + b'\\n'); time.sleep(0.001)"))
        await said(executor, slow, b"x")
        await slow.update_limits(output=1 * MIB)
        record = await ended(slow)
        assert isinstance(record.outcome, OutputLimited)
        assert (record.outcome.limit, record.stdout_bytes) == (MIB, MIB)
        assert (record.usage.output_bytes or {})["stdout"] == MIB


async def test_a_cap_below_what_is_there_is_refused_and_nothing_has_changed() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(shell("echo 0123456789; sleep 30"))
        await said(executor, job, b"9")
        with pytest.raises(InvalidRequest, match="stdout has 11 bytes already") as refused:
            await job.update_limits(output=10, memory="100M", wall_time=1)
        assert refused.value.field == "output"
        assert limits_of(executor, job) == executor.policy.limits
        assert not (await job.wait(1.5)).settled
        await job.update_limits(output=11)
        record = await job.kill()
    assert [note.partition(": ")[2] for note in record.notes] == ["output 10M → 11B"]


async def test_a_tail_keeps_its_cap() -> None:
    async with Executor(build_policy().replace(overflow="keep-tail")) as executor:
        job = await executor.start(SLEEP)
        with pytest.raises(InvalidRequest, match="keeps its tail"):
            await job.update_limits(output=10)
        await job.kill()


async def test_what_nothing_here_could_change_is_refused_whole() -> None:
    """Where a controller is missing; where all are there, each of them is changed in tests/vm."""
    needs = {"processes": ("pids", 10), "cpus": ("cpu", 0.5), "cpu_weight": ("cpu", 50), "cpuset": ("cpuset", "0")}
    async with Executor(build_policy()) as executor:
        assert executor._engine is not None
        controllers = executor._engine.tree.controllers
        job = await executor.start(SLEEP)
        for name, (controller, value) in needs.items():
            if controller in controllers:
                continue
            with pytest.raises(HostUnfit, match=f"{name} cannot be changed.*no {controller} controller") as refused:
                await job.update_limits(memory="64M", **{name: value})
            assert refused.value.hint
            assert limits_of(executor, job) == executor.policy.limits
        record = await job.kill()
    assert record.notes == ()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({}, InvalidRequest, "no limit is given"),
        ({"memory": "512"}, PolicyError, "write '512M'"),
        ({"memory": -1}, PolicyError, "out of range"),
        ({"memory": 0}, PolicyError, "out of range"),
        ({"wall_time": float("nan")}, PolicyError, "not a finite number"),
        ({"cpus": "0.5 cpu"}, PolicyError, "write 0.5"),
        ({"tmp_size": "1M"}, InvalidRequest, "while the job runs"),
        ({"walltime": 1}, PolicyError, "did you mean 'wall_time'"),
        ({"memory": "1G"}, NotAllowed, "at most 512M"),
        ({"wall_time": None}, NotAllowed, "at most 60s"),
    ],
)
async def test_what_is_wrong_is_refused_in_words_and_nothing_has_changed(
    changes: dict[str, Any], error: type[StockadeError], says: str
) -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(SLEEP)
        with pytest.raises(error, match=says):
            await job.update_limits(**changes)
        assert limits_of(executor, job) == executor.policy.limits
        assert (await job.kill()).notes == ()


async def test_a_job_that_has_ended_or_is_not_there_has_no_limits_to_change() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(TRUE, owner="ann")
        await job.wait()
        with pytest.raises(InvalidRequest, match="has ended"):
            await job.update_limits(wall_time=1)
        for unknown, caller in (("nosuch", "ann"), (job.id, "bob")):
            with pytest.raises(UnknownJob):
                await executor.update_limits(unknown, caller=caller, wall_time=1)
        dying = await executor.start(shell("trap '' TERM; echo ready; while :; do sleep 0.1; done"))
        await said(executor, dying, b"ready")
        killing = asyncio.create_task(dying.kill(grace=1))
        await asyncio.sleep(0)
        while executor._live[dying.id].ending.cause is None:
            await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="is being ended"):
            await dying.update_limits(wall_time=1)
        assert (await killing).settled


async def test_many_changes_at_once_come_one_after_the_other() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(SLEEP)
        await asyncio.gather(*(job.update_limits(wall_time=50 - number, memory=(400 - number) * MIB) for number in range(20)))
        assert limits_of(executor, job).wall_time == 31
        record = await job.kill()
    assert len(record.notes) == 20


async def test_who_is_cancelled_while_changing_has_changed_all_or_nothing() -> None:
    async with Executor(build_policy()) as executor:
        job, cancelled = await executor.start(SLEEP), 0
        for number in range(10):
            before = limits_of(executor, job)
            updating = asyncio.create_task(job.update_limits(wall_time=50 - number, memory=(400 - number) * MIB))
            for _ in range(number):
                await asyncio.sleep(0)
            updating.cancel()
            await asyncio.wait({updating})
            cancelled += updating.cancelled()
            now = limits_of(executor, job)
            assert (now == before) is (now.wall_time == before.wall_time) is (now.memory == before.memory)
        await job.kill()
    assert cancelled > 1
