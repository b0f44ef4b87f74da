"""What a job may use, held by the mechanism that needs no controller: sampling, resource limits and sized file systems."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor, Policy
from stockade.jobs.reached import Reached
from stockade.launcher.outcome import Exited, OutOfMemory, Signaled
from support.hungry import ALLOCATE, FILL, FORK
from support.programs import python, shell
from support.waiting import SLOWNESS

MIB = 1 << 20


def build_policy(**limits: Any) -> Policy:
    return Policy(limits={"grace": 0.3, "wall_time": 30 * SLOWNESS, **limits})


async def test_more_memory_than_the_limit_ends_the_job_with_limit_and_peak() -> None:
    async with Executor(build_policy(memory=128 * MIB)) as executor:
        result = await executor.run(python(ALLOCATE))
        mechanism = result.isolation["memory"]
        control = await executor.run(python(ALLOCATE.replace("range(64)", "range(4)").replace("sleep(20)", "sleep(0.3)")))
    outcome = result.outcome
    assert isinstance(outcome, OutOfMemory)
    assert outcome.limit == 128 * MIB
    assert outcome.processes == 1 or (mechanism == "memory.cgroup" and (outcome.processes or 0) > 1)  # the kernel counts init too
    assert outcome.peak is not None
    assert outcome.peak > 120 * MIB
    assert "128 MiB limit" in outcome.sentence()
    assert (control.outcome, control.stdout) == (Exited(0), b"4\n")


async def test_memory_of_children_counts() -> None:
    family = f"import os, time\nfor _ in range(3): os.fork()\n{ALLOCATE.replace('range(64)', 'range(2)')}"
    async with Executor(build_policy(memory=128 * MIB)) as executor:
        result = await executor.run(python(family))
    assert isinstance(result.outcome, OutOfMemory)


async def test_processes_are_limited_and_the_job_is_told() -> None:
    async with Executor(build_policy(processes=20)) as executor:
        result = await executor.run(python(FORK))
    assert result.outcome == Exited(0)
    assert result.stdout == b"19 EAGAIN\n"  # with the program itself: twenty


async def test_the_limit_of_processes_is_each_job_s_own() -> None:
    async with Executor(build_policy(processes=20)) as executor:
        jobs = [await executor.start(python(FORK)) for _ in range(3)]
        results = [await job.result() for job in jobs]
    assert [result.stdout for result in results] == [b"19 EAGAIN\n"] * 3


async def test_a_bash_that_cannot_fork_is_killed_all_the_same(workspace: Path) -> None:
    async with Executor(build_policy(processes=10)) as executor:
        job = await executor.start(shell("echo READY; for ((i = 0; i < 300; i++)); do sleep 60 & done; wait"))
        async for data in executor.follow(job.id, "stderr"):
            if b"retry" in data or b"fork" in data:
                break
        assert (await executor.run(["/usr/bin/true"])).ok
        assert (await job.kill()).settled


async def test_a_process_that_has_as_many_files_open_as_it_may_is_told() -> None:
    """Control: with one less nothing is said."""
    program = "import os, sys, time\nfor n in range(int(sys.argv[1])): os.dup(1)\ntry: os.dup(1)\nexcept OSError: pass\ntime.sleep(2.5)"
    async with Executor(build_policy(open_files=100)) as executor:
        full, roomy = await asyncio.gather(*(executor.run(python(program, str(number))) for number in (96, 95)))
    assert full.record.notes == ("open files limit: a process had as many open as it may, 100",)
    assert full.record.reached == (Reached("open_files", 100),)
    assert (roomy.record.notes, roomy.outcome) == ((), Exited(0))


async def test_open_files_are_limited_for_each_process() -> None:
    source = "import os\nn = 3\ntry:\n    while n < 5000: n = os.dup(1) + 1\nexcept OSError as error: print(n, error.errno)"
    async with Executor(build_policy(open_files=100)) as executor:
        result = await executor.run(python(source))
    assert result.stdout == b"100 %d\n" % errno.EMFILE


async def test_a_file_that_grows_too_large_ends_its_writer_by_sigxfsz(workspace: Path) -> None:
    policy = build_policy(file_size=1 * MIB).replace(workspace=str(workspace))
    async with Executor(policy) as executor:
        result = await executor.run(["/usr/bin/dd", "if=/dev/zero", "of=big", "bs=65536", "count=64", "status=none"])
    assert result.outcome == Signaled(25, file_size=1 * MIB)
    assert result.record.sentence() == "killed by SIGXFSZ: a file grew past the file size limit, 1 MiB"
    assert (workspace / "big").stat().st_size == 1 * MIB


async def test_the_writable_places_are_sized_in_bytes_and_in_files() -> None:
    policy = build_policy(tmp_size=8 * MIB, tmp_inodes=64, home_size=4 * MIB, home_inodes=32, shm_size=2 * MIB)
    async with Executor(policy) as executor:
        result = await executor.run(python(FILL, "/tmp", "/home/job", "/dev/shm"))
    found = json.loads(result.stdout)
    assert {place: (size, why) for place, ((size, why), _) in found.items()} == {
        "/tmp": (8 * MIB, "ENOSPC"),
        "/home/job": (4 * MIB, "ENOSPC"),
        "/dev/shm": (2 * MIB, "ENOSPC"),
    }
    assert {place: why for place, (_, (_, why)) in found.items()} == dict.fromkeys(found, "ENOSPC")
    counts = {place: count for place, (_, (count, _)) in found.items()}
    assert counts["/tmp"] <= 64
    assert counts["/home/job"] <= 32
    assert counts["/dev/shm"] <= 4096


@pytest.mark.parametrize("place", ["/", "/run", "/home", "/etc", "/usr"])
async def test_nothing_else_can_be_written(place: str) -> None:
    async with Executor(build_policy()) as executor:
        result = await executor.run(shell(f"echo x >{place}/probe"))
    assert result.outcome == Exited(1)
    assert b"Permission denied" in result.stderr or b"Read-only" in result.stderr
