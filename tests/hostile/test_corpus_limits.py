"""Public bug reports about jobs that take all there is; here what holds without controllers, tests/vm has what needs them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from stockade import Executor, Policy
from stockade.bank.taking import Harvest, take_files
from stockade.bank.trees import remove_tree
from stockade.launcher.outcome import Exited, Killed, OutOfMemory, TimedOut
from support.corpus import observed, place, verdict
from support.limits import MIB, amounts, answer_times, trivial_time, until_said
from support.programs import TRUE, python, shell
from support.waiting import SLOWNESS

THREADS = """
import _thread, os, time
for count in range(100):
    try: _thread.start_new_thread(time.sleep, (20,))
    except RuntimeError: break
os.write(1, b"%d\\n" % count)
os._exit(0)
"""
SLEEP = ["/usr/bin/sleep", "60"]


def policy(workspace: Path, **limits: object) -> Policy:
    return Policy(workspace=str(workspace), limits={"wall_time": 40 * SLOWNESS, "grace": 0.3, **limits})


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.case("c01")
async def test_a_child_over_the_memory_ends_the_job_by_name_and_no_other(workspace: Path) -> None:
    """Control: with room for all that the child takes, it ends by itself and its parent sees that nothing held it."""
    async with Executor(policy(workspace, memory=128 * MIB)) as executor:
        program = place("c01", workspace)
        idle = await executor.start(SLEEP)
        result = await executor.run([program], env={"MAX_MB": "1024"})
        assert not (await executor.get(idle.id)).settled
        await idle.kill()
    assert isinstance(result.outcome, OutOfMemory)
    assert (result.outcome.limit, (result.outcome.peak or 0) > 100 * MIB) == (128 * MIB, True)
    async with Executor(policy(workspace, memory=512 * MIB)) as executor:
        control = await executor.run([program], env={"MAX_MB": "64"})
    assert verdict(control.stdout).startswith("FAIL no memory limit below 64 MiB")


@pytest.mark.case("c02")
async def test_memory_in_files_is_bounded_by_the_places_and_given_back(workspace: Path) -> None:
    """The places are smaller than the limit, so each ends in ENOSPC; a memory file has no size but the job's limit.

    Where memory is sampled, one that is filled and let go between two looks may pass, so the end may be either; that a memory file
    which is held ends the job is in tests/kernel/test_sampled_memory.py, and the kernel's own limit in tests/vm. That the host's shared memory is what it was is judged in tests/vm, where nothing else uses any.
    """
    async with Executor(policy(workspace, memory=192 * MIB, tmp_size=48 * MIB, shm_size=40 * MIB)) as executor:
        program = place("c02", workspace)
        names = sorted(os.listdir("/dev/shm"))
        results = [await executor.run([program], env={"MAX_MB": "512"}) for _ in range(2)]
    for result in results:
        assert isinstance(result.outcome, OutOfMemory | Exited)
        assert amounts(result.stdout).items() >= {"dev-shm": 40, "tmp": 48, "run": 0}.items()
    assert sorted(os.listdir("/dev/shm")) == names


@pytest.mark.case("c04")
async def test_a_full_process_limit_holds_up_nothing_of_ours(workspace: Path) -> None:
    async with Executor(policy(workspace, processes=64)) as executor:
        job = await executor.start([place("c04", workspace)])
        await until_said(executor, job, b"fork: ", "stderr")
        began = time.monotonic()
        assert not (await executor.get(job.id)).settled
        assert b"fork: " in (await executor.read_bytes(job.id, "stderr")).data
        assert (await executor.run(TRUE)).ok
        crowd = executor._live[job.id].tree
        assert crowd is not None
        assert len(await asyncio.to_thread(crowd.leaf.processes)) <= 65  # and init
        record = await job.kill()
        assert time.monotonic() - began < 15 * SLOWNESS
        assert isinstance(record.outcome, Killed)
        threads = await executor.run(python(THREADS))
        assert threads.stdout == b"63\n"  # with the main thread: 64


@pytest.mark.case("c04")
async def test_a_full_process_limit_ends_by_the_deadline(workspace: Path) -> None:
    async with Executor(policy(workspace, processes=64, wall_time=2)) as executor:
        began = time.monotonic()
        result = await executor.run([place("c04", workspace)])
        assert time.monotonic() - began < 15 * SLOWNESS
    assert isinstance(result.outcome, TimedOut)


@pytest.mark.case("c05")
async def test_spinning_on_every_core_starves_neither_supervisor_nor_jobs(workspace: Path) -> None:
    async with Executor(policy(workspace, processes=32 * (os.cpu_count() or 1) + 64)) as executor:
        program = place("c05", workspace)
        idle, limited = await executor.start(SLEEP), await executor.start(SLEEP, timeout=4)
        began = time.monotonic()
        jobs = [await executor.start([program], env={"LIFE": "6"}) for _ in range(3)]
        for job in jobs:
            await until_said(executor, job, b"READY")
        assert max(await answer_times(executor, idle)) < 2 * SLOWNESS
        assert await trivial_time(executor) < 15 * SLOWNESS
        record = await limited.wait()
        assert isinstance(record.outcome, TimedOut)
        assert 3.5 < (record.duration or 0) < 15  # without a cpu controller all share two cores
        results = await asyncio.gather(*(job.result() for job in jobs))
        await idle.kill()
        wall = time.monotonic() - began
    for result in results:
        assert observed(result.stdout, "nice -20") == "refused: Operation not permitted"
        assert observed(result.stdout, "SCHED_FIFO") == "refused: Operation not permitted"
        said = float(observed(result.stdout, "children cpu=").split()[0])
        used = (result.usage.user or 0) + (result.usage.system or 0)
        assert said * 0.9 - 1 < used < wall * (os.cpu_count() or 1)


@pytest.mark.case("c06")
@pytest.mark.parametrize("where", ["/tmp", "/home/job", "/dev/shm"])
async def test_no_scratch_place_takes_more_than_its_size(workspace: Path, where: str) -> None:
    """The three are file systems of the job's own; meanwhile another job writes 10 MiB to the host."""
    limits = {"memory": None, "tmp_size": 32 * MIB, "home_size": 32 * MIB, "shm_size": 32 * MIB}
    async with Executor(policy(workspace, **limits)) as executor:
        program = place("c06", workspace)
        free = os.statvfs(workspace)
        filling = await executor.start(shell(f"P=$PWD/{program}; cd {where} && exec $P"))
        other = await executor.run(shell("head -c 10M /dev/zero >other && stat -c %s other"))
        result = await filling.result()
    assert other.stdout == b"10485760\n"
    assert verdict(result.stdout) == "PASS limited"
    assert observed(result.stdout, "fallocate") == "ENOSPC"
    assert observed(result.stdout, "many files") == "ENOSPC"
    writable = {place for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/") if "ok" in observed(result.stdout, f"write in {place} ")}
    assert writable <= {"/tmp", "/var/tmp", "/dev/shm"}
    assert (free.f_bavail - os.statvfs(workspace).f_bavail) * free.f_frsize < 64 * MIB


@pytest.mark.case("c06")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")
async def test_a_workspace_with_a_size_of_its_own_fills_without_harm(tmp_path: Path) -> None:
    """A workspace is the host's directory and has the size that the host gives it; bank and registry lie elsewhere."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=1777", "none", str(small)], check=True)
    try:
        async with Executor(policy(small, memory=None)) as executor:
            result = await executor.run([place("c06", small)])
            assert (await executor.run(TRUE)).ok
        assert verdict(result.stdout) == "PASS limited"
        assert observed(result.stdout, "many files") == "ENOSPC"
        assert sum(file.stat().st_blocks * 512 for file in small.iterdir()) <= 48 * MIB
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.case("c06")
async def test_a_file_size_limit_holds_in_the_workspace(workspace: Path) -> None:
    """Of each file: many files are not limited by it, which is why `CAP` is small here."""
    async with Executor(policy(workspace, file_size=8 * MIB)) as executor:
        result = await executor.run([place("c06", workspace)], env={"CAP": str(64 * MIB)})
    assert observed(result.stdout, "fallocate") in ("EFBIG", f"ended by signal {25}")
    assert all(path.stat().st_size <= 8 * MIB for path in workspace.iterdir())


def taken(workspace: Path, stored: Path, paths: list[str] | None = None) -> Harvest:
    """What the bank takes out of a workspace."""
    stored.mkdir()

    def target(_: str) -> tuple[str, int]:
        name = str(len(os.listdir(stored)))
        return name, os.open(stored / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)

    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return take_files(root, paths, target)
    finally:
        os.close(root)


def remove(workspace: Path) -> None:
    parent = os.open(workspace.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        remove_tree(parent, workspace.name)
    finally:
        os.close(parent)


@pytest.mark.case("c08")
async def test_files_with_more_size_than_bytes_are_refused_by_size(workspace: Path, tmp_path: Path) -> None:
    async with Executor(policy(workspace)) as executor:
        result = await executor.run([place("c08", workspace)])
    assert result.outcome == Exited(0)
    before, began = await asyncio.to_thread(resident), time.monotonic()
    harvest = await asyncio.to_thread(taken, workspace, tmp_path / "stored")
    asked = await asyncio.to_thread(taken, workspace, tmp_path / "asked", ["c08.1TiB", "c08.4GiB-tail"])
    assert time.monotonic() - began < 5 * SLOWNESS
    assert await asyncio.to_thread(resident) - before < 64 * MIB
    made = {path.name for path in workspace.iterdir() if path.stat().st_size > 1 << 30}
    assert made >= {"c08.4GiB-tail"}
    assert {each.path for each in harvest.taken} == {path.name for path in workspace.iterdir()} - made
    refused = {refusal.path: refusal.reason for refusal in harvest.refused}
    assert {path for path, reason in refused.items() if "bytes" in reason or "MiB" in reason} >= made, refused
    assert (asked.taken, {refusal.path for refusal in asked.refused}) == ((), {"c08.1TiB", "c08.4GiB-tail"})
    assert sum(file.stat().st_blocks for file in tmp_path.rglob("*") if file.is_file()) * 512 < MIB


@pytest.mark.case("c10")
async def test_descriptors_used_up_by_four_jobs_are_missed_by_nobody_else(workspace: Path) -> None:
    async with Executor(policy(workspace, open_files=4096)) as executor:
        program = place("c10", workspace)
        jobs = [await executor.start([program]) for _ in range(4)]
        for job in jobs:
            await until_said(executor, job, b"then=Too many open files")
        assert max(await answer_times(executor, jobs[0], count=10)) < 0.2 * SLOWNESS
        fresh = "import os, select, ctypes\nfor n in range(50): os.pipe()\nselect.epoll(); assert ctypes.CDLL(None).inotify_init() > 0; print('ok')"
        assert (await executor.run(python(fresh))).stdout == b"ok\n"
        results = await asyncio.gather(*(job.result() for job in jobs))
    assert [verdict(result.stdout) for result in results] == ["PASS"] * 4
    assert {observed(result.stdout, "soft=").split()[0] for result in results} == {"4096"}


@pytest.mark.case("c12")
async def test_whatever_a_job_leaves_can_be_listed_and_is_removed(workspace: Path, tmp_path: Path) -> None:
    modes = {path: os.stat(path).st_mode for path in ("/etc", "/etc/passwd")}
    async with Executor(policy(workspace)) as executor:
        result = await executor.run([place("c12", workspace)])
    assert result.outcome == Exited(0)
    assert verdict(result.stdout) == "INFO"
    assert observed(result.stdout, "tmpfs mount") == "EPERM"
    assert {observed(result.stdout, "immutable"), observed(result.stdout, "append-only")} <= {"EPERM", "EACCES", "ENOTTY", "EOPNOTSUPP"}
    odd = {os.fsencode(name) for name in os.listdir(workspace / "c12")}
    assert odd >= {b"-rf", b"new\nline", b"bad\xff\xfeutf8", b"x" * 255, b" ", b"*", b"$(id)", b"..."}
    async with asyncio.timeout(10 * SLOWNESS):  # nobody writes to the fifo
        harvest = await asyncio.to_thread(taken, workspace, tmp_path / "stored")
    assert {os.fsencode(each.path) for each in harvest.taken} >= {b"c12/bad\xff\xfeutf8", b"c12/new\nline", b"c12/gomod/pkg@v1/sub/x.go"}
    refused = {refusal.path: refusal.reason for refusal in harvest.refused}
    assert (refused["c12/fifo"], refused["c12/sock"]) == ("it is a fifo", "it is a socket")
    assert refused["c12/link-to-etc"] == refused["c12/loop"] == "it is a symbolic link"
    await asyncio.to_thread(remove, workspace)
    assert not workspace.exists()
    assert {path: os.stat(path).st_mode for path in modes} == modes
