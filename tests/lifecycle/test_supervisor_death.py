"""SIGKILL of the supervisor: no process of any job is left, and the next executor on the directory tells what became of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import Config
from stockade.jobs.states import JobState
from support.supervisors import Supervisor
from support.survivors import SURVIVORS, beats, members
from support.waiting import grows, until

ROUNDS = 10
PYTHON = "/usr/bin/python3"


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup of one test's own, which must be empty afterwards."""
    path = f"{os.environ['STOCKADE_CGROUP']}/death"
    os.mkdir(path)
    yield path
    assert members(path) == []
    os.rmdir(path)


@pytest.fixture
def supervisor(tmp_path: Path, workspace: Path, cgroup: str) -> Supervisor:
    return Supervisor(tmp_path / "supervisor", cgroup, policy={"workspace": str(workspace), "limits": {"processes": 64}})


def pause(seconds: float) -> None:
    """Lets a random time pass, so that the kill comes at a random point."""
    threading.Event().wait(seconds)


def test_no_process_of_a_running_job_outlives_the_supervisor(supervisor: Supervisor, workspace: Path) -> None:
    chance = random.Random(1)
    jobs: list[str] = []
    for number in range(ROUNDS):
        supervisor.begin()
        assert len(supervisor.trees()) == 1, "the tree of the one that died was not swept"
        for job in jobs:
            assert supervisor.ask("status", job)["state"] == "lost"
        job = supervisor.ask("start", [PYTHON, "-c", SURVIVORS])
        until(lambda: all(beat.exists() for beat in beats(workspace)), f"round {number}: the survivors beat")
        pause(chance.uniform(0, 0.05))
        assert len(supervisor.processes()) >= 7  # fork server, standby, init, and the five of the job
        jobs.append(job)
        supervisor.kill()
        until(lambda: not supervisor.processes(), f"round {number}: nothing is left in the cgroups")
        assert not grows(beats(workspace))
        for beat in beats(workspace):
            beat.unlink()
    with supervisor:
        assert {supervisor.ask("status", job)["state"] for job in jobs} == {"lost"}


def test_no_process_of_a_job_that_is_being_launched_outlives_the_supervisor(supervisor: Supervisor, workspace: Path) -> None:
    chance = random.Random(2)
    for number in range(ROUNDS):
        supervisor.begin()
        first = supervisor.ask("start", ["/usr/bin/true"])
        until(lambda job=first: supervisor.ask("status", job)["state"] == "exited", "the first job ends")
        for _ in range(6):
            supervisor.send("start", [PYTHON, "-c", SURVIVORS])
        pause(chance.uniform(0, 0.15))
        supervisor.kill()
        until(lambda: not supervisor.processes(), f"round {number}: nothing is left in the cgroups")
        assert not grows(beats(workspace))
    with supervisor:
        states = {supervisor.ask("status", job)["state"] for job in supervisor.ask("jobs")}
        assert states == {"exited", "lost"}  # the first of each round, and those that were hit


def test_the_control_without_a_sandbox_does_outlive_its_parent(workspace: Path, cgroup: str) -> None:
    parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], cwd=sys.argv[2]); sys.stdin.read()"
    enter = ["/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', cgroup]
    process = subprocess.Popen([*enter, sys.executable, "-c", parent, SURVIVORS, str(workspace)], stdin=subprocess.PIPE)
    try:
        until(lambda: all(beat.exists() for beat in beats(workspace)), "the survivors beat")
        process.kill()
        process.wait()
        assert grows(beats(workspace))
        assert len(members(cgroup)) >= 4
    finally:
        Path(cgroup, "cgroup.kill").write_text("1")
        process.communicate()
        until(lambda: not members(cgroup), "the control is cleaned up")


def test_what_was_banked_before_the_supervisor_died_is_readable(supervisor: Supervisor) -> None:
    supervisor.begin()
    ended = supervisor.ask("start", ["/bin/bash", "-c", "echo early; exit 5"])
    until(lambda: supervisor.ask("status", ended)["state"] == "exited", "the first job ends")
    running = supervisor.ask("start", ["/bin/bash", "-c", "echo so far; exec sleep 60"])
    until(lambda: supervisor.ask("output", running, 0)[0] == "so far\n", "the second job writes")
    supervisor.kill()
    with supervisor:
        assert supervisor.ask("status", ended) == {"state": "exited", "exit_code": 5, "signal": None, "reason": None}
        assert supervisor.ask("output", ended, 0)[0] == "early\n"
        found = supervisor.ask("status", running)
        assert (found["state"], found["exit_code"]) == ("lost", None)
        assert "the executor died" in found["reason"]
        assert supervisor.ask("output", running, 0)[0] == "so far\n"
        assert sorted(supervisor.ask("jobs")) == sorted([ended, running])


def test_the_next_executor_sweeps_the_cgroup_of_one_that_died(supervisor: Supervisor, workspace: Path) -> None:
    """Even where its processes could not be killed at once: here a process of the test's own sits in the stale leaf."""
    supervisor.begin()
    supervisor.ask("start", ["/usr/bin/sleep", "60"])
    (stale,) = supervisor.trees()
    squatter = subprocess.Popen(["/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec sleep 60', f"{supervisor.cgroup}/{stale}/server"])
    until(lambda: squatter.pid in supervisor.processes(), "the squatter has entered")
    supervisor.kill()
    with supervisor:
        assert squatter.wait(5) == -signal.SIGKILL
        assert stale not in supervisor.trees()


async def test_lost_jobs_are_recorded_whole(supervisor: Supervisor, workspace: Path) -> None:
    def die() -> str:
        supervisor.begin()
        job = supervisor.ask("start", ["/bin/bash", "-c", "echo four; exec sleep 60"])
        until(lambda: supervisor.ask("output", job, 0)[0], "the job writes")
        supervisor.kill()
        return str(job)

    job = await asyncio.to_thread(die)
    config = Config(state_dir=str(supervisor.state), cgroup=supervisor.cgroup)
    async with Executor(Policy(), config=config) as executor:
        record = await executor.get(job)
        assert (record.state, record.stdout_bytes, record.outcome) == (JobState.LOST, 5, None)
        assert record.error is not None
        assert record.error.code == "lost"
        assert await executor.kill(job) == await executor.get(job)  # there is nothing to kill any more
