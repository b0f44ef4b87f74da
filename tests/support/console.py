"""The `stockade` command on a terminal, as somebody sits at one: the test holds the other end."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.cli import BOUND, COMMAND, environment, signals_heard


class Sitting:
    """A started command whose standard streams are a terminal, which controls its session."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process = process
        self._master = master
        self._slave = slave
        self.seen = b""

    def expect(self, text: bytes) -> bytes:
        """What is shown until `text` is, and with it; nothing is looked at twice."""
        deadline = time.monotonic() + BOUND
        while text not in self.seen:
            assert select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0], f"{text!r} not in {self.seen!r}"
            self.seen += os.read(self._master, 65_536)
        shown, self.seen = self.seen[: self.seen.index(text) + len(text)], self.seen[self.seen.index(text) + len(text) :]
        return shown

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def resize(self, rows: int, columns: int) -> None:
        """As a window manager does: the kernel sends SIGWINCH."""
        termios.tcsetwinsize(self._master, (rows, columns))

    def hang_up(self) -> None:
        """Closes our end, as a terminal window that is closed does."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        for descriptor in (self._master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    @settings.setter
    def settings(self, wanted: list[Any]) -> None:
        termios.tcsetattr(self._slave, termios.TCSANOW, wanted)

    @property
    def is_raw(self) -> bool:
        return not self.settings[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def end(self) -> int:
        """Waits for its end; the exit code, negative for a signal."""
        deadline = time.monotonic() + BOUND
        while self.process.poll() is None and time.monotonic() < deadline:
            if self._master < 0:
                break
            if select.select([self._master], [], [], 0.01)[0]:  # or it could not write what is left
                self.seen += os.read(self._master, 65_536)
        return self.process.wait(BOUND)


@contextmanager
def sitting(*arguments: str, rows: int = 24, columns: int = 80) -> Iterator[Sitting]:
    """Starts it as the leader of a session on a new terminal; whatever happens, it is gone afterwards."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(master, (rows, columns))
    command = ["setsid", "--ctty", *COMMAND, *arguments]
    with signals_heard():
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment(TERM="xterm"))
    with process:
        seat = Sitting(process, master, slave)
        try:
            yield seat
        finally:
            process.kill()
            seat.close()


__all__ = ["Sitting", "sitting"]
