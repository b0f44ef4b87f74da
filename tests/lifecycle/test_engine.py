"""The parts that jobs share: threads, the fork server's socket, an opening that is cancelled. None may hold a job or leak."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor, Policy
from stockade.config import Config, from_environment
from stockade.errors import HostUnfit, LaunchFailed
from stockade.jobs.engine import FILE_THREADS, Engine
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Aborted, Exited, Killed, OutOfMemory, TimedOut
from stockade.launcher.spawn import ForkServer, run_isolated
from stockade.sandbox.spec import CgroupLimits
from support.programs import python, shell
from support.waiting import BOUND, SLOWNESS, eventually

MEMORY = 96 << 20
# Each waits for the file `go`, then goes over its limit and stays there.
HOG = "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
HOGS = {"memory": "data = bytearray(512 << 20)\ntime.sleep(60)", "cpu": "while True: pass"}


def engine_of(executor: Executor) -> Engine:
    assert executor._engine is not None
    return executor._engine


def server_of(executor: Executor) -> ForkServer:
    return engine_of(executor).server


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process of ours, and lets it go on where it still is there."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


async def until_the_channel_waits(executor: Executor, number: int) -> None:
    async with asyncio.timeout(BOUND):
        while len(server_of(executor)._answers) < number:
            await asyncio.sleep(0)


# Threads


@pytest.mark.parametrize("limit", HOGS)
async def test_a_limit_holds_while_every_file_thread_is_blocked(limit: str, workspace: Path) -> None:
    """Looks at running jobs shared four threads with reads of files: a busy pool let a job exceed its memory limit."""
    limits = {"memory": MEMORY, "wall_time": 60 * SLOWNESS, "grace": 0.2} | ({"cpu_time": 0.5} if limit == "cpu" else {})
    go = threading.Event()
    async with Executor(Policy(workspace=str(workspace), limits=limits)) as executor:
        job = await executor.start(python(HOG + HOGS[limit]))
        async for _ in job.follow():
            break
        blocked = [asyncio.create_task(executor.call(go.wait, 60)) for _ in range(2 * FILE_THREADS)]
        try:
            await asyncio.sleep(0)
            await asyncio.to_thread((workspace / "go").touch)
            record = await job.wait(BOUND)  # it settles, too, while they are blocked
        finally:
            go.set()
        await asyncio.gather(*blocked)
    assert isinstance(record.outcome, OutOfMemory if limit == "memory" else TimedOut)


async def test_a_killed_job_ends_while_the_programs_own_threads_are_blocked() -> None:
    """`asyncio.to_thread` shares its threads with the program that embeds us."""
    go = threading.Event()
    async with Executor(Policy(limits={"grace": 0.1})) as executor:
        job = await executor.start(shell("trap '' TERM; echo ready; while :; do sleep 1; done"))
        async for _ in job.follow():
            break
        blocked = [asyncio.create_task(asyncio.to_thread(go.wait, 60)) for _ in range(64)]
        try:
            await asyncio.sleep(0)
            record = await asyncio.wait_for(job.kill(grace=0.1), BOUND)
        finally:
            go.set()
        await asyncio.gather(*blocked)
    assert isinstance(record.outcome, Killed)


# A job that is ended before its command runs


async def test_a_job_that_is_killed_before_its_command_runs_never_runs_it(workspace: Path) -> None:
    """It was executed all the same, and only then killed. A sandbox that stands by would need no fork server."""
    async with Executor(Policy(workspace=str(workspace)), config=from_environment(standby=False)) as executor:
        for number in range(10):
            with stopped(server_of(executor).pid):  # nothing can be launched yet
                job = await executor.start(["/usr/bin/touch", f"{workspace}/{number}"])
                killing = asyncio.create_task(job.kill(grace=0))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            record = await killing
            assert record.state is JobState.FINISHED
            assert isinstance(record.outcome, Killed)
            assert (record.outcome.exit_code, record.outcome.signal) == (None, None)
        assert not list(workspace.iterdir())


async def test_an_abort_that_is_set_right_after_the_start_runs_nothing(workspace: Path) -> None:
    async with Executor(Policy(workspace=str(workspace)), config=from_environment(standby=False)) as executor:
        for number in range(5):
            abort = asyncio.Event()
            job = await executor.start(["/usr/bin/touch", f"{workspace}/{number}"], abort=abort)
            abort.set()
            assert isinstance((await job.wait()).outcome, Aborted)
        assert not list(workspace.iterdir())


# The fork server's socket


async def test_starts_that_wait_for_room_in_the_socket_fail_when_the_fork_server_dies() -> None:
    """Nobody woke who waited for room, and every later start waited behind it."""
    async with Executor(Policy(), config=from_environment(standby=False, max_jobs=64)) as executor:
        await executor.run(["/usr/bin/true"])
        server = server_of(executor)
        server._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        with stopped(server.pid):
            jobs = [await executor.start(["/usr/bin/true"]) for _ in range(30)]
            await until_the_channel_waits(executor, 30)
            assert server._turn.locked()
            os.kill(server.pid, signal.SIGKILL)
            records = [await job.wait(BOUND) for job in jobs]
    assert {record.state for record in records} == {JobState.FAILED}


async def test_a_launch_whose_pidfd_has_no_number_left_fails_at_once_and_says_why() -> None:
    """`datagram was cut` was raised in a callback of the event loop, and the launch waited 30 s."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Executor(Policy(), config=from_environment(standby=False)) as executor:
        await executor.run(["/usr/bin/true"])
        with ExitStack() as held, stopped(server_of(executor).pid):
            job = await executor.start(["/usr/bin/true"])
            await until_the_channel_waits(executor, 1)
            top = max(int(name) for name in await asyncio.to_thread(os.listdir, "/proc/self/fd"))
            answer = next(iter(server_of(executor)._answers.values()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, hard))
            held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            try:
                while True:
                    held.callback(os.close, os.dup(0))
            except OSError:
                pass
            os.kill(server_of(executor).pid, signal.SIGCONT)
            async with asyncio.timeout(5 * SLOWNESS):
                await asyncio.wait({answer})
        record = await job.wait(BOUND)
        assert record.error is not None
        assert "EMFILE" in record.error.message
        assert isinstance(answer.exception(), LaunchFailed)
        assert (await executor.run(shell("exit 3"))).outcome == Exited(3)


# Openings that are cancelled


async def test_an_opening_that_is_cancelled_closes_what_it_had_opened(tmp_path: Path) -> None:
    """The thread went on, and what it opened after the close was never closed: the lock, the pump, the store (see _no_leaks)."""
    for turns in (1, 2, 3, 5, 8, 13, 20, 40):
        executor = Executor(Policy(), config=Config(state_dir=str(tmp_path / "state"), cgroup=from_environment().cgroup))
        opening = asyncio.create_task(executor.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        opening.cancel()
        try:
            await opening
        except asyncio.CancelledError:
            continue
        await executor.close()
    async with Executor(Policy(), config=Config(state_dir=str(tmp_path / "state"), cgroup=from_environment().cgroup)) as executor:
        assert (await executor.run(shell("exit 4"))).outcome == Exited(4)


async def test_a_probe_that_is_cancelled_tells_only_that_while_something_is_in_its_cgroup() -> None:
    """The child of a probe that was called off was still in the scratch cgroup, whose removal then failed instead."""
    async with Executor(Policy()) as executor:
        engine = engine_of(executor)
        with stopped(server_of(executor).pid):
            probing = asyncio.create_task(engine._try_entry())
            procs = Path(engine.tree.path, "probe", "cgroup.procs")
            await eventually(procs.exists, "its cgroup is there")
            child = await asyncio.create_subprocess_exec("/usr/bin/sleep", "60")
            await asyncio.to_thread(procs.write_text, str(child.pid))
            probing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await probing
            await child.wait()  # whatever is in it is killed
        assert (await executor.run(shell("exit 3"))).outcome == Exited(3)


async def test_the_threads_end_even_where_something_cannot_be_closed() -> None:
    executor = Executor(Policy())
    await executor.__aenter__()

    async def refuse() -> None:
        raise OSError("cannot be closed")

    engine_of(executor)._closing.push_async_callback(refuse)
    with pytest.raises(OSError, match="cannot be closed"):
        await executor.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("stockade-files", "stockade-watch"))]


@asynccontextmanager
async def second_server(executor: Executor, path: Path) -> AsyncIterator[dict[str, Any]]:
    """What another fork server is started with."""
    leaf = await asyncio.to_thread(engine_of(executor).tree.make_leaf, "second", CgroupLimits())
    log = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        yield {"leaf": leaf, "identity": engine_of(executor).identity, "log": log}
    finally:
        os.close(log)
        leaf.close()


async def test_a_fork_server_that_is_not_ready_in_time_is_told_so(tmp_path: Path) -> None:
    """The error ended in `: ` and nothing."""
    async with Executor(Policy()) as executor, second_server(executor, tmp_path / "log") as parts:
        with pytest.raises(HostUnfit, match="the fork server did not come up: not ready within 0 s"):
            await ForkServer.start(**parts, bound=0)


async def test_starting_the_fork_server_can_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    """It stayed as a zombie, with its socket (see _no_leaks)."""
    async with Executor(Policy()) as executor, second_server(executor, tmp_path / "log") as parts:
        for turns in (0, 1, 2, 5, 10, 20, 40):
            starting = asyncio.create_task(ForkServer.start(**parts))
            for _ in range(turns):
                await asyncio.sleep(0.001)
            starting.cancel()
            await asyncio.wait({starting})
            if not starting.cancelled():  # it was ready first
                await starting.result().close()


async def test_building_a_sandbox_can_be_cancelled_at_any_moment() -> None:
    """What was made on a thread after the cancellation, a leaf, ids and pipes, was never removed."""
    async with Executor(Policy(), config=from_environment(standby=False)) as executor:
        await executor.run(["/usr/bin/true"])
        spec = await executor.explain(["/usr/bin/true"])
        engine = engine_of(executor)
        before = await asyncio.to_thread(os.listdir, engine.tree.path)
        for turns in range(12):
            building = asyncio.create_task(engine.sandboxes.take(spec, merge=False))
            for _ in range(turns):
                await asyncio.sleep(0)
            building.cancel()
            with pytest.raises(asyncio.CancelledError):
                await building
        assert sorted(await asyncio.to_thread(os.listdir, engine.tree.path)) == sorted(before)


# The last resort


async def test_a_job_settles_even_where_it_cannot_be_cleaned_up(caplog: pytest.LogCaptureFixture) -> None:
    """An error in cleaning up left the record unsettled for ever."""
    async with Executor(Policy(limits={"wall_time": 60 * SLOWNESS})) as executor:
        job = await executor.start(shell("echo ready; exec sleep 60"))
        async for _ in job.follow():
            break
        live = executor._live[job.id]
        assert live.tree is not None
        tree, threads = live.tree, engine_of(executor)._removing
        await asyncio.to_thread(threads.shutdown)  # "cannot schedule new futures after shutdown"
        record = await job.kill(grace=0)
        await eventually(lambda: tree.is_dead, "its processes are gone")
    assert record.state is JobState.LOST
    assert record.error is not None
    assert "internal error: RuntimeError" in record.error.message
    assert any(entry.levelno >= logging.ERROR for entry in caplog.records)


def test_a_probe_that_does_not_end_when_it_is_killed_is_given_up() -> None:
    """A child of it holds its pipes: communicate() waited for ever."""
    hold = "import subprocess, time; print(subprocess.Popen(['/usr/bin/sleep', '60']).pid, flush=True); time.sleep(60)"
    said = run_isolated("timeit", "-n1", "-r1", hold, bound=1)
    os.kill(int(said.stdout), signal.SIGKILL)
    assert said.returncode == -signal.SIGKILL
