"""Why a job is being ended: the first cause decides, later ones become notes (U-25)."""

from __future__ import annotations

import dataclasses

from stockade.launcher.outcome import Exited, Killed, Outcome, OutOfMemory, OutputLimited, Signaled, Status
from stockade.launcher.waiting import Milestone
from stockade.policy.model import Limits
from stockade.sandbox.counters import Usage

SIGKILL = 9
SIGXFSZ = 25
_HOST_WITHOUT_MEMORY = "the host, or a cgroup around the job's, ran out of memory; the job was within its own limit"


class Ending:
    """The cause that was first to ask for the end of one job; belongs to the event loop of its executor."""

    def __init__(self) -> None:
        self.cause: Outcome | None = None
        self.notes: list[str] = []
        self.asked = Milestone()
        self._closed = False

    def ask(self, cause: Outcome) -> bool:
        """Asks for the end of the job; False where another cause was first, or the command had already ended by itself.

        That bytes of the output are missing is never too late: they may have been in the pipe when the command ended.
        """
        if self.cause is not None or (self._closed and not _is_loss(cause)):
            self._note(cause)
            return False
        self.cause = cause
        self.asked.reach()
        return True

    def close(self) -> None:
        """The command has ended by itself: nobody can ask for its end any more."""
        self._closed = True

    def withdraw(self) -> None:
        """The command had ended by itself before the first signal was sent: who asked came too late, but for a loss (U-25)."""
        if self.cause is not None and not _is_loss(self.cause):
            self._note(self.cause)
            self.cause = None

    def _note(self, cause: Outcome) -> None:
        self.notes.append(f"too late to count: {cause.sentence()}")


def _is_loss(cause: Outcome) -> bool:
    """True where the cause says that the output, or the memory, of the job is not what it would have been."""
    return isinstance(cause, OutputLimited | OutOfMemory) or (isinstance(cause, Killed) and cause.by == "sink")


def classify(cause: Outcome | None, status: Status | None, usage: Usage, limits: Limits, *, is_server_lost: bool = False) -> Outcome:
    """How a job ended, from the cause (if any), the command's own status (if it was seen) and what its cgroup counted.

    With `is_server_lost`, a job whose end nobody reported went down with the fork server.

    A tree that the kernel's out-of-memory killer ended counts as such only where the command itself died of it; one that lost a
    child and went on has ended as it says, and the loss is in its usage.
    """
    code, signal = (None, None) if status is None else (status.exit_code, status.signal)
    if cause is not None:
        return dataclasses.replace(cause, exit_code=code, signal=signal)  # type: ignore[arg-type]  # never Exited or Signaled
    if usage.oom_kills and (status is None or signal == SIGKILL):
        if usage.oom_events == 0:
            return Killed(by="foreign", detail=_HOST_WITHOUT_MEMORY, exit_code=code, signal=signal)
        return OutOfMemory(limit=limits.memory, peak=usage.peak_memory, processes=usage.oom_kills, exit_code=code, signal=signal)
    if status is None:
        who = "fork server was killed, and every job with it" if is_server_lost else "sandbox's init was killed from outside"
        return Killed(by="foreign", detail=f"the {who}")
    if signal is not None:
        return Signaled(signal, file_size=limits.file_size if signal == SIGXFSZ else None)
    assert code is not None
    return Exited(code)
