"""Limits that only a controller can count, change or tell apart; cheap, since a machine that is emulated runs them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.jobs.reached import Reached
from stockade.launcher.outcome import Exited, Killed, OutOfMemory, TimedOut
from stockade.sandbox.spec import CgroupLimits
from support.limits import until_said
from support.programs import python, shell

pytestmark = pytest.mark.vm
MIB = 1 << 20
EAT = "python3 -S -c 'bytearray(80 << 20)'"
PIPES = """
import fcntl, os
kept = []
for _ in range(400):
    ends = os.pipe()
    kept.append(ends)
    os.set_blocking(ends[1], False)
    try:
        while True: os.write(ends[1], bytes(65536))
    except BlockingIOError: pass
print("kept", len(kept))
"""


def policy(**limits: object) -> Policy:
    return Policy(limits={"wall_time": 90, "grace": 0.3, **limits})


async def test_what_was_reached_is_counted_and_what_ended_it_is_told_apart() -> None:
    async with Executor(policy(processes=10, memory=24 * MIB, memory_oom_group=False)) as executor:
        forked = await executor.run(
            shell("for ((i = 0; i < 3; i++)); do (sleep 1 & sleep 1 & sleep 1 & sleep 1 & wait) & done; sleep 0.5; exit 0")
        )
        eaten = await executor.run(shell(f"{EAT}; echo went on"))
        roomy = Path(executor._engine.tree.path) if executor._engine is not None else Path()
        (roomy / "memory.max").write_text(str(56 * MIB))
        try:
            job = await executor.start_with_policy(shell(EAT), policy(memory=512 * MIB))
            around = (await job.result()).record
        finally:
            (roomy / "memory.max").write_text("max")
    (crowded,) = forked.record.reached
    assert (crowded.limit, crowded.bound, (crowded.count or 0) >= 1) == ("processes", 10, True)
    assert crowded.count == forked.usage.refused_forks
    # Only the child was killed, and the command went on.
    assert (eaten.outcome, eaten.stdout) == (Exited(0), b"went on\n")
    (oom,) = eaten.record.reached
    assert oom == Reached("memory", 24 * MIB, count=1, peak=eaten.usage.peak_memory)
    assert eaten.record.notes[0].startswith("out of memory, and the command went on: 1 process killed, 24 MiB limit, peak 2")
    # The cgroup around all jobs had no more, not this job's own.
    assert isinstance(around.outcome, Killed)
    assert (around.outcome.by, around.reached) == ("foreign", ())
    assert "within its own limit" in around.sentence()


async def test_kernel_memory_by_pipes_is_the_jobs_memory() -> None:
    async with Executor(policy(memory=24 * MIB)) as executor:
        result = await executor.run(python(PIPES))
        control = await executor.start_with_policy(python(PIPES), policy(memory=256 * MIB))
        within = await control.result()
    assert isinstance(result.outcome, OutOfMemory)
    assert within.stdout == b"kept 400\n"


async def test_limits_are_changed_in_the_kernel_all_or_none() -> None:
    async with Executor(policy(memory=256 * MIB, processes=50, cpus=2)) as executor:
        job = await executor.start(shell("echo ready; sleep 80"))
        await until_said(executor, job, b"ready")
        tree = executor._live[job.id].tree
        assert tree is not None
        changed = await job.update_limits(memory="128M", memory_high="100M", processes=20, cpus=0.5, cpu_weight=50, cpuset="0")
        files = ("memory.max", "memory.high", "pids.max", "cpu.max", "cpu.weight", "cpuset.cpus")
        written = {file: ((await asyncio.to_thread(tree.leaf.read, file)) or "").strip() for file in files}
        assert executor._engine is not None
        jobs = executor._engine.tree
        with pytest.raises(OSError, match=r"value 'x'") as refused:
            await asyncio.to_thread(jobs.make_leaf, "refused", CgroupLimits(memory_max=64 * MIB, cpuset_cpus="x"))
        assert (refused.value.filename, await asyncio.to_thread(Path(jobs.path, "refused").exists)) == ("cpuset.cpus", False)
        with pytest.raises(OSError, match=r"value 'x'"):
            await asyncio.to_thread(
                tree.leaf.change, CgroupLimits(memory_max=128 * MIB), CgroupLimits(memory_max=64 * MIB, cpuset_cpus="x")
            )
        kept = await asyncio.to_thread(tree.leaf.read, "memory.max")
        await job.update_limits(wall_time=0.1)
        record = await job.wait()
    assert changed.processes == 20
    assert written == {
        "memory.max": "134217728",
        "memory.high": "104857600",
        "pids.max": "21",
        "cpu.max": "50000 100000",
        "cpu.weight": "50",
        "cpuset.cpus": "0",
    }
    assert kept == "134217728\n"
    assert isinstance(record.outcome, TimedOut)
    assert "processes 50 → 20, cpus 2 → 0.5" in record.notes[0]
    assert record.isolation["cpuset"] == "cpuset.cgroup"


async def test_less_memory_than_a_running_job_holds_ends_it_by_the_kernel() -> None:
    hold = "data = bytearray(40 << 20); print('held', flush=True); import time; time.sleep(80)"
    async with Executor(policy(memory=256 * MIB)) as executor:
        job = await executor.start(python(hold))
        await until_said(executor, job, b"held")
        await job.update_limits(memory=24 * MIB)
        record = await job.wait()
    assert isinstance(record.outcome, OutOfMemory)
    assert record.outcome.limit == 24 * MIB
