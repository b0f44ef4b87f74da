"""How a job gets into its cgroup: by birth or by joining, and from wherever its supervisor sits."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import CgroupEntry, from_environment
from stockade.launcher.outcome import Exited, Killed
from support.programs import python, shell
from support.supervisors import Supervisor
from support.survivors import SURVIVORS, beats, members
from support.waiting import eventually, grows, until


@pytest.mark.parametrize("entry", list(CgroupEntry))
async def test_both_ways_into_a_cgroup_hold_a_job(entry: CgroupEntry, workspace: Path) -> None:
    policy = Policy(workspace=str(workspace), limits={"grace": 0.2})
    async with Executor(policy, config=from_environment(cgroup_entry=entry)) as executor:
        result = await executor.run(shell("cat /proc/self/cgroup; exit 3"))
        assert result.outcome == Exited(3)
        assert b"0::/\n" in result.stdout  # the root of its cgroup namespace is its own leaf
        job = await executor.start(python(SURVIVORS))
        await eventually(lambda: all(beat.exists() for beat in beats(workspace)), "the survivors beat")
        tree = executor._live[job.id].tree
        assert tree is not None
        assert len(await asyncio.to_thread(tree.leaf.processes)) >= 6  # init, the command and all that it made
        assert isinstance((await job.kill()).outcome, Killed)
        assert not await asyncio.to_thread(grows, beats(workspace))


@pytest.mark.parametrize("entry", list(CgroupEntry))
def test_a_supervisor_in_a_cgroup_that_was_once_killed_just_works(entry: CgroupEntry, tmp_path: Path) -> None:
    """A child that is cloned from there into another cgroup is killed at birth; the fork server therefore moves first."""
    base = f"{os.environ['STOCKADE_CGROUP']}/once"
    killed = f"{base}/killed"
    os.makedirs(killed)
    sleeper = subprocess.Popen(["/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec sleep 60', killed])
    until(lambda: members(killed) == [sleeper.pid], "the sleeper is in")
    Path(killed, "cgroup.kill").write_text("1")
    assert sleeper.wait(5) == -9  # so it has really been killed once
    supervisor = Supervisor(tmp_path / "supervisor", base, policy={}, config={"cgroup_entry": str(entry)}, entry=killed)
    with supervisor:
        assert supervisor.process.pid in members(killed)
        for code in (0, 1, 2):
            job = supervisor.ask("start", ["/bin/sh", "-c", f"exit {code}"])
            until(lambda job=job: supervisor.ask("status", job)["state"] not in ("starting", "running"), "it ends")
            assert supervisor.ask("status", job) == {"state": "exited", "exit_code": code, "signal": None, "reason": None}
    os.rmdir(killed)
    os.rmdir(base)
