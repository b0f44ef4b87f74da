"""A fork server that is stopped, or short of something: nothing waits for it longer than it must, and no job pays for another."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import LaunchFailed
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Exited, Killed
from stockade.sandbox import seccomp
from support.programs import TRUE, python, shell

DEFAULT = json.loads((Path(seccomp.__file__).parents[3] / "seccomp" / "default.json").read_text())
BOUND = 10  # seconds; each of these took 20 or 30


async def test_a_job_is_killed_while_the_fork_server_that_should_launch_it_hangs() -> None:
    async with Executor(Policy(), config=from_environment(standby=False)) as executor:
        await executor.run(TRUE)
        server = executor._opened().server.pid
        os.kill(server, signal.SIGSTOP)
        try:
            job = await executor.start(TRUE)
            async with asyncio.timeout(BOUND):
                while (await executor.get(job.id)).state is not JobState.STARTING:
                    await asyncio.sleep(0.01)
                record = await job.kill(grace=0.1)
        finally:
            os.kill(server, signal.SIGCONT)
        assert isinstance(record.outcome, Killed)
        assert (await executor.run(shell("exit 3"))).outcome == Exited(3)  # it goes on where it was


@pytest.mark.parametrize("standby", [True, False])
async def test_an_executor_closes_while_its_fork_server_hangs(standby: bool) -> None:
    """With a job that runs, one that starts, and a sandbox that is built ahead."""
    executor = Executor(Policy(), config=from_environment(standby=standby))
    async with executor:
        await executor.run(TRUE)
        running = await executor.start(shell("echo; exec sleep 60"))
        await anext(aiter(running.follow()))
        os.kill(executor._opened().server.pid, signal.SIGSTOP)
        starting = await executor.start(TRUE)
        waiting = [asyncio.create_task(job.wait()) for job in (running, starting)]
        await asyncio.sleep(0)
        began = time.monotonic()
    assert time.monotonic() - began < BOUND
    assert {record.state for record in await asyncio.gather(*waiting)} <= {JobState.FINISHED, JobState.FAILED}


async def test_a_fork_server_without_a_free_descriptor_refuses_one_job_and_keeps_the_others() -> None:
    """It ended at the first request whose descriptors it could not take, and every job with it."""
    async with Executor(Policy(), config=from_environment(standby=False)) as executor:
        neighbour = await executor.start(shell("echo; exec sleep 60"))
        await anext(aiter(neighbour.follow()))
        server = executor._opened().server.pid
        soft, hard = resource.prlimit(server, resource.RLIMIT_NOFILE)
        top = max(int(name) for name in await asyncio.to_thread(os.listdir, f"/proc/{server}/fd"))
        said = []
        for room in range(6, top + 16):  # it polls fewer than 6, and could not go on with less
            resource.prlimit(server, resource.RLIMIT_NOFILE, (room, hard))
            record = await (await executor.start(TRUE)).wait()
            assert record.error is None or "EMFILE" in record.error.message
            said.append(None if record.error is None else record.error.message)
        assert any(each is not None and "recvmsg" in each for each in said)
        assert said[-1] is None
        resource.prlimit(server, resource.RLIMIT_NOFILE, (soft, hard))
        assert (await executor.run(TRUE)).ok
        assert not (await executor.get(neighbour.id)).settled
        await neighbour.kill(grace=0)


async def test_a_request_that_is_too_large_fails_alone() -> None:
    async with Executor(Policy()) as executor:
        server = executor._opened().server
        with pytest.raises(LaunchFailed) as caught:
            await server._send(bytes(1 << 20))
        assert caught.value.errno == errno.EMSGSIZE
        assert (await executor.run(TRUE)).ok


async def test_a_filter_that_is_larger_than_a_message_is_loaded(tmp_path: Path) -> None:
    """More than 750 instructions made a message that the fork server could not read: it ended, and every job with it."""
    profile = dict(DEFAULT)
    profile["syscalls"] = [rule for rule in DEFAULT["syscalls"] if rule["names"] != ["ioctl"]] + [
        *(
            {"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 1, "value": number, "op": "SCMP_CMP_EQ"}]}
            for number in range(0x9000, 0x9000 + 2 * 1000, 2)
        ),
        {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"},
    ]
    (tmp_path / "large.json").write_text(json.dumps(profile))
    ask = (
        "import fcntl\nfor request in (0x9010, 0x9011):\n    try: fcntl.ioctl(0, request)\n    except OSError as error: print(error.errno)"
    )
    async with Executor(Policy(seccomp=str(tmp_path / "large.json"))) as executor:
        result = await executor.run(python(ask))
    assert result.stdout.split() == [b"1", b"25"]
