"""Who ends a job and how that is told: the caller, a cancelled task, a limit, the executor's end; the first cause wins."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor, Job, Policy
from stockade.config import from_environment
from stockade.errors import Closed, InvalidRequest, UnknownJob
from stockade.jobs.records import JobRecord
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Aborted, Exited, Killed, Outcome, OutputLimited, Signaled, TimedOut
from support.programs import STUBBORN, TRUE, python, shell
from support.survivors import SURVIVORS, beats
from support.waiting import BOUND, SLOWNESS, grows

SLEEP = ["/usr/bin/sleep", "60"]
# Handles no signal, not even SIGINT.
PLAIN = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint('ready', flush=True)\ntime.sleep(60)"
# Says when it is ready, and at SIGTERM takes its time and leaves with 0.
POLITE = shell("trap 'echo bye; exit 0' TERM; echo ready; sleep 60 & wait")


def build_policy(workspace: Path | None = None, **limits: Any) -> Policy:
    return Policy(workspace=None if workspace is None else str(workspace), limits={"grace": 0.3, **limits})


def by_caller(number: int = 15, **rest: Any) -> Killed:
    return Killed(by="caller", detail=f"{signal.Signals(number).name} by the caller", **rest)


async def until_ready(executor: Executor, job: Job) -> None:
    async with asyncio.timeout(BOUND):
        async for data in executor.follow(job.id):
            if b"ready" in data:
                return
    raise AssertionError("it never said `ready`")


async def the_only_record(executor: Executor) -> JobRecord:
    (record,) = await executor.list()
    return record


# Cancelled


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_cancelling_run_while_it_launches_ends_the_job_first(turns: int) -> None:
    """A job whose caller was cancelled while it was being registered stayed `queued` for ever."""
    async with Executor(build_policy()) as executor:
        task = asyncio.create_task(executor.run(SLEEP))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for record in await executor.list():
            assert isinstance(record.outcome, Aborted)
        assert not executor._live


async def test_a_start_that_is_cancelled_leaves_no_job_behind() -> None:
    async with Executor(build_policy()) as executor:
        for turns in range(30):
            task = asyncio.create_task(executor.start(SLEEP))
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                await task.result().kill(grace=0)
                continue
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not executor._live
        assert {type(record.outcome) for record in await executor.list()} <= {Aborted, Killed}


async def test_cancelling_run_while_the_command_runs_settles_it_as_aborted(workspace: Path) -> None:
    async with Executor(build_policy(workspace)) as executor:
        task = asyncio.create_task(executor.run(python(SURVIVORS)))
        while not all(beat.exists() for beat in beats(workspace)):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = await the_only_record(executor)
        assert record.outcome == Aborted(signal=15)
        assert not await asyncio.to_thread(grows, beats(workspace))


async def test_cancelling_run_while_the_job_is_being_ended_does_not_change_its_cause() -> None:
    async with Executor(build_policy(grace=1.0)) as executor:
        task = asyncio.create_task(executor.run(python(STUBBORN)))
        while not executor._live:
            await asyncio.sleep(0)
        (job_id,) = executor._live
        await until_ready(executor, Job(executor, job_id))
        killing = asyncio.create_task(executor.kill(job_id))
        while (await executor.get(job_id)).state is not JobState.STOPPING:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = await killing
        assert record.outcome == by_caller()
        assert record.notes == ("too late to count: aborted: the caller's task was cancelled",)


async def test_cancelling_a_run_that_another_has_started_leaves_the_job_alone() -> None:
    """With a key, the second caller waits for the first one's job; its cancellation ended it."""
    async with Executor(build_policy(wall_time=20)) as executor:
        job = await executor.start(shell("read -r; exit 3"), key="once", interactive=True)
        second = asyncio.create_task(executor.run(shell("read -r; exit 3"), key="once", interactive=True))
        await asyncio.sleep(0)
        while executor._live._starts:
            await asyncio.sleep(0.01)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await executor.close_stdin(job.id)
        assert (await job.wait()).outcome == Exited(3)


async def test_nobody_waits_for_a_listener_that_is_slow_or_that_waits_for_a_job() -> None:
    async with Executor(build_policy()) as executor:
        loop, released, seen = asyncio.get_running_loop(), threading.Event(), []

        def listener(record: JobRecord) -> None:
            if not seen:
                seen.append(record.id)
                seen.append(asyncio.run_coroutine_threadsafe(executor.run(TRUE), loop).result(BOUND).outcome)
                released.wait(BOUND)

        executor.on_done(listener)
        first = await executor.run(TRUE)
        async with asyncio.timeout(BOUND):
            assert (await executor.run(TRUE)).ok
            while len(seen) < 2:
                await asyncio.sleep(0.01)
        released.set()
        assert seen == [first.record.id, Exited(0)]


async def test_a_name_with_a_carriage_return_does_not_end_init() -> None:
    """The kernel escapes line feeds alone; the forged line of /proc/PID/status was half a line, and init died of it."""
    program = """
import ctypes, signal
signal.signal(signal.SIGUSR1, lambda *_: print("caught", flush=True))
ctypes.CDLL(None).prctl(15, b"\\rSigBlk:\\r", 0, 0, 0)
print("ready", flush=True)
signal.pause()
"""
    async with Executor(build_policy(wall_time=20)) as executor:
        job = await executor.start(python(program))
        await until_ready(executor, job)
        assert await job.signal("SIGUSR1")
        result = await job.result()
    assert (result.outcome, result.stdout) == (Exited(0), b"ready\ncaught\n")


async def test_cancelling_a_wait_leaves_the_job_alone() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(SLEEP)
        waiting = asyncio.create_task(job.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not (await executor.get(job.id)).settled
        assert not (await job.wait(0.01)).settled  # nor does a wait that is over


# Killed


async def test_a_kill_during_the_launch_is_a_kill() -> None:
    async with Executor(build_policy()) as executor:
        for turns in range(12):
            job = await executor.start(SLEEP)
            for _ in range(turns):
                await asyncio.sleep(0)
            record = await job.kill()
            assert record.outcome in (by_caller(), by_caller(signal=15))  # before its command was executed, or after


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGKILL], ids=lambda number: number.name
)
async def test_the_first_signal_is_the_one_that_was_asked_for(number: signal.Signals) -> None:
    async with Executor(build_policy(grace=5)) as executor:
        job = await executor.start(python(PLAIN))
        await until_ready(executor, job)
        record = await job.kill(signal=number)
        assert record.outcome == by_caller(number, signal=int(number))


async def test_a_command_that_cleans_up_in_the_grace_keeps_its_exit_code_and_last_words() -> None:
    async with Executor(build_policy(grace=20)) as executor:
        job = await executor.start(POLITE)
        await until_ready(executor, job)
        began = time.monotonic()
        record = await job.kill()
        assert record.outcome == by_caller(exit_code=0)
        assert (await executor.read_bytes(job.id)).data == b"ready\nbye\n"
        assert time.monotonic() - began < 5 * SLOWNESS


async def test_a_second_kill_with_a_shorter_grace_ends_the_wait_of_the_first() -> None:
    async with Executor(build_policy(grace=60)) as executor:
        job = await executor.start(python(STUBBORN))
        await until_ready(executor, job)
        began = time.monotonic()
        first = asyncio.create_task(job.kill(grace=30))
        while (await executor.get(job.id)).state is not JobState.STOPPING:
            await asyncio.sleep(0.01)
        longer = asyncio.create_task(job.kill(grace=50))
        shorter = await job.kill(grace=0)
        assert time.monotonic() - began < 5 * SLOWNESS
        assert shorter.outcome == (await first).outcome == (await longer).outcome == by_caller()
        assert await job.kill() == await executor.get(job.id)  # a kill after the end is a look


async def test_a_job_that_ended_by_itself_is_never_killed() -> None:
    """A kill that met the exit hung (the report socket was reset), or was told as `killed` with exit code 0 (U-25)."""
    chance = random.Random(5)
    ends: set[Outcome] = set()
    async with Executor(build_policy(), config=from_environment(max_jobs=8)) as executor:

        async def race() -> None:
            job = await executor.start(TRUE)
            await asyncio.sleep(chance.uniform(0, 0.03 * SLOWNESS))
            record = await job.kill()
            assert record.outcome is not None
            ends.add(record.outcome)

        for _ in range(60):
            await asyncio.gather(*(race() for _ in range(4)))
        # Both sides of the race, and what was killed before it was executed; nothing between them.
        assert ends - {by_caller()} == {Exited(0), by_caller(signal=15)}


async def test_killing_what_nobody_knows_is_an_error() -> None:
    async with Executor(build_policy()) as executor:
        for unknown in ("no-such-job", "", "../../etc", "j1\n"):
            with pytest.raises(UnknownJob):
                await executor.kill(unknown)
        job = await executor.start(SLEEP)
        for wrong in ({"signal": 0}, {"signal": 65}, {"signal": True}, {"grace": -1}, {"grace": float("nan")}):
            with pytest.raises(InvalidRequest):
                await job.kill(**wrong)
        assert not (await executor.get(job.id)).settled


async def test_a_signal_by_itself_ends_nothing() -> None:
    async with Executor(build_policy()) as executor:
        job = await executor.start(shell("trap 'echo ready again; exit 3' USR1; echo ready; sleep 60 & wait"))
        await until_ready(executor, job)
        assert await executor.signal(job.id, signal.SIGUSR1)
        assert (await job.wait(BOUND)).outcome == Exited(3)
        assert not await executor.signal(job.id, signal.SIGUSR1)


# Limits


async def test_a_wall_clock_limit_of_the_call_is_told_with_its_value() -> None:
    async with Executor(build_policy()) as executor:
        result = await executor.run(SLEEP, timeout=0.4)
    assert result.outcome == TimedOut("wall", 0.4, signal=15)
    assert 0.4 <= (result.usage.wall or 0) < 2 * SLOWNESS


async def test_cpu_time_of_all_processes_together_is_limited() -> None:
    spin = "import os\nos.fork()\nimport time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    async with Executor(build_policy(cpu_time=0.6)) as executor:
        result = await executor.run(python(spin))
    assert result.outcome == TimedOut("cpu", 0.6, signal=15)
    assert 0.5 < (result.usage.user or 0) + (result.usage.system or 0) < 2.5 * SLOWNESS


async def test_a_job_that_sleeps_uses_no_cpu_time() -> None:
    async with Executor(build_policy(cpu_time=0.5)) as executor:
        assert (await executor.run(["/usr/bin/sleep", "1"])).ok


async def test_silence_is_limited_and_output_puts_it_off() -> None:
    async with Executor(build_policy(idle_time=0.6)) as executor:
        busy = shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; exec sleep 60")
        result = await executor.run(busy)
    assert result.outcome == TimedOut("idle", 0.6, signal=15)
    assert result.stdout == b"1\n2\n3\n4\n5\n6\n"
    assert (result.usage.wall or 0) > 1.5


async def test_a_program_that_traps_its_deadline_and_exits_0_has_timed_out() -> None:
    async with Executor(build_policy(wall_time=0.5, grace=10)) as executor:
        result = await executor.run(POLITE)
    assert result.outcome == TimedOut("wall", 0.5, exit_code=0)


@pytest.mark.parametrize(("stream", "number"), [("stdout", 1), ("stderr", 2)])
async def test_each_stream_has_a_cap_of_its_own(stream: str, number: int) -> None:
    async with Executor(build_policy(output=4096)) as executor:
        exact = await executor.run(shell(f"head -c 4096 /dev/zero >&{number}; echo other >&{3 - number}"))
        assert exact.outcome == Exited(0)
        over = await executor.run(shell(f"echo other >&{3 - number}; head -c 4097 /dev/zero >&{number}; exec sleep 60"))
    assert over.outcome == OutputLimited(stream, 4096, signal=15)
    assert sorted((len(over.stdout), len(over.stderr))) == [6, 4096]


async def test_output_over_the_cap_is_told_even_where_the_command_was_gone_first() -> None:
    async with Executor(build_policy(output=1000)) as executor:
        for _ in range(10):
            result = await executor.run(shell("head -c 1001 /dev/zero; exit 3"))
            assert isinstance(result.outcome, OutputLimited)
            assert len(result.stdout) == 1000


async def test_keeping_the_tail_lets_the_job_go_on() -> None:
    policy = Policy(overflow="keep-tail", limits={"output": 1 << 16})
    async with Executor(policy) as executor:
        result = await executor.run(shell("head -c 1000000 /dev/zero | tr '\\0' x; echo last"))
    assert result.outcome == Exited(0)
    assert len(result.stdout) == 1 << 16
    assert result.stdout.endswith(b"xlast\n")


async def test_merged_streams_are_one_in_order() -> None:
    async with Executor(Policy(merge_streams=True)) as executor:
        result = await executor.run(shell("echo 1; echo 2 >&2; echo 3; echo 4 >&2"))
    assert (result.stdout, result.stderr) == (b"1\n2\n3\n4\n", b"")


async def test_a_pipe_that_a_daemon_holds_does_not_hold_the_job() -> None:
    async with Executor(build_policy(wall_time=20)) as executor:
        began = time.monotonic()
        result = await executor.run(shell("echo out; setsid sleep 60 & echo err >&2; exit 4"))
        assert time.monotonic() - began < 3 * SLOWNESS
    assert (result.stdout, result.stderr, result.outcome, result.record.notes) == (b"out\n", b"err\n", Exited(4), ())


async def test_a_job_that_closes_its_streams_is_still_waited_for() -> None:
    async with Executor(build_policy()) as executor:
        result = await executor.run(shell("exec >&- 2>&-; sleep 0.3; exit 5"))
    assert result.outcome == Exited(5)
    assert (result.usage.wall or 0) >= 0.3


async def test_the_first_cause_decides_and_later_ones_are_noted() -> None:
    async with Executor(build_policy(wall_time=0.8, grace=2)) as executor:
        job = await executor.start(python(STUBBORN))
        await until_ready(executor, job)
        record = await job.kill(grace=1.5)
    assert record.outcome == by_caller()
    assert record.notes == ("too late to count: timed out after 0.8 s",)


async def test_a_job_that_signals_itself_was_not_killed_by_us() -> None:
    async with Executor(build_policy()) as executor:
        assert (await executor.run(shell("kill -TERM $$; sleep 5"))).outcome == Signaled(15)


# The executor's end


async def test_closing_ends_every_job_and_records_it(tmp_path: Path, workspace: Path) -> None:
    config = from_environment(state_dir=str(tmp_path / "state"))
    async with Executor(build_policy(workspace), config=config) as executor:
        jobs = [await executor.start(argv) for argv in (python(SURVIVORS), python(STUBBORN), SLEEP)]
        await until_ready(executor, jobs[0])
    assert not await asyncio.to_thread(grows, beats(workspace))
    async with Executor(build_policy(), config=config) as executor:
        records = [await executor.get(job.id) for job in jobs]
    for record in records:
        assert isinstance(record.outcome, Killed)
        assert (record.outcome.by, record.outcome.detail) == ("shutdown", "the executor was closed")


async def test_closing_twice_and_at_once_is_closing_once() -> None:
    executor = Executor(build_policy())
    await executor.close()  # never opened
    async with Executor(build_policy()) as executor:
        await executor.start(python(STUBBORN))
        await asyncio.gather(executor.close(), executor.close(), executor.close())
        await executor.close()
    await executor.close()
    with pytest.raises(Closed):
        await executor.start(TRUE)
    with pytest.raises(Closed):
        await executor.list()
    with pytest.raises(Closed):
        async with executor:
            pass


async def test_a_close_that_is_cancelled_closes_all_the_same() -> None:
    executor = Executor(build_policy())
    await executor.__aenter__()
    job = await executor.start(python(STUBBORN))
    await until_ready(executor, job)
    closing = asyncio.create_task(executor.close())
    while (await executor.get(job.id)).state is not JobState.STOPPING:
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(Closed):
        await executor.list()


async def test_starts_that_overlap_the_close_are_refused_or_ended() -> None:
    for turns in (0, 1, 3, 10):
        executor = Executor(build_policy())
        await executor.__aenter__()
        ended: list[JobRecord] = []
        executor.on_done(ended.append)
        starts = [asyncio.create_task(executor.start(SLEEP)) for _ in range(8)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await executor.close()
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            assert isinstance(outcome, Job | Closed)
        assert not executor._live


# When the supervisor itself is short of something


async def test_a_supervisor_without_a_free_descriptor_still_ends_its_jobs(workspace: Path) -> None:
    """Nothing that ends a job may depend on opening a file; an error there left the job unsettled for ever."""
    policy = build_policy(workspace, wall_time=1.0, cpu_time=30, memory="400M")
    async with Executor(policy, config=from_environment(standby=False)) as executor:
        job = await executor.start(python(STUBBORN))
        await until_ready(executor, job)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                os.dup(1)
            record = await job.wait(BOUND)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert record.outcome == TimedOut("wall", 1.0)
        assert (await executor.run(TRUE)).ok
