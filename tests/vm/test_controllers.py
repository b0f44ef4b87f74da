"""Limits held by the kernel's own controllers; needs cgroup version 2 with memory, pids and cpu (scripts/vm has them)."""

from __future__ import annotations

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited, OutOfMemory
from support.programs import python, shell

pytestmark = pytest.mark.vm
STRONG = {"memory.cgroup", "processes.cgroup", "cpu.cgroup", "kill.cgroup"}
MIB = 1 << 20

ALLOCATE = "data = bytearray({} << 20); print(len(data))"


async def test_the_controllers_are_in_force_and_named() -> None:
    async with Executor(Policy(require=STRONG, limits={"cpus": 0.5})) as executor:
        result = await executor.run(["/usr/bin/true"])
    assert {result.isolation[limit] for limit in ("memory", "processes", "cpus")} == {"memory.cgroup", "processes.cgroup", "cpu.cgroup"}
    assert (result.usage.peak_memory or 0) > MIB
    assert (result.usage.peak_processes or 0) >= 1


async def test_a_job_over_its_memory_dies_of_it_and_says_so() -> None:
    async with Executor(Policy(limits={"memory": 64 * MIB})) as executor:
        result = await executor.run(python(ALLOCATE.format(256)))
    outcome = result.outcome
    assert isinstance(outcome, OutOfMemory)
    assert outcome.limit == 64 * MIB
    assert 32 * MIB < (outcome.peak or 0) <= 64 * MIB
    assert (outcome.processes or 0) >= 1
    assert "out of memory, 64 MiB limit, peak" in outcome.sentence()


async def test_the_same_program_within_its_memory_ends_by_itself() -> None:
    async with Executor(Policy(limits={"memory": 512 * MIB})) as executor:
        result = await executor.run(python(ALLOCATE.format(256)))
    assert result.outcome == Exited(0)


async def test_a_child_that_eats_the_memory_takes_the_whole_job_with_it() -> None:
    script = f"python3 -c '{ALLOCATE.format(256)}'; echo went on"
    async with Executor(Policy(limits={"memory": 64 * MIB})) as executor:
        result = await executor.run(shell(script))
    assert isinstance(result.outcome, OutOfMemory)
    assert b"went on" not in result.stdout


@pytest.mark.parametrize("place", ["/dev/shm", "/tmp", "/home/job"])
async def test_memory_taken_through_a_tmpfs_counts(place: str) -> None:
    limits = {"memory": 64 * MIB, "tmp_size": "256M", "home_size": "256M", "shm_size": "256M"}
    async with Executor(Policy(limits=limits)) as executor:
        result = await executor.run(shell(f"head -c 128M /dev/zero >{place}/file"))
    assert isinstance(result.outcome, OutOfMemory)


async def test_no_more_processes_than_the_limit() -> None:
    count = "import os, time\nmade = 0\ntry:\n for _ in range(100):\n  if os.fork() == 0: time.sleep(30); os._exit(0)\n  made += 1\nexcept OSError as e:\n print(made, e.errno)"
    async with Executor(Policy(limits={"processes": 10})) as executor:
        result = await executor.run(python(count))
    assert result.stdout == b"9 11\n"  # with the program itself 10; then EAGAIN
    assert result.usage.peak_processes == 11  # and init


async def test_half_a_cpu_is_half_a_cpu() -> None:
    spin = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    async with Executor(Policy(limits={"cpus": 0.5})) as executor:
        result = await executor.run(python(spin))
    used = (result.usage.user or 0) + (result.usage.system or 0)
    assert used < 0.7 * (result.usage.wall or 0)
    assert (result.usage.throttled or 0) > 0.2


async def test_nothing_is_left_of_a_fork_bomb() -> None:
    bomb = "import os, time\nend = time.monotonic() + 20\nwhile time.monotonic() < end:\n try: os.fork()\n except OSError: pass"
    async with Executor(Policy(limits={"processes": 64, "wall_time": 3, "grace": 0.1})) as executor:
        result = await executor.run(python(bomb))
        assert result.outcome.kind == "timed_out"
        assert (await executor.run(["/usr/bin/true"])).ok
