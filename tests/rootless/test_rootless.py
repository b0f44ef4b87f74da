"""The same guarantees for a supervisor without any privilege."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import time
from errno import ETOOMANYREFS
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import CgroupEntry, from_environment
from stockade.errors import Closed
from stockade.launcher.outcome import Exited, Killed, OutOfMemory, Signaled, TimedOut
from support.corpus import CORPUS, place, verdict
from support.hungry import ALLOCATE, FORK, HOLD, WAYS
from support.programs import DAEMON, STUBBORN, TRUE, python, shell
from support.supervisors import Supervisor
from support.survivors import SURVIVORS, beats, members
from support.waiting import SLOWNESS, eventually, grows, until

# Its own privileges and namespaces, as JSON.
CONFESS = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
names = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
print(json.dumps({
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"], "seccomp": status["Seccomp"],
    "ids": [os.getresuid(), os.getresgid()],
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in names},
    "cgroup": open("/proc/self/cgroup").read(),
}))
"""
UNSHARE = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x10000000, 0x20000, 0x40000000):
    print(libc.unshare(flag), errno.errorcode.get(ctypes.get_errno()))
"""


def build_policy(workspace: Path | None = None, **limits: object) -> Policy:
    return Policy(workspace=None if workspace is None else str(workspace), limits={"grace": 0.3, "wall_time": 30 * SLOWNESS, **limits})


def test_these_tests_run_as_an_ordinary_user() -> None:
    assert os.getresuid()[0] != 0
    with open("/proc/self/status") as status:
        assert "CapEff:\t0000000000000000\n" in status.readlines()


async def test_a_program_runs_as_the_job_s_user_and_is_the_caller_outside(workspace: Path) -> None:
    async with Executor(build_policy(workspace)) as executor:
        result = await executor.run(shell("id -u; id -un; echo x >made; stat -c %u made"))
        assert (result.stdout, result.outcome) == (b"1000\njob\n1000\n", Exited(0))
        assert result.isolation["identity"] == "the caller's own id"
    assert (workspace / "made").stat().st_uid == os.geteuid()


async def test_a_job_has_no_capability_and_namespaces_of_its_own() -> None:
    async with Executor(build_policy()) as executor:
        found = json.loads((await executor.run(python(CONFESS))).stdout)
    assert found["capabilities"] == ["0000000000000000"] * 5
    assert (found["no_new_privs"], found["seccomp"]) == ("1", "2")
    assert found["ids"] == [[1000] * 3, [1000] * 3]
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in found["namespaces"]}
    assert not set(own.values()) & set(found["namespaces"].values())
    assert "0::/\n" in found["cgroup"]


async def test_nested_namespaces_are_refused() -> None:
    async with Executor(build_policy()) as executor:
        result = await executor.run(python(UNSHARE))
    assert result.stdout.split() == [b"-1", b"EPERM"] * 3


async def test_a_daemon_dies_with_its_job(workspace: Path) -> None:
    async with Executor(build_policy(workspace)) as executor:
        assert (await executor.run(python(DAEMON))).stdout == b"ready\n"
        last = (workspace / "alive").read_text()
        await executor.run(["/usr/bin/sleep", "0.3"])
        assert (workspace / "alive").read_text() == last


async def test_a_kill_reaches_every_process(workspace: Path) -> None:
    async with Executor(build_policy(workspace)) as executor:
        job = await executor.start(python(SURVIVORS))
        await eventually(lambda: all(beat.exists() for beat in beats(workspace)), "the survivors beat")
        record = await job.kill()
        assert isinstance(record.outcome, Killed)
        assert not await asyncio.to_thread(grows, beats(workspace))


async def test_a_deadline_ends_a_program_that_ignores_every_signal() -> None:
    async with Executor(build_policy(wall_time=0.5 * SLOWNESS)) as executor:
        result = await executor.run(python(STUBBORN))
    assert result.outcome == TimedOut("wall", 0.5 * SLOWNESS)


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.case(case)) for case in ("d05", "d12", "d13", "d14")])
async def test_a_hostile_program_finds_nothing(case: str, workspace: Path) -> None:
    async with Executor(build_policy(workspace)) as executor:
        neighbour = await executor.start(["/usr/bin/sleep", "30"])
        result = await executor.run([await asyncio.to_thread(place, case, workspace)])
        assert verdict(result.stdout).startswith("PASS")
        assert not (await executor.get(neighbour.id)).settled


# The size of a file that is mapped and not open is root's to know; a child of fork has nothing of shared memory resident either.
UNSEEN = {"shared memory of which nothing is resident", "shared memory that hops from process to process"}


@pytest.mark.parametrize("way", sorted(WAYS.keys() - UNSEEN))
async def test_memory_over_the_limit_ends_the_job_however_it_is_held(way: str) -> None:
    async with Executor(build_policy(memory="96M", tmp_size="512M", shm_size="512M")) as executor:
        result = await executor.run(python(WAYS[way] + HOLD))
    assert isinstance(result.outcome, OutOfMemory)


async def test_a_process_that_makes_itself_invisible_is_named() -> None:
    """Its descriptors are then root's to look at; what it has beside memory files counts all the same."""
    program = "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nfd = os.memfd_create('x'); os.write(fd, bytes(1 << 20)); time.sleep(1)"
    async with Executor(build_policy(memory="96M")) as executor:
        result = await executor.run(python(program))
    assert result.outcome == Exited(0)
    if result.isolation["memory"] == "memory.sampled":
        assert result.record.notes == ("memory files of a process that had made itself invisible (PR_SET_DUMPABLE) were not counted",)


async def test_memory_and_processes_are_limited_without_controllers() -> None:
    async with Executor(build_policy(memory="128M", processes=20)) as executor:
        large, wide = await executor.run(python(ALLOCATE)), await executor.run(python(FORK))
    assert isinstance(large.outcome, OutOfMemory)
    assert large.outcome.limit == 128 << 20
    assert wide.stdout == b"19 EAGAIN\n"


async def test_the_death_of_the_fork_server_ends_every_job(workspace: Path) -> None:
    async with Executor(build_policy(workspace)) as executor:
        engine = executor._engine
        assert engine is not None
        job = await executor.start(python(SURVIVORS))
        await eventually(lambda: all(beat.exists() for beat in beats(workspace)), "the survivors beat")
        os.kill(engine.server.pid, signal.SIGKILL)
        record = await job.wait(10 * SLOWNESS)
        assert record.outcome == Killed(by="foreign", detail="the fork server was killed, and every job with it")
        await eventually(lambda: not members(engine.tree.path), "nothing is left")
        assert not await asyncio.to_thread(grows, beats(workspace))
        with pytest.raises(Closed, match="fork server"):
            await executor.start(TRUE)


async def test_a_command_that_was_killed_by_somebody_says_so() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(shell("echo ready; exec sleep 30"))
        async for _ in executor.follow(job.id):
            break
        tree = executor._live[job.id].tree
        assert tree is not None
        os.kill((await asyncio.to_thread(tree.leaf.processes))[-1], signal.SIGKILL)
        assert (await job.wait(10 * SLOWNESS)).outcome == Signaled(9)


@pytest.mark.parametrize("entry", list(CgroupEntry))
async def test_both_ways_into_a_cgroup_hold_a_job(entry: CgroupEntry, workspace: Path) -> None:
    async with Executor(build_policy(workspace), config=from_environment(cgroup_entry=entry)) as executor:
        result = await executor.run(python(CONFESS))
        assert "0::/\n" in json.loads(result.stdout)["cgroup"]
        began = time.monotonic()
        job = await executor.start(python(SURVIVORS))
        await eventually(lambda: all(beat.exists() for beat in beats(workspace)), "the survivors beat")
        assert isinstance((await job.kill(grace=0)).outcome, Killed)
        assert not await asyncio.to_thread(grows, beats(workspace))
        assert time.monotonic() - began < 10 * SLOWNESS


def test_no_process_outlives_a_supervisor_that_was_killed(workspace: Path, tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "supervisor", os.environ["STOCKADE_CGROUP"], policy={"workspace": str(workspace)})
    for _ in range(3):
        supervisor.begin()
        job = supervisor.ask("start", python(SURVIVORS))
        until(lambda: all(beat.exists() for beat in beats(workspace)), "the survivors beat")
        supervisor.kill()
        until(lambda: not supervisor.processes(), "nothing is left in the cgroups")
        assert not grows(beats(workspace))
        for beat in beats(workspace):
            beat.unlink()
    with supervisor:
        assert supervisor.ask("status", job)["state"] == "lost"


async def test_a_workspace_of_somebody_else_cannot_be_written() -> None:
    async with Executor(Policy(workspace=str(CORPUS))) as executor:
        result = await executor.run(shell("ls | head -1; echo x >probe"))
    assert (result.outcome, result.stdout) == (Exited(1), b"_adapter.py\n")
    assert b"Permission denied" in result.stderr


# Sends descriptors that nobody receives, until the user may have no more on the way (unix(7), ETOOMANYREFS).
CLOG = """
import array, errno, socket, time
keep = []
try:
    while True:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        keep.append(pair)
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 253))])
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
time.sleep(60)
"""


def may_send() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            socket.send_fds(ours, [b"x"], [0])
        except OSError as error:
            return error.errno != ETOOMANYREFS
    return True


async def test_a_job_that_uses_up_the_users_descriptors_on_the_way_ends_no_other_job() -> None:
    """The kernel counts them for the user, which jobs are too: the launch that cannot be sent waits, and no job is lost by it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        async with Executor(build_policy(), config=from_environment(standby=False)) as executor:
            neighbour = await executor.start(shell("echo; exec sleep 60"))
            await anext(aiter(neighbour.follow()))
            hostile = await executor.start(python(CLOG))
            assert await anext(aiter(hostile.follow())) == b"ETOOMANYREFS\n"
            assert not may_send()
            later = await executor.start(shell("exit 3"))
            assert not (await later.wait(1)).settled
            assert not (await executor.get(neighbour.id)).settled
            await hostile.kill(grace=0)
            assert (await later.result()).outcome == Exited(3)
            assert not (await executor.get(neighbour.id)).settled
            await neighbour.kill(grace=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
