"""Retention on a living executor, and what an executor does about what others have left."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.bank.retention import Retention
from stockade.config import Config, from_environment
from stockade.errors import InvalidRequest, StateError, UnknownJob
from stockade.jobs.states import JobState
from support.cli import stockade
from support.programs import STUBBORN, python, shell
from support.waiting import eventually

NOTHING = Retention(max_count=0)


async def test_a_purge_takes_what_was_read_and_leaves_what_runs_or_was_not(tmp_path: Path) -> None:
    async with Executor(Policy(), config=Config(state_dir=tmp_path / "state")) as executor:
        read = (await executor.run(shell("echo read"), artifacts=True)).record
        running = await executor.start(python(STUBBORN))
        unread = await executor.start(shell("echo unread"))
        failed = await executor.start(["no-such-program"], settle_failures=True)
        assert (await failed.wait(10)).state is JobState.FAILED
        await eventually(lambda: executor.counters().running == 1, "the unread job has ended")
        done = await executor.purge(NOTHING)
        assert set(done.removed) == {read.id, failed.id}
        assert done.bytes > 0
        assert done.failed == ()
        for gone in (read.id, failed.id):
            with pytest.raises(UnknownJob):
                await executor.get(gone)
        assert not (tmp_path / "state" / "bank" / "jobs" / read.id).exists()
        assert await executor.call(lambda: executor.artifacts.find(job_id=read.id)) == ()
        assert (await executor.read(unread.id)).content == "unread\n"
        assert (await executor.purge(NOTHING)).removed == (unread.id,)
        assert {record.id for record in await executor.list()} == {running.id}
        await running.kill(grace=0)


async def test_output_whose_record_is_lost_may_not_have_been_read(tmp_path: Path) -> None:
    """With a registry that could not be saved, a purge took output that nobody had read."""
    state = tmp_path / "state"
    async with Executor(Policy(), config=from_environment(state_dir=str(state))) as executor:
        job = await executor.start(shell("echo unread"))
        while not (await executor.get(job.id)).settled:
            await asyncio.sleep(0.01)
    database = state / "registry.sqlite3"
    for name in ("-wal", "-shm"):
        database.with_name(database.name + name).unlink(missing_ok=True)
    database.write_bytes(database.read_bytes()[:100] + b"x" * 5000)
    said = await asyncio.to_thread(stockade, "purge", "--dry-run", "--keep-count", "0", "--state-dir", str(state))
    assert (said.returncode, list(state.glob("*.corrupt*"))) == (125, [])
    done = await asyncio.to_thread(stockade, "purge", "--keep-count", "0", "--state-dir", str(state))
    assert (done.returncode, done.stdout, (state / "bank" / "jobs" / job.id).exists()) == (0, b"", True)
    done = await asyncio.to_thread(stockade, "purge", "--unread", "--keep-count", "0", "--state-dir", str(state))
    assert (done.stdout, (state / "bank" / "jobs" / job.id).exists()) == (f"{job.id}\n".encode(), False)


async def test_a_purge_of_what_was_not_read_is_asked_for(tmp_path: Path) -> None:
    async with Executor(Policy(), config=Config(state_dir=tmp_path / "state")) as executor:
        unread = await executor.start(shell("echo unread"))
        await eventually(lambda: executor.counters().finished == 1, "the job has ended")
        assert (await executor.purge(NOTHING)).removed == ()
        assert (await executor.purge(Retention(), unread=True)).removed == ()
        assert (await executor.purge(NOTHING, unread=True)).removed == (unread.id,)
        assert executor.counters().finished == 0
        with pytest.raises(InvalidRequest):
            await executor.purge(None)  # type: ignore[arg-type]


async def test_what_an_interrupted_removal_left_is_removed_at_open(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path / "state")
    async with Executor(Policy(), config=config):
        pass
    left = tmp_path / "state" / "bank" / "trash" / "job.0123"
    left.mkdir()
    (left / "stdout.0.log").write_bytes(b"x")
    async with Executor(Policy(), config=config):
        assert not left.exists()


async def test_wrong_arguments_are_refused_before_anything() -> None:
    for policy in (None, "untrusted"):
        with pytest.raises(InvalidRequest) as caught:
            Executor(policy)  # type: ignore[arg-type]
        assert caught.value.field == "policy"
    async with Executor(Policy()) as executor:
        for field, options in (
            ("owner", {"owner": 5}),
            ("key", {"key": ""}),
            ("owner_limit", {"owner_limit": float("nan")}),
            ("abort", {"abort": True}),
            ("policy", {"policy": "build"}),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await executor.start(["true"], **options)
            assert caught.value.field == field
        assert await executor.list() == ()
        job = await executor.start(shell("echo hi"))
        await job.wait()
        for wrong, ask in (
            ("job", executor.get(5)),  # type: ignore[arg-type]
            ("timeout", executor.wait(job.id, float("nan"))),
            ("offset", executor.read(job.id, offset=True)),
            ("limit", executor.read_bytes(job.id, limit=1.5)),  # type: ignore[arg-type]
            ("limit", executor.read_new(job.id, limit=-1)),
            ("chars", executor.tail(job.id, chars=float("nan"))),  # type: ignore[arg-type]
            ("stream", executor.read(job.id, 1)),  # type: ignore[arg-type]
            ("limit", executor.list(limit=0)),
            ("state", executor.list(state="running")),
        ):
            with pytest.raises(InvalidRequest) as caught:
                await ask
            assert caught.value.field == wrong
        assert (await executor.read(job.id, limit=10**12)).content == "hi\n"


async def test_a_key_is_not_good_for_another_environment_or_input() -> None:
    async with Executor(Policy()) as executor:
        first = await executor.start(["true"], key="k", env={"A": "B"}, stdin=b"x")
        assert (await executor.start(["true"], key="k", env={"A": "B"}, stdin=b"x")).id == first.id
        for parts in ({"env": {"A": "C"}, "stdin": b"x"}, {"env": {"A": "B"}}, {"env": {"A": "B"}, "stdin": b"x", "replace_env": True}):
            with pytest.raises(InvalidRequest, match="with another environment or stdin"):
                await executor.start(["true"], key="k", **parts)


async def test_errors_of_jobs_that_never_ran_are_kept_in_a_bounded_number() -> None:
    async with Executor(Policy()) as executor:
        for number in range(1_030):
            executor._live.errors[str(number)] = InvalidRequest("x", field="x")
        await (await executor.start(["no-such-program"], settle_failures=True)).wait()
        assert len(executor._live.errors) == 1_024


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounts a small file system: needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    with open(place / "ballast", "wb", 0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass


async def test_jobs_that_end_on_a_full_disk_are_known_to_the_next_life(small: Path) -> None:
    config = Config(state_dir=small / "state")
    async with Executor(Policy(), config=config) as executor:
        jobs = [await executor.start(python(STUBBORN)) for _ in range(3)]
        for job in jobs:
            await anext(job.follow())
        await asyncio.to_thread(fill, small)
        await executor.kill(jobs[2].id, grace=0)
    os.unlink(small / "ballast")
    async with Executor(Policy(), config=config) as executor:
        records = await executor.list()
        assert {record.id for record in records} == {job.id for job in jobs}
        assert {record.state for record in records} == {JobState.FINISHED}


async def test_what_cannot_be_written_at_close_is_an_error_that_names_it(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor = Executor(Policy(), config=Config(state_dir=small / "state"))
    await executor.__aenter__()
    job = await executor.start(python(STUBBORN))
    await asyncio.to_thread(fill, small)
    os.unlink(small / "state" / "registry.sqlite3.reserve")
    await asyncio.to_thread(fill, small)
    await executor.kill(job.id, grace=0)
    with caplog.at_level(logging.ERROR), pytest.raises(StateError, match="could not be written"):
        await executor.close()
    assert f"without a change of job {job.id}: killed" in caplog.text
