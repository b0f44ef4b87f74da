"""One sealed job, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.errors import InvalidRequest
from stockade.launcher.outcome import Exited, Killed, OutputLimited, Signaled, TimedOut
from support.programs import DAEMON, STUBBORN, python, shell


async def test_a_program_runs_and_its_output_comes_back() -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(["python3", "-c", "print('hi')"])
    assert (result.stdout, result.stderr, result.outcome) == (b"hi\n", b"", Exited(0))


async def test_both_streams_and_the_exit_code_are_exact() -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(shell("echo out; echo err >&2; exit 42"))
    assert (result.stdout, result.stderr, result.outcome) == (b"out\n", b"err\n", Exited(42))


@pytest.mark.parametrize("number", [6, 9, 11, 15, 34])
async def test_the_signal_that_ended_the_command_is_exact(number: int) -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(python(f"import os; os.kill(os.getpid(), {number})"))
    assert result.outcome == Signaled(number)


async def test_input_is_given_whole_and_ends() -> None:
    data = bytes(range(256)) * 8192
    async with Executor(Policy()) as executor:
        result = await executor.run(["/usr/bin/cat"], stdin=data)
    assert result.stdout == data


async def test_a_deadline_ends_a_program_that_ignores_every_signal() -> None:
    policy = Policy(limits={"wall_time": 0.5, "grace": 0.2})
    async with Executor(policy) as executor:
        result = await executor.run(python(STUBBORN))
    assert result.outcome == TimedOut("wall", 0.5, signal=None, exit_code=None)
    assert result.stdout == b"ready\n"


async def test_more_output_than_the_cap_ends_the_job_with_exactly_the_cap_kept() -> None:
    policy = Policy(limits={"output": 100_000, "grace": 0.2})
    async with Executor(policy) as executor:
        result = await executor.run(["/usr/bin/yes"])
    assert isinstance(result.outcome, OutputLimited)
    assert result.stdout == (b"y\n" * 50_000)


async def test_a_daemon_dies_with_its_job(workspace: Path) -> None:
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run(python(DAEMON))
        assert result.stdout == b"ready\n"
        last = (workspace / "alive").read_text()
        await executor.run(["/usr/bin/sleep", "0.3"])
        assert (workspace / "alive").read_text() == last


async def test_a_killed_job_says_who_killed_it() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(shell("echo ready; exec sleep 60"))
        async for _ in job.follow():
            break
        record = await job.kill()
    assert record.outcome == Killed(by="caller", detail="SIGTERM by the caller", signal=15)


async def test_files_of_the_workspace_keep_their_owner(workspace: Path) -> None:
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run(shell("echo x >made; stat -c %u:%g . made"))
    assert result.stdout.split() == [b"1000:1000", b"1000:1000"]
    assert (workspace / "made").stat().st_uid == workspace.stat().st_uid


async def test_bad_input_is_refused_before_anything_is_made() -> None:
    async with Executor(Policy()) as executor:
        with pytest.raises(InvalidRequest, match="list"):
            await executor.start("ls -l")
        assert await executor.list() == ()
