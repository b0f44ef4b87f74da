"""How jobs end that somebody writes to: nothing is lost, nobody waits for ever, nothing is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade import Executor, Job, Policy, Terminal
from stockade.errors import InputClosed, InputNotTaken
from stockade.launcher.outcome import Exited, Killed, OutputLimited, Signaled
from support.dialogue import Dialogue, shell_on_terminal
from support.programs import python, shell
from support.supervisors import Supervisor
from support.survivors import members
from support.waiting import until

BIG = bytes(1 << 20)
WAYS = pytest.mark.parametrize("parts", [{"interactive": True}, {"tty": Terminal()}], ids=["pipe", "terminal"])
# On a terminal in canonical mode what does not fit into a line is dropped; in raw mode whoever types waits.
DEAF = shell("test -t 0 && stty raw -echo; echo deaf; exec sleep 60")


async def deaf(executor: Executor, parts: dict[str, object]) -> Job:
    """A job that does not read, at the point from which on it does not."""
    job = await executor.start(DEAF, **parts)
    await Dialogue(executor, job).expect(b"deaf")
    return job


@pytest.mark.parametrize("lines", [1, 1000, 200_000])
async def test_all_that_was_written_before_the_end_is_kept(lines: int) -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(shell(f"seq 1 {lines}"), tty=Terminal())
        assert result.stdout == b"".join(b"%d\r\n" % number for number in range(1, lines + 1))
        assert (result.outcome, result.record.notes) == (Exited(0), ())


async def test_a_flood_costs_no_more_than_the_cap() -> None:
    async with Executor(Policy(limits={"output": 100_000, "grace": 0.2})) as executor:
        job = await executor.start(["yes"], tty=Terminal())
        record = await job.wait(20)
        assert record.outcome == OutputLimited("stdout", 100_000, signal=15)
        assert record.stdout_bytes == 100_000


@WAYS
async def test_a_writer_that_waits_hears_of_the_kill(parts: dict[str, object]) -> None:
    async with Executor(Policy()) as executor:
        job = await deaf(executor, parts)
        writing = asyncio.create_task(job.write_stdin(BIG))
        closing = asyncio.create_task(job.close_stdin())
        while executor._live[job.id].input.last_activity == 0:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        assert isinstance((await job.kill(grace=0.1)).outcome, Killed)
        with pytest.raises(InputClosed) as refused:
            await writing
        assert 0 < refused.value.taken < len(BIG)
        if "tty" in parts:
            with pytest.raises(InputClosed):
                await closing
        else:
            await closing  # it is closed, which is what was wanted


@WAYS
async def test_a_writer_that_waits_hears_of_the_shutdown(parts: dict[str, object]) -> None:
    async with Executor(Policy(limits={"grace": 0.1})) as executor:
        job = await deaf(executor, parts)
        writing = asyncio.create_task(job.write_stdin(BIG))
        await asyncio.sleep(0)
    with pytest.raises(InputClosed):
        await writing


@WAYS
async def test_a_frozen_job_takes_what_the_kernel_holds_and_the_rest_when_it_thaws(parts: dict[str, object]) -> None:
    async with Executor(Policy()) as executor:
        reader = shell("test -t 0 && stty raw -echo; echo ready; exec head -c 1048576 | wc -c")
        talk = Dialogue(executor, await executor.start(reader, **parts))
        await talk.expect(b"ready\n")
        assert await executor.freeze(talk.job.id)
        with pytest.raises(InputNotTaken) as late:
            await talk.job.write_stdin(BIG, timeout=0.5)
        assert 0 < late.value.taken < len(BIG)
        assert await executor.thaw(talk.job.id)
        await talk.job.write_stdin(BIG[late.value.taken :])
        assert (await talk.job.result()).stdout.split() == [b"ready", b"1048576"]


@WAYS
async def test_a_frozen_job_can_be_killed_while_somebody_writes(parts: dict[str, object]) -> None:
    async with Executor(Policy()) as executor:
        job = await deaf(executor, parts)
        assert await executor.freeze(job.id)
        writing = asyncio.create_task(job.write_stdin(BIG))
        assert isinstance((await job.kill(grace=0.1)).outcome, Killed)
        with pytest.raises(InputClosed):
            await writing


@WAYS
async def test_a_caller_that_is_cancelled_leaves_the_way_free(parts: dict[str, object]) -> None:
    async with Executor(Policy()) as executor:
        reader = shell("test -t 0 && stty raw -echo; echo ready; sleep 0.5; exec tail -c 4")
        talk = Dialogue(executor, await executor.start(reader, **parts))
        await talk.expect(b"ready\n")
        writing = asyncio.create_task(talk.job.write_stdin(BIG))
        await asyncio.sleep(0.1)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await talk.job.write_stdin(b"last") == 4
        if "tty" in parts:
            await talk.job.kill(grace=0)
        else:
            await talk.job.close_stdin()
            assert (await talk.job.result()).stdout == b"ready\nlast"


async def test_a_job_that_never_ran_cannot_be_written_to() -> None:
    async with Executor(Policy()) as executor:
        missing = await executor.start(["no-such-program"], interactive=True, settle_failures=True)
        with pytest.raises(InputClosed):
            await missing.write_stdin(b"x")


async def test_the_end_of_the_shell_hangs_up_on_what_it_started() -> None:
    async with Executor(Policy()) as executor:
        bash = await shell_on_terminal(executor)
        await bash.type(b"(trap '' HUP; exec setsid sleep 60) & sleep 60 & exit 5\n", b"exit")
        record = await bash.job.wait(10)
        assert (record.outcome, record.notes) == (Exited(5), ())


async def test_a_job_that_lets_go_of_its_terminal_can_come_back_to_it() -> None:
    program = """
import os, time
for number in (0, 1, 2): os.close(number)
time.sleep(0.3)
os.open("/dev/tty", os.O_RDWR)
os.write(0, b"back again\\n")
"""
    async with Executor(Policy()) as executor:
        result = await executor.run(python(program), tty=Terminal())
        assert (result.stdout, result.outcome) == (b"back again\r\n", Exited(0))


async def test_twenty_at_once_are_all_answered_and_nothing_is_left() -> None:
    async with Executor(Policy()) as executor:
        jobs = [
            await executor.start(
                shell('read -r line; echo "<$line>"; exec cat >/dev/null'), **({"tty": Terminal()} if number % 2 else {"interactive": True})
            )
            for number in range(20)
        ]
        talks = [Dialogue(executor, job) for job in jobs]
        await asyncio.gather(*(talk.type(b"number %d\n" % number, b"<number %d>" % number) for number, talk in enumerate(talks)))
        await asyncio.gather(*(job.close_stdin() for job in jobs[:10]))
        for job in jobs[:10]:
            assert (await job.wait(10)).outcome == Exited(0)
        outcomes = [(await job.kill(grace=0)).outcome for job in jobs[10:]]
        assert all(isinstance(outcome, Killed) for outcome in outcomes)


async def test_plain_jobs_keep_the_sandbox_that_stands_by() -> None:
    async with Executor(Policy()) as executor:
        await executor.run(["true"])
        sandboxes = executor._opened().sandboxes
        while sandboxes._next is None:
            await asyncio.sleep(0.01)
        ready = sandboxes._next
        await executor.run(["true"], tty=Terminal())
        await executor.run(["true"], interactive=True)
        assert sandboxes._next is ready


@pytest.fixture
def cgroup() -> Iterator[str]:
    path = f"{os.environ['STOCKADE_CGROUP']}/interactive"
    os.mkdir(path)
    yield path
    assert members(path) == []
    os.rmdir(path)


@pytest.mark.parametrize("way", ["pipe", "terminal"])
def test_the_end_of_the_executor_is_that_of_an_interactive_job(tmp_path: Path, cgroup: str, way: str) -> None:
    supervisor = Supervisor(tmp_path / "supervisor", cgroup, policy={})
    supervisor.begin()
    job = supervisor.ask("start_interactive", ["sh", "-c", "trap '' HUP; echo ready; exec cat"], way)
    until(lambda: "ready" in supervisor.ask("output", job, 0)[0], "it is ready")
    later = supervisor.ask("start", ["true"])  # records are written in order, and this one before its end is told
    until(lambda: supervisor.ask("status", later)["state"] == "exited", "the record is on disk")
    supervisor.kill()
    until(lambda: not supervisor.processes(), "nothing is left in the cgroups")
    with supervisor:
        assert supervisor.ask("status", job)["state"] == "lost"


async def test_a_hang_up_by_a_signal_is_the_shell_s_end() -> None:
    async with Executor(Policy()) as executor:
        bash = await shell_on_terminal(executor)
        assert await bash.job.signal("HUP")
        assert (await bash.job.wait(10)).outcome == Signaled(1)
