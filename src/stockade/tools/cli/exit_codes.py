"""The exit codes of the command line: one table, for the code and for `--help`.

A command's own code is passed on as it is. The others are those that shells, timeout(1) and env(1) have taught people to expect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from stockade.errors import ExecutableNotFound, LaunchFailed, NotExecutable, StockadeError

if TYPE_CHECKING:
    from stockade.jobs.records import JobRecord

SIGNALLED: Final = 128  # plus the signal's number
TIMED_OUT: Final = 124  # as timeout(1)
FAILED: Final = 125  # as env(1) and timeout(1): it is we who failed, whatever the command would have said
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
OUT_OF_MEMORY: Final = SIGNALLED + 9  # SIGKILL, which is what the kernel's own out-of-memory killer sends
OUTPUT_LIMITED: Final = SIGNALLED + 25  # SIGXFSZ, which is what the kernel sends to a program that writes beyond its limit
KILLED: Final = SIGNALLED + 9
INTERRUPTED: Final = SIGNALLED + 2
UNREAD: Final = SIGNALLED + 13  # SIGPIPE, which is what the kernel sends to a program that nobody reads

TABLE: Final = (
    ("N", "the command's own exit code"),
    ("128+N", "signal N ended the command, or Stockade got it and ended the job: Ctrl-C 130, SIGTERM 143"),
    (str(TIMED_OUT), "timed out (--timeout, --cpu-time or --idle)"),
    (str(FAILED), "Stockade failed or refused: bad option or policy, unfit host, sandbox or output files not made"),
    (str(NOT_EXECUTABLE), "the program is there but cannot be executed"),
    (str(NOT_FOUND), "there is no such program inside the sandbox"),
    (str(OUT_OF_MEMORY), "out of memory (128 + SIGKILL)"),
    (str(UNREAD), "whoever read the output went away (128 + SIGPIPE)"),
    (str(OUTPUT_LIMITED), "more output than --output allows (128 + SIGXFSZ)"),
)


def of_error(error: StockadeError) -> int:
    """The exit code of a failure of ours, or of a program that could not be executed."""
    if isinstance(error, NotExecutable) or (isinstance(error, LaunchFailed) and error.step == "exec"):
        return NOT_EXECUTABLE
    return NOT_FOUND if isinstance(error, ExecutableNotFound) else FAILED


def of_record(record: JobRecord, *, received: int | None = None) -> int:
    """The exit code that stands for how a job ended; `received` is the signal that made us end it."""
    outcome = record.outcome
    if outcome is None:
        return FAILED
    match outcome.kind:
        case "exited" | "signaled":
            return outcome.exit_code if outcome.exit_code is not None else SIGNALLED + (outcome.signal or 0)
        case "timed_out":
            return TIMED_OUT
        case "out_of_memory":
            return OUT_OF_MEMORY
        case "output_limited":
            return OUTPUT_LIMITED
        case "killed":
            return _of_killed(outcome.by, received)
        case "aborted":
            return FAILED
        case kind:
            assert_never(kind)


def _of_killed(by: str, received: int | None) -> int:
    if by == "caller" and received is not None:
        return SIGNALLED + received
    return KILLED if by in ("caller", "foreign") else FAILED
