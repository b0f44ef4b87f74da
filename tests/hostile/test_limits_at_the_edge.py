"""Limits at their smallest and largest, and jobs that use them up in every way; here what holds without controllers too."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import InvalidRequest, LaunchFailed, PolicyError
from stockade.launcher.outcome import Exited, Killed, OutOfMemory, OutputLimited, TimedOut
from stockade.policy.model import MAX_BYTES, MAX_CPUS, MAX_OPEN_FILES, MAX_PROCESSES, MAX_SECONDS
from support.limits import until_said
from support.programs import TRUE, python, shell
from support.waiting import SLOWNESS

MIB = 1 << 20
SIZES = ("memory", "memory_high", "output", "file_size", "tmp_size", "home_size", "shm_size")
COUNTS = ("processes", "open_files", "tmp_inodes", "home_inodes", "cpu_weight")
TIMES = ("wall_time", "cpu_time", "idle_time", "grace")

# Sixteen processes that fork as fast as they can for two seconds, each child for a moment; each prints how many it made and was refused.
RACE = """
import os, time
end = time.monotonic() + 2
refused = made = 0
for _ in range(4):
    try: os.fork()
    except OSError: pass
while time.monotonic() < end:
    try: pid = os.fork()
    except OSError: refused += 1
    else:
        if pid == 0:
            time.sleep(0.02)
            os._exit(0)
        made += 1
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except OSError: pass
os.write(1, b"%d %d\\n" % (made, refused))
"""
# Takes every process that it can have, each of which wants one more for ever, and ignores to be asked to end.
SATURATE = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0: continue
    except OSError:
        os.write(1, b"full\\n")
        break
while True:
    try:
        if os.fork() == 0: time.sleep(0.01); os._exit(0)
        os.waitpid(-1, os.WNOHANG)
    except OSError: time.sleep(0.001)
"""
# Kernel memory by pipes, filled as far as they take it without waiting; prints the bytes in them.
PIPES = """
import fcntl, os, time
total, kept = 0, []
try:
    while len(kept) < 2000:
        ends = os.pipe()
        kept.append(ends)
        os.set_blocking(ends[1], False)
        try: fcntl.fcntl(ends[1], 1031, 1 << 20)
        except OSError: pass
        try:
            while True: total += os.write(ends[1], bytes(65536))
        except BlockingIOError: pass
except OSError as error: print(error.strerror)
print(len(kept), total, flush=True)
"""


def build_policy(**limits: Any) -> Policy:
    return Policy(limits={"grace": 0.2, "wall_time": 30 * SLOWNESS, **limits})


@pytest.mark.parametrize("name", [*SIZES, *COUNTS, *TIMES, "cpus"])
@pytest.mark.parametrize(
    "value", [0, -1, -(1 << 63), 1 << 64, 10**400, float("nan"), float("inf"), float("-inf"), True, "-1", "1e3M", "512 MB", b"1"]
)
def test_what_no_limit_can_be_is_refused_with_its_name_its_value_and_what_would_do(name: str, value: Any) -> None:
    if name == "grace" and value == 0:
        value = -0.5
    with pytest.raises(PolicyError) as refused:
        Policy(limits={name: value})
    assert refused.value.field == f"limits.{name}"
    assert "give" in str(refused.value) or "write" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("memory", "512", "write '512M'"),
        ("memory", "512 MB", "write '512M' or '512MiB'"),
        ("memory", 512, "give 4M to 4E"),
        ("memory", 1.5, "'512M'"),
        ("cpus", "0.5 cpu", "write 0.5"),
        ("cpus", "500m", "write 0.5"),
        ("cpus", "50%", "such as 0.5"),
        ("wall_time", "30", "write '30s'"),
        ("wall_time", "30 seconds", "'90s'"),
        ("processes", "256", "without quotes"),
        ("io", ["254:0 rbps=10MB"], "'10M' or '10MiB'"),
        ("io", ["254:0 riops=10M"], "254:0 rbps=1048576"),
        ("io", ["sda rbps=1"], "<path> wbps=<size>"),
        ("cpuset", "0-", "'0-3,8'"),
        ("count_frozen", "no", "give true or false"),
        ("memory_oom_group", 1, "give true or false"),
    ],
)  # fmt: skip
def test_a_mistaken_unit_is_answered_with_what_would_be_right(name: str, value: Any, right: str) -> None:
    with pytest.raises(PolicyError) as refused:
        Policy(limits={name: value})
    assert refused.value.field == f"limits.{name}"
    assert right in str(refused.value)


@pytest.mark.parametrize(
    ("limits", "field", "says"),
    [
        ({"cpuset": "0-8191"}, "limits.cpuset", "which jobs cannot have here"),
        ({"cpuset": "4000"}, "limits.cpuset", "names CPU 4000"),
        ({"io": ["7777:0 rbps=1048576"]}, "limits.io", "no block device 7777:0"),
        ({"io": ["/nowhere/at/all wbps=1M"]}, "limits.io", "No such file"),
        ({"io": ["/proc wbps=1M"]}, "limits.io", "no block device of this host"),
    ],
)
async def test_what_this_host_does_not_have_is_refused_before_anything_happens(limits: dict[str, Any], field: str, says: str) -> None:
    async with Executor(build_policy(**limits)) as executor:
        with pytest.raises(InvalidRequest, match=says) as refused:
            await executor.run(TRUE)
        assert await executor.list() == ()
    assert refused.value.field == field
    assert refused.value.hint


async def test_a_job_whose_cgroup_the_kernel_refuses_settles_as_failed_and_leaves_nothing() -> None:
    """The kernel's own refusal: the cgroup around all jobs may have no more below it."""
    async with Executor(build_policy(), config=from_environment(standby=False)) as executor:
        assert (await executor.run(TRUE)).ok
        assert executor._engine is not None
        around = Path(executor._engine.tree.path)
        before = await asyncio.to_thread(os.listdir, around)
        await asyncio.to_thread((around / "cgroup.max.descendants").write_text, "1")  # that of the fork server
        job = await executor.start(TRUE)
        record = await job.wait()
        with pytest.raises(LaunchFailed) as refused:
            await job.result()
        assert await asyncio.to_thread(os.listdir, around) == before
        await asyncio.to_thread((around / "cgroup.max.descendants").write_text, "max")
        assert (await executor.run(TRUE)).ok
    assert (record.state, record.error is not None and record.error.code) == ("failed", "launch_failed")
    assert (refused.value.step, refused.value.call, refused.value.errno) == ("cgroup", "mkdir", errno.EAGAIN)


async def test_the_largest_limits_are_taken_by_the_kernel() -> None:
    huge = {
        **dict.fromkeys(("memory", "output", "file_size", "tmp_size", "home_size", "shm_size"), MAX_BYTES),
        **dict.fromkeys(("wall_time", "cpu_time", "idle_time"), MAX_SECONDS),
        "processes": MAX_PROCESSES,
        "cpus": MAX_CPUS,
        "cpu_weight": 10_000,
        "open_files": MAX_OPEN_FILES,
        "cpuset": "0",
    }
    async with Executor(build_policy(**huge)) as executor:
        result = await executor.run(shell("echo fine"))
    assert (result.outcome, result.stdout) == (Exited(0), b"fine\n")


async def test_the_smallest_limits_end_a_job_by_their_names_and_never_by_accident() -> None:
    async def outcome(argv: list[str], **limits: Any) -> Any:
        return (await (await executor.start_with_policy(argv, build_policy(**limits))).result()).outcome

    async with Executor(build_policy()) as executor:
        assert await outcome(TRUE, processes=1) == Exited(0)
        assert await outcome(shell("/usr/bin/true; exit 7"), processes=1) != Exited(7)  # bash cannot fork, says so and fails
        ended = await outcome(["/usr/bin/sleep", "9"], wall_time=0.001)
        assert isinstance(ended, TimedOut)
        ended = await outcome(shell("while :; do :; done"), cpu_time=0.001)
        assert (ended.kind, ended.clock) == ("timed_out", "cpu")
        ended = await outcome(shell("echo 12; sleep 9"), output=1)
        assert isinstance(ended, OutputLimited)
        assert await outcome(shell("echo 1 >/tmp/x && exit 3"), tmp_size=4096, tmp_inodes=16) == Exited(3)
        assert await outcome(shell(": <<<x; exit 3"), open_files=8) == Exited(3)
        ended = await outcome(shell("exec dd if=/dev/zero of=/tmp/x bs=2 count=1 status=none"), file_size=1)
        assert ended.sentence() == "killed by SIGXFSZ: a file grew past the file size limit, 1 byte"


async def test_forks_that_race_for_the_last_process_never_get_beyond_it() -> None:
    async with Executor(build_policy(processes=24)) as executor:  # eight places to race for
        job = await executor.start(python(RACE))
        most = 0
        tree = None
        while not (await job.wait(0.01)).settled:
            tree = tree or (executor._live[job.id].tree if job.id in executor._live else None)
            if tree is not None and tree.leaf.directory >= 0:
                with contextlib.suppress(OSError):  # it goes at any time
                    most = max(most, await asyncio.to_thread(tree.leaf.count_threads))
        result = await job.result()
    made, refused = (sum(column) for column in zip(*(map(int, line.split()) for line in result.stdout.splitlines())))
    assert made > 0
    assert refused > 0
    assert 5 < most <= 25  # with init
    counted = result.usage.refused_forks
    assert counted is None or counted >= refused
    assert "processes limit: " in " ".join(result.record.notes) or counted is None


async def test_a_job_that_has_taken_its_last_process_is_frozen_signalled_killed_and_cleaned_up() -> None:
    async with Executor(build_policy(processes=40)) as executor:
        job = await executor.start(python(SATURATE))
        await until_said(executor, job, b"full")
        assert (await executor.run(TRUE)).ok
        assert await executor.freeze(job.id)
        assert await executor.thaw(job.id)
        assert await executor.signal(job.id, 15)
        began = time.monotonic()
        record = await job.kill()
        assert time.monotonic() - began < 15
        assert isinstance(record.outcome, Killed)
        assert (await executor.run(TRUE)).ok


async def test_the_page_cache_is_not_taken_for_memory_that_a_job_holds(workspace: Path) -> None:
    """The kernel gives it up when it is needed; a job may write and read a file of several times its memory limit."""
    script = "head -c 192M /dev/zero >big && sync big && cat big big | wc -c"
    async with Executor(build_policy(memory=64 * MIB).replace(workspace=str(workspace))) as executor:
        result = await executor.run(shell(script))
    (workspace / "big").unlink()
    assert (result.outcome, result.stdout) == (Exited(0), b"402653184\n")


async def test_kernel_memory_by_pipes_is_bounded_also_where_nothing_counts_it() -> None:
    """By fs.pipe-user-pages-soft: the job has an id of its own, and beyond that much each of its pipes has a page or two."""
    soft = int(Path("/proc/sys/fs/pipe-user-pages-soft").read_text()) * 4096
    async with Executor(build_policy(memory=256 * MIB, open_files=4096)) as executor:
        result = await executor.run(python(PIPES))
    if isinstance(result.outcome, OutOfMemory):  # a controller counts it
        return
    pipes, total = map(int, result.stdout.split()[-2:])
    assert pipes > 100
    assert total <= soft + pipes * 2 * 4096


async def test_limits_and_what_was_reached_are_told_alike_everywhere(tmp_path: Path) -> None:
    """The library, the record's JSON and the command line use the same words."""
    from support.cli import stockade

    script = "head -c 9M /dev/zero >/tmp/x; exec dd if=/dev/zero of=/dev/shm/y bs=1M count=3 status=none"
    policy = tmp_path / "policy.toml"
    policy.write_text("[limits]\nfile_size = '2M'\ntmp_size = '1M'\n")
    ran = await asyncio.to_thread(stockade, "run", "--json", "--policy", str(policy), "--", "bash", "-c", script)
    fields = json.loads(ran.stdout)
    assert fields["sentence"] == "killed by SIGXFSZ: a file grew past the file size limit, 2 MiB"
    assert fields["notes"] == ["/tmp was full: 1 MiB"]
    assert fields["usage"]["tmpfs_bytes"]["/tmp"] == MIB
