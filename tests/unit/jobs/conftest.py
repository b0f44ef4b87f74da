"""Records to store, a registry to ask, children to kill, and a disk that is soon full."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stockade.ids import InstanceId, JobId
from stockade.jobs.records import JobError, JobRecord, JobRequest
from stockade.jobs.registry import Registry
from stockade.jobs.states import JobState
from stockade.jobs.store import Store
from stockade.launcher.outcome import Exited

WAIT = 20.0  # seconds; the bound of every wait

MakeRecord = Callable[..., JobRecord]


@pytest.fixture
def make() -> MakeRecord:
    """A record of the next id in the state asked for, whole in every other way."""
    numbers = itertools.count()

    def make_record(state: JobState = JobState.RUNNING, **changes: Any) -> JobRecord:
        number = next(numbers)
        fields: dict[str, Any] = {
            "id": JobId(f"job-{number}"),
            "instance": InstanceId("life-1"),
            "argv": ("true", str(number)),
            "state": state,
            "created_at": 1000.0 + number,
        }
        if state is JobState.FINISHED:
            fields |= {"outcome": Exited(number % 256), "ended_at": 2000.0}
        elif state in (JobState.FAILED, JobState.LOST):
            fields |= {"error": JobError(code=str(state), message="why"), "ended_at": 2000.0}
        return JobRecord(**{**fields, **changes})

    return make_record


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "registry.sqlite3")


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with Store.open(database) as opened:
        yield opened


@pytest.fixture
def registry(store: Store) -> Iterator[Registry]:
    opened = Registry(store, InstanceId("life-1"))
    yield opened
    opened.close(WAIT)


@pytest.fixture
def request_of() -> Callable[..., JobRequest]:
    def make_request(*argv: str, **fields: Any) -> JobRequest:
        return JobRequest(argv=argv or ("true",), **fields)

    return make_request


Child = subprocess.Popen[str]


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """Starts a Python program with pipes, and leaves none behind."""
    with contextlib.ExitStack() as stack:

        def start(program: str, *arguments: str) -> Child:
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
                )
            )
            stack.callback(child.kill)
            return child

        yield start


class SmallDisk:
    """A file system of its own that can be filled to the last byte and emptied again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self._ballast, "wb", 0) as file:
            while True:
                file.write(b"\0" * 4096)

    def free(self) -> None:
        os.unlink(self._ballast)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.root)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    root = tmp_path / "small"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(root)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        if os.environ.get("KERNEL_MUST_WORK"):
            pytest.fail(f"no tmpfs can be mounted here: {mounted.stderr}")
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr}")
    yield SmallDisk(root)
    subprocess.run(["umount", "-l", str(root)], check=True)
