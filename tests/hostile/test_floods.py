"""Floods that bound themselves: processes, zombies, orphans, and states in which nothing answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import psutil
import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited, Killed
from support.attacks import inside, within
from support.corpus import place, verdict
from support.programs import python, shell
from support.waiting import SLOWNESS


async def test_a_fork_bomb_is_held_at_the_limit_of_processes() -> None:
    """Control: with a higher limit the same payload makes as many as it wants."""
    bomb = await inside(Policy(limits={"processes": 20}), "fork_bomb", "60")
    assert bomb["refused"] == "EAGAIN"
    assert bomb["children"] == 19  # itself is the twentieth
    assert await inside(Policy(limits={"processes": 100}), "fork_bomb", "60") == {"children": 60, "refused": "OK"}


async def test_a_bomb_in_one_job_leaves_the_neighbour_its_own_limit() -> None:
    """Ids are a job's own, so are the counts of RLIMIT_NPROC."""
    async with Executor(Policy(limits={"processes": 30})) as executor:
        bombs = await asyncio.gather(*(within(executor, "fork_bomb", "60") for _ in range(3)))
    assert [bomb["children"] for bomb in bombs] == [29] * 3


def _zombies() -> list[int]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found


@pytest.mark.case("a08")
async def test_orphans_are_reaped_and_unreaped_children_hold_nothing_up(workspace: Path) -> None:
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run([place("a08", workspace)])
        async with asyncio.timeout(10 * SLOWNESS):  # init's own end may be a moment ahead of the fork server's look at it
            while _zombies():
                await asyncio.sleep(0.02)
    assert verdict(result.stdout) == "PASS"
    assert result.outcome == Exited(0)


async def test_a_thousand_orphans_are_reaped_within_a_limit_of_sixteen() -> None:
    """Were they not, the seventeenth would find no place: that is the control."""
    assert await inside(Policy(limits={"processes": 16}), "children", "1000") == {"left": 0}


@pytest.mark.case("a09")
async def test_a_process_in_uninterruptible_sleep_goes_with_the_kill(workspace: Path) -> None:
    async with Executor(Policy(workspace=str(workspace), env={"LIFE": "30"})) as executor:
        job = await executor.start([place("a09", workspace)])
        async with asyncio.timeout(15 * SLOWNESS):
            async for piece in job.follow():
                if b"READY" in piece:
                    assert b"state=D" in piece
                    break
            began = asyncio.get_running_loop().time()
            record = await job.kill(grace=1.0)
        assert asyncio.get_running_loop().time() - began < 3.5
    assert isinstance(record.outcome, Killed)


async def test_frozen_and_stopped_processes_go_with_the_kill() -> None:
    """The cgroup is frozen by somebody else, so that neither the command nor init can act; a second job stops all it has."""
    async with Executor(Policy()) as executor:
        frozen = await executor.start(shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"))
        stopped = await executor.start(shell("for i in 1 2 3; do sleep 30 & done; echo ready; kill -STOP -1 $$"))
        for job in (frozen, stopped):
            async with asyncio.timeout(15 * SLOWNESS):
                async for _ in job.follow():
                    break
        tree = executor._live[frozen.id].tree
        assert tree is not None
        await asyncio.to_thread(tree.leaf.freeze, frozen=True)
        async with asyncio.timeout(15 * SLOWNESS):
            records = await asyncio.gather(frozen.kill(grace=0.2), stopped.kill(grace=0.2))
        assert await executor.run(["/usr/bin/true"])
    assert [record.outcome.kind for record in records if record.outcome is not None] == ["killed", "killed"]


async def test_a_flood_of_packets_is_kept_byte_by_byte() -> None:
    """With O_DIRECT each write is a packet of its own (pipe(2)), and a read gives one: that many reads took all of a core."""
    program = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)
for number in range(60_000):
    os.write(1, bytes([number % 251]))
os.write(1, bytes(5000))
"""
    async with Executor(Policy(limits={"wall_time": 60 * SLOWNESS})) as executor:
        result = await executor.run(python(program))
    assert result.outcome == Exited(0)
    assert result.stdout == bytes(number % 251 for number in range(60_000)) + bytes(5000)


async def test_descriptors_used_up_inside_do_not_hurt_the_host() -> None:
    script = "import os\ntry:\n    while True: os.dup(0)\nexcept OSError as error: os.write(1, str(error.errno).encode())"
    before = len(os.listdir("/proc/self/fd"))
    async with Executor(Policy(limits={"open_files": 64})) as executor:
        results = await asyncio.gather(*(executor.run(["/usr/bin/python3", "-c", script]) for _ in range(5)))
        assert [result.stdout for result in results] == [b"24"] * 5
    assert len(os.listdir("/proc/self/fd")) <= before
