"""The eleven methods that the host-side drivers of the corpus want (corpus/_adapter.py), on a supervisor process of ours."""

from __future__ import annotations

import atexit
import glob
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from _adapter import StartError

from support.supervisors import Refused, Supervisor
from support.survivors import members
from support.waiting import until


class Sbx:
    """One product under test; SBX_CGROUP names the cgroup below which it works, SBX_PLACE the directory in which its state goes."""

    def __init__(self, bank: str | None = None) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="sbx-", dir=os.environ["SBX_PLACE"]))
        shown = tempfile.gettempdir()  # where the drivers put their programs
        policy = {
            "merge_streams": True,
            "ro": [shown],
            "limits": {"output": "128M", "wall_time": 120, "processes": 512},
        }
        # Nothing is made ahead: the programs count descriptors, cgroups and directories before and after.
        config = {"standby": False, **({} if bank is None else {"state_dir": f"{bank}/state"})}
        self._leaves: dict[str, str] = {}
        self._supervisor = Supervisor(self._place, os.environ["SBX_CGROUP"], policy=policy, config=config)
        self._supervisor.begin()
        atexit.register(self._end)
        self._warm_up()

    def _end(self) -> None:
        self._supervisor.end()
        shutil.rmtree(self._place)

    def _warm_up(self) -> None:
        """One job to its end, so that what a supervisor has once (a sandbox built ahead) belongs to the base that drivers measure."""
        job = self.start(["true"])
        until(lambda: self.status(job)["state"] == "exited", "the first job ends")

    def start(self, argv: list[str], timeout: float | None = None, cwd: str | None = None) -> str:
        try:
            return str(self._supervisor.ask("start", argv, timeout, cwd))
        except Refused as error:
            raise StartError(str(error)) from None

    def status(self, job: str) -> dict[str, Any]:
        return dict(self._supervisor.ask("status", job))

    def output(self, job: str, offset: int = 0) -> tuple[bytes, int]:
        try:
            data, after = self._supervisor.ask("output", job, offset)
        except KeyError:  # it has no account yet, or never had one
            self.status(job)
            return b"", offset
        return data.encode("latin-1"), after

    def kill(self, job: str, grace: float = 2.0) -> dict[str, Any]:
        return dict(self._supervisor.ask("kill", job, grace))

    def jobs(self) -> list[str]:
        return list(self._supervisor.ask("jobs"))

    def pids(self, job: str) -> list[int]:
        return [pid for leaf in self._leaf(job) for pid in members(leaf)]

    def leftovers(self, job: str) -> list[str]:
        with open("/proc/self/mountinfo") as table:
            mounts = [line.split()[4] for line in table if job in line]
        return self._leaf(job) + mounts + glob.glob(f"{self._supervisor.state}/run/*{job}*")

    def _leaf(self, job: str) -> list[str]:
        """The cgroup of a job that runs or has run, where it still exists."""
        if job not in self._leaves:
            name = self._supervisor.ask("leaf", job)
            if name is None:
                return []
            self._leaves[job] = name
        return glob.glob(f"{self._supervisor.cgroup}/stockade-*/{self._leaves[job]}")

    def supervisor_pid(self) -> int:
        return self._supervisor.process.pid

    def restart(self) -> None:
        self._supervisor.kill()
        self._supervisor.begin()

    def registry_files(self) -> list[str]:
        return [str(self._supervisor.state / "registry.sqlite3")]

    def bank_dir(self) -> str:
        return str(self._supervisor.state / "bank")


__all__ = ["Sbx"]
