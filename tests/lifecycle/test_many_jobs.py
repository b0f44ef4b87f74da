"""Many jobs at once and one after another: each ends as it should, and the executor is afterwards what it was before."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time

import psutil
import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import InvalidRequest, TooManyJobs
from stockade.jobs.engine import FILE_THREADS, REMOVAL_THREADS, WATCH_THREADS
from stockade.launcher.outcome import Exited, Killed
from support.programs import TRUE, shell
from support.survivors import members
from support.waiting import SLOWNESS, eventually

SLEEP = ["/usr/bin/sleep", "60"]


def pooled(thread: threading.Thread) -> bool:
    return re.fullmatch(r"stockade-\w+_\d+", thread.name) is not None


def build_policy() -> Policy:
    return Policy(limits={"grace": 0.3})


async def test_twenty_jobs_run_at_the_same_time_and_none_hears_of_another() -> None:
    async with Executor(build_policy()) as executor:
        jobs = [await executor.start(shell(f"echo {number}; read -r; exit {number}"), interactive=True) for number in range(20)]
        for job in jobs:
            async for _ in executor.follow(job.id):
                break
        assert len(executor._live) == 20  # that all of them have begun and none has ended proves that they overlap
        for job in jobs:
            await executor.close_stdin(job.id)
        results = await asyncio.gather(*(job.result() for job in jobs))
        assert [(result.outcome, result.stdout) for result in results] == [(Exited(n), b"%d\n" % n) for n in range(20)]


async def test_thirty_starts_at_once_have_thirty_ids() -> None:
    async with Executor(build_policy()) as executor:
        jobs = await asyncio.gather(*(executor.start(TRUE) for _ in range(30)))
        records = await asyncio.gather(*(job.wait() for job in jobs))
        assert len({job.id for job in jobs}) == 30
        assert {record.outcome for record in records} == {Exited(0)}
        assert len(await executor.list()) == 30


async def test_two_hundred_jobs_in_sequence_leave_nothing_behind() -> None:
    def state() -> dict[str, int]:
        assert executor._engine is not None
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            # Those of a pool, whose names end in a number, are made when they are needed, up to their number.
            "threads": sum(thread.name.startswith("stockade") and not pooled(thread) for thread in threading.enumerate()),
            "processes": len(members(executor._engine.tree.path)),
            "cgroups": sum(1 for entry in os.scandir(executor._engine.tree.path) if entry.is_dir()),
            "children": len(psutil.Process().children(recursive=True)),
        }

    def memory() -> int:
        return int(psutil.Process().memory_info().rss)

    async def settled() -> dict[str, int]:
        """The state when the sandbox that is built ahead is there."""
        engine = executor._engine
        assert engine is not None
        standby = engine.sandboxes
        await eventually(lambda: standby._next is not None and standby._next.done(), "the next sandbox waits for its command")
        await eventually(lambda: len(members(engine.tree.path)) == 2, "nothing but that and the fork server is there")
        return await asyncio.to_thread(state)

    async with Executor(build_policy()) as executor:
        for _ in range(40):  # until what is kept of the latest and for the next ones has been filled
            await executor.run(shell("echo x"))
        before, held = await settled(), await asyncio.to_thread(memory)
        for number in range(200):
            result = await executor.run(shell(f"echo {number}; exit {number % 7}"))
            assert (result.outcome, result.stdout) == (Exited(number % 7), b"%d\n" % number)
        assert await settled() == before
        for pool, most in (("files", FILE_THREADS), ("watch", WATCH_THREADS), ("removal", REMOVAL_THREADS)):
            assert sum(f"stockade-{pool}" in thread.name for thread in threading.enumerate()) <= most
        assert await asyncio.to_thread(memory) - held < 32 << 20


async def test_an_owner_may_have_so_many_jobs_and_others_are_not_concerned() -> None:
    async with Executor(build_policy()) as executor:
        first = await executor.start(SLEEP, owner="ann", owner_limit=2)
        await executor.start(SLEEP, owner="ann", owner_limit=2)
        with pytest.raises(TooManyJobs, match=first.id):
            await executor.start(SLEEP, owner="ann", owner_limit=2)
        await executor.start(SLEEP, owner="bob", owner_limit=2)
        await first.kill()
        await executor.start(SLEEP, owner="ann", owner_limit=2)
        assert len(await executor.list(caller="ann")) == 3


async def test_starts_at_once_do_not_get_past_the_limits() -> None:
    """The number of running jobs was looked at before the start had counted."""
    async with Executor(build_policy(), config=from_environment(max_jobs=5)) as executor:
        outcomes = await asyncio.gather(*(executor.start(SLEEP) for _ in range(12)), return_exceptions=True)
        assert sum(isinstance(outcome, TooManyJobs) for outcome in outcomes) == 7
        await executor.kill_all()
        owned = await asyncio.gather(*(executor.start(SLEEP, owner="ann", owner_limit=3) for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(outcome, TooManyJobs) for outcome in owned) == 2


async def test_a_key_makes_a_start_happen_once() -> None:
    async with Executor(build_policy()) as executor:
        jobs = await asyncio.gather(*(executor.start(SLEEP, owner="ann", key="once") for _ in range(6)))
        assert len({job.id for job in jobs}) == 1
        assert (await executor.start(SLEEP, owner="bob", key="once")).id != jobs[0].id
        with pytest.raises(InvalidRequest, match=jobs[0].id):
            await executor.start(TRUE, owner="ann", key="once")
        ended = await jobs[0].kill()
        assert (await executor.start(SLEEP, owner="ann", key="once")).id == ended.id  # after the end as well
        assert len(await executor.list()) == 2


async def test_one_killed_job_leaves_its_neighbours_alone() -> None:
    async with Executor(build_policy()) as executor:
        jobs = [await executor.start(SLEEP) for _ in range(6)]
        killed = await jobs[2].kill()
        assert isinstance(killed.outcome, Killed)
        assert [(await executor.get(job.id)).settled for job in jobs] == [job is jobs[2] for job in jobs]
        assert await executor.kill_all() == 5


async def test_a_flood_does_not_hold_up_what_is_asked_meanwhile() -> None:
    async with Executor(Policy(overflow="keep-tail", limits={"grace": 0.3})) as executor:
        for _ in range(3):
            await executor.start(["/usr/bin/yes"])
        idle = await executor.start(SLEEP)
        waits = []
        for _ in range(100):
            began = time.monotonic()
            await executor.get(idle.id)
            await asyncio.sleep(0.01)
            waits.append(time.monotonic() - began)
        assert sorted(waits)[98] < 0.3 * SLOWNESS
        began = time.monotonic()
        await idle.kill()
        assert time.monotonic() - began < 2 * SLOWNESS
