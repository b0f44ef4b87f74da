"""What a job may do to a disk, on a disk of the machine's own (ext4): throttled for real, and counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade import Executor, Policy, Result
from support.programs import shell

pytestmark = pytest.mark.vm
MIB = 1 << 20
WRITE = "dd if=/dev/zero of=big bs=512K count=8 oflag=direct conv=notrunc status=none"
READ = "dd if=big of=/dev/null bs=512K iflag=direct status=none"


def device_of(path: Path) -> str:
    number = os.stat(path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


async def run(workspace: Path, script: str, *io: str) -> Result:
    policy = Policy(workspace=str(workspace), limits={"wall_time": 120, "io": io})
    async with Executor(policy) as executor:
        return await executor.run(shell(script))


async def test_a_disk_is_written_and_read_no_faster_than_its_caps(workspace: Path) -> None:
    """4 MiB each way at 1 MiB/s need 3 s at least; control: without the caps they do not."""
    free = await run(workspace, f"{WRITE} && {READ}")
    by_path = await run(workspace, WRITE, f"{workspace} wbps=1M")
    by_number = await run(workspace, READ, f"{device_of(workspace)} rbps=1048576")
    for result in (free, by_path, by_number):
        assert result.ok, result.stderr
    assert by_path.usage.wall > 3 > free.usage.wall
    assert by_number.usage.wall > 3
    assert {layer: by_path.isolation.get(layer) for layer in ("io",)} == {"io": "io.cgroup"}
    assert (by_path.usage.io_written or 0) >= 4 * MIB
    assert (by_number.usage.io_read or 0) >= 4 * MIB
    assert (by_number.usage.io_written or 0) < MIB


async def test_what_is_written_through_the_page_cache_is_the_job_s_too(workspace: Path) -> None:
    """Written back later, on its account; the caps hold for that as well."""
    script = "head -c 4M /dev/zero >big; sync big"
    result = await run(workspace, script, f"{workspace} wbps=1M")
    assert result.ok, result.stderr
    assert result.usage.wall > 3
    assert (result.usage.io_written or 0) >= 4 * MIB


async def test_caps_of_a_disk_are_changed_while_a_job_uses_it(workspace: Path) -> None:
    """Tightened to what would take an hour, the job can still be ended."""
    policy = Policy(workspace=str(workspace), limits={"wall_time": 120, "io": [f"{workspace} wbps=64M"]})
    async with Executor(policy) as executor:
        job = await executor.start(shell(f"echo begun; while :; do {WRITE}; echo; done"))
        async for _ in executor.follow(job.id):
            break
        held = await executor.update_limits(job.id, io=[f"{workspace} wbps=4K"])
        record = await job.kill(grace=0)
    assert held.io == (f"{workspace} wbps=4096",)
    assert record.outcome is not None
    assert record.outcome.kind == "killed"
