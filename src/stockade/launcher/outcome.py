"""How a program ended: a closed set of outcomes, told apart by `kind`, and the one function that picks among them.

`exit_code` and `signal` are always those of the command's own wait status, whatever ended it: a program that traps SIGTERM at its
deadline and exits 0 is `timed_out` with exit code 0. Both are None where the command's status was never seen.
"""

from __future__ import annotations

import signal as signal_names
from dataclasses import dataclass
from typing import Literal


def signal_name(number: int) -> str:
    """`SIGTERM` for 15; `signal 64` where Python has no name for it."""
    try:
        return signal_names.Signals(number).name
    except ValueError:
        return f"signal {number}"


def size_text(count: int) -> str:
    """Bytes in words: `512 MiB`; exact below one MiB."""
    if count >= 1 << 20:
        return f"{count / (1 << 20):.4g} MiB"
    return f"{count // 1024} KiB" if count and count % 1024 == 0 else f"{count} byte{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Status:
    """The command's own wait status (wait(2)); exactly one of the two is set."""

    exit_code: int | None = None
    signal: int | None = None

    def sentence(self) -> str:
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return f"exit {self.exit_code}"


@dataclass(frozen=True, slots=True)
class Exited:
    """The command ended by itself with an exit code, 0 to 255."""

    exit_code: int
    signal: None = None
    kind: Literal["exited"] = "exited"

    def sentence(self) -> str:
        return f"exit {self.exit_code}"


@dataclass(frozen=True, slots=True)
class Signaled:
    """The command was ended by a signal that Stockade did not send: its own, or one of its own processes'.

    `file_size` is the limit in bytes that was in force, where the signal is the one that the kernel sends for it (SIGXFSZ).
    """

    signal: int
    exit_code: None = None
    kind: Literal["signaled"] = "signaled"
    file_size: int | None = None

    def sentence(self) -> str:
        why = "" if self.file_size is None else f": a file grew past the file size limit, {size_text(self.file_size)}"
        return f"killed by {signal_name(self.signal)}{why}"


@dataclass(frozen=True, slots=True)
class Killed:
    """The job was ended from outside: by the caller, by the executor closing, by a failed sink, or by somebody else."""

    by: Literal["caller", "shutdown", "sink", "foreign"]
    detail: str
    exit_code: int | None = None
    signal: int | None = None
    kind: Literal["killed"] = "killed"

    def sentence(self) -> str:
        return f"killed: {self.detail}"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A time limit ended the job; `limit` in seconds of the clock that `clock` names."""

    clock: Literal["wall", "cpu", "idle"]
    limit: float
    exit_code: int | None = None
    signal: int | None = None
    kind: Literal["timed_out"] = "timed_out"

    def sentence(self) -> str:
        what = {"wall": "", "cpu": " of CPU time", "idle": " without output"}[self.clock]
        return f"timed out after {self.limit:g} s{what}"


@dataclass(frozen=True, slots=True)
class OutputLimited:
    """A stream wrote more than its cap; exactly `limit` bytes of it are kept."""

    stream: str
    limit: int
    exit_code: int | None = None
    signal: int | None = None
    kind: Literal["output_limited"] = "output_limited"

    def sentence(self) -> str:
        return f"killed: output limit, {self.limit} bytes of {self.stream} kept"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The memory limit ended the job. Bytes; `peak` is None where the kernel does not say, `processes` how many it killed."""

    limit: int | None
    peak: int | None = None
    processes: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    kind: Literal["out_of_memory"] = "out_of_memory"

    def sentence(self) -> str:
        parts = ["killed: out of memory"]
        if self.limit is not None:
            parts.append(f"{size_text(self.limit)} limit")
        if self.peak is not None:
            parts.append(f"peak {size_text(self.peak)}")
        if self.processes is not None:
            parts.append(f"{self.processes} process{'' if self.processes == 1 else 'es'}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Aborted:
    """The task that ran the job was cancelled."""

    detail: str = "the caller's task was cancelled"
    exit_code: int | None = None
    signal: int | None = None
    kind: Literal["aborted"] = "aborted"

    def sentence(self) -> str:
        return f"aborted: {self.detail}"


Outcome = Exited | Signaled | Killed | TimedOut | OutputLimited | OutOfMemory | Aborted
