"""The `stockade` command as its users have it: a process of its own, with bounded waits for all that it does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BOUND = 60.0  # seconds within which anything must have happened
COMMAND = [sys.executable, "-W", "error", "-m", "stockade"]


def environment(**variables: str) -> dict[str, str]:
    """Ours, with temporary files where the leak check sees them."""
    kept = {name: value for name, value in os.environ.items() if name != "STOCKADE_STATE_DIR"}
    return {**kept, "TMPDIR": tempfile.gettempdir(), **variables}


def stockade(
    *arguments: str, given: bytes = b"", cwd: Path | None = None, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs it to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], input=given, capture_output=True, timeout=BOUND, cwd=cwd, env=environment(**(variables or {})), check=False
    )


def comes_true(condition: Callable[[], bool]) -> bool:
    """Looks again and again until it is true; False where it never was."""
    deadline = time.monotonic() + BOUND
    while not (held := condition()) and time.monotonic() < deadline:
        threading.Event().wait(0.002)
    return held


class Running:
    """A started command with pipes on stdout and stderr."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest: dict[int, bytes] = {}

    def line(self, stream: str = "stdout") -> bytes:
        """The next line, as soon as it is there."""
        pipe = getattr(self.process, stream).fileno()
        data, deadline = self._rest.pop(pipe, b""), time.monotonic() + BOUND
        while b"\n" not in data:
            assert select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0], f"no line within {BOUND:g} s: {data!r}"
            more = os.read(pipe, 65_536)
            assert more, f"end of file after {data!r}"
            data += more
        first, _, self._rest[pipe] = data.partition(b"\n")
        return first

    def signal(self, number: int, *, group: bool = False) -> None:
        """Sends a signal to it; to its whole process group as a terminal does."""
        (os.killpg if group else os.kill)(self.process.pid, number)

    def end(self) -> int:
        """Waits for its end; the exit code, negative for a signal."""
        return self.process.wait(BOUND)

    def rest(self, stream: str) -> bytes:
        """What is still to be read, after its end."""
        pipe = getattr(self.process, stream)
        return self._rest.pop(pipe.fileno(), b"") + pipe.read()


@contextmanager
def signals_heard() -> Iterator[None]:
    """What is started meanwhile ignores no signal that we ignore, as a test run in the background, or by nohup, does."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def started(*arguments: str, stdin: int = subprocess.DEVNULL, open_files: int | None = None) -> Iterator[Running]:
    """Starts it in a process group of its own, where it may have so many open files; whatever happens, it is gone afterwards."""
    limited = [] if open_files is None else ["prlimit", f"--nofile={open_files}:{open_files}"]
    with signals_heard():
        process = subprocess.Popen(
            [*limited, *COMMAND, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            process_group=0,
        )
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()
