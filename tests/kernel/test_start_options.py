"""What a start can be asked for besides the command: recorded failures, abort events, a whole environment."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import ExecutableNotFound
from stockade.jobs.records import HOST
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Aborted, Exited, Killed
from support.programs import python, shell


async def test_a_missing_program_is_an_error_unless_its_failure_is_to_be_recorded() -> None:
    async with Executor(Policy()) as executor:
        with pytest.raises(ExecutableNotFound):
            await executor.start(["no-such-program"])
        assert await executor.list() == ()
        job = await executor.start(["no-such-program", "-x"], settle_failures=True, artifacts=True, label="a label", session="s")
        record = await job.wait(10)
        assert (record.state, record.outcome, record.started_at, record.duration) == (JobState.FAILED, None, None, None)
        assert record.error is not None
        assert (record.error.code, record.argv, record.label, record.session) == (
            "executable_not_found",
            ("no-such-program", "-x"),
            "a label",
            "s",
        )
        assert set(record.references) == {"stdout", "stderr"}
        assert (await executor.read(job.id)).content == ""
        with pytest.raises(ExecutableNotFound):
            await job.result()


async def test_the_state_may_lie_where_a_sandbox_has_places_of_its_own() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        config = from_environment(state_dir=f"{place}/state")
        async with Executor(Policy(), config=config) as executor:
            result = await executor.run(shell("cat /etc/hostname; ls /dev/shm"))
            assert (result.outcome, result.stdout) == (Exited(0), b"stockade\n")


async def test_an_abort_that_is_set_before_runs_nothing() -> None:
    aborted = asyncio.Event()
    aborted.set()
    async with Executor(Policy()) as executor:
        job = await executor.start(shell("echo x"), abort=aborted)
        record = await job.wait(10)
        assert record.outcome == Aborted("cancelled before it was started")
        assert (record.state, record.started_at, record.stdout_bytes) == (JobState.FINISHED, None, 0)


async def test_an_abort_ends_a_job_as_aborted() -> None:
    abort = asyncio.Event()
    async with Executor(Policy()) as executor:
        job = await executor.start(python("import time; print('ready', flush=True); time.sleep(60)"), abort=abort)
        async for _ in job.follow():
            abort.set()
        record = await job.wait(10)
        assert record.outcome == Aborted("the caller's abort signal was set", signal=15)


async def test_an_environment_can_be_given_whole() -> None:
    async with Executor(Policy(env={"OF_THE_POLICY": "1"}, inherit_env=True)) as executor:
        program = python("import os; print(sorted(os.environ))")
        result = await executor.run(program, env={"ONLY": "this", "LC_ALL": "C.UTF-8"}, replace_env=True)
        assert result.stdout == b"['LC_ALL', 'ONLY']\n"
        result = await executor.run(program, env={"ALSO": "this"})
        assert b"'ALSO'" in result.stdout
        assert b"'OF_THE_POLICY'" in result.stdout


async def test_a_kill_can_say_why() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["/usr/bin/sleep", "60"])
        record = await executor.kill(job.id, reason="the host went home")
        assert isinstance(record.outcome, Killed)
        assert record.outcome.detail == "the host went home"


async def test_counters_are_by_owner_and_session() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["/usr/bin/sleep", "60"], owner="a", session="s")
        assert [(each.running, each.finished) for each in (executor.counters(), executor.counters("a"), executor.counters("b"))] == [
            (1, 0),
            (1, 0),
            (0, 0),
        ]
        assert executor.counters(HOST, "s").running == 1
        assert executor.counters("a", "t").running == 0
        await job.kill()
        assert executor.counters() == executor.counters("b")


async def test_output_can_be_read_from_the_first_moment_on() -> None:
    """A read right after the start used to find no account."""
    async with Executor(Policy()) as executor:
        for _ in range(5):
            job = await executor.start(["/usr/bin/true"])
            assert (await executor.read(job.id)).content == ""
            assert (await job.wait(10)).outcome == Exited(0)


async def test_output_over_the_cap_counts_also_where_the_command_has_ended_by_itself() -> None:
    """The end used to be reported first now and then, and the job was `exited` with bytes missing."""
    async with Executor(Policy(limits={"output": 1_000})) as executor:
        for _ in range(20):
            result = await executor.run(shell("head -c 1001 /dev/zero"))
            assert result.outcome.kind == "output_limited"
            assert len(result.stdout) == 1_000


async def test_what_was_started_is_on_disk_before_its_id_is_known(tmp_path: Path) -> None:
    """Else a crash would leave somebody with an id that nobody knows."""

    def stored() -> set[str]:
        with contextlib.closing(sqlite3.connect(f"file:{tmp_path}/state/registry.sqlite3?mode=ro", uri=True)) as database:
            return {name for (name,) in database.execute("SELECT id FROM jobs")}

    async with Executor(Policy(), config=from_environment(state_dir=str(tmp_path / "state"))) as executor:
        for _ in range(20):
            job = await executor.start(["/usr/bin/true"])
            assert job.id in await asyncio.to_thread(stored)
