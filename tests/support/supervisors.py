"""The tests' end of `serve`: a supervisor in a process of its own, which can be killed and started again."""

from __future__ import annotations

import glob
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from support.survivors import members
from support.waiting import BOUND

_SERVER = Path(__file__).parent / "serve.py"


class Refused(Exception):
    """The supervisor answered with an error."""


class Supervisor:
    """One supervisor process at a time, on one state directory and below one cgroup of its own."""

    def __init__(
        self,
        place: Path,
        cgroup: str,
        *,
        policy: dict[str, Any],
        config: dict[str, Any] | None = None,
        entry: str | None = None,
    ) -> None:
        """`entry`: a cgroup that the process enters before it becomes the supervisor."""
        self.place = place
        self.cgroup = cgroup
        self.state = Path((config or {}).get("state_dir", place / "state"))
        self._entry = entry
        self._socket = f"stockade-tests-{secrets.token_hex(8)}"  # abstract: a path would be too long
        self._local = threading.local()
        self._life = 0
        self._connections: list[socket.socket] = []
        self.process: subprocess.Popen[str]
        place.mkdir(parents=True, exist_ok=True)
        full = {"state_dir": str(self.state), "cgroup": cgroup, **(config or {})}
        (place / "config.json").write_text(json.dumps({"policy": policy, "config": full, "socket": self._socket}))

    def __enter__(self) -> Supervisor:
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def begin(self) -> None:
        """Starts the process; returns when it answers."""
        command = [sys.executable, str(_SERVER), str(self.place)]
        if self._entry is not None:
            command = ["/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', self._entry, *command]
        with open(self.place / "log", "a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", (self.place / "log").read_text()
        self.process.stdout.close()
        self._life += 1

    def kill(self) -> None:
        """SIGKILL, and nothing else."""
        self.process.kill()
        self.process.wait(BOUND)
        self._hang_up()

    def end(self) -> None:
        """The orderly end: every job is killed and recorded."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(BOUND)
        self._hang_up()

    def ask(self, name: str, *arguments: Any) -> Any:
        """One question. Raises: KeyError for an unknown job, Refused for every other error."""
        self.send(name, *arguments)
        line = self._local.file.readline()
        if not line:
            raise ConnectionResetError("the supervisor is gone")
        answer = json.loads(line)
        if "unknown" in answer:
            raise KeyError(answer["unknown"])
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["answer"]

    def send(self, name: str, *arguments: Any) -> None:
        """A question without waiting for its answer."""
        if getattr(self._local, "life", None) != (self._life, os.getpid()):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect("\0" + self._socket)
            self._connections.append(connection)
            self._local.file = connection.makefile("rw")
            self._local.life = (self._life, os.getpid())
        self._local.file.write(json.dumps([name, arguments]) + "\n")
        self._local.file.flush()

    def processes(self) -> list[int]:
        """The host pids of everything below its cgroup: jobs, inits, fork servers."""
        return members(self.cgroup)

    def trees(self) -> list[str]:
        """The cgroups of executors below its cgroup."""
        return [os.path.basename(path) for path in glob.glob(f"{self.cgroup}/stockade-*") if not path.endswith("-supervisor")]

    def _hang_up(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._local = threading.local()


__all__ = ["Refused", "Supervisor"]
