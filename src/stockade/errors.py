"""Every way in which Stockade itself can fail, sorted by whose move it is.

    StockadeError
    ├─ InvalidRequest    the caller's: change the arguments (`field` says which)
    │  ├─ PolicyError        the policy or a profile is wrong
    │  ├─ NotAllowed         the policy refuses this
    │  ├─ UnknownJob         no job of that id is visible to the caller
    │  ├─ NotInteractive     the job was not started to be written to, or has no terminal
    │  └─ ExecutableNotFound no such program inside the sandbox
    │     └─ NotExecutable      it is there and cannot be executed
    ├─ Closed            the caller's: the executor or registry has been closed
    ├─ TooManyJobs       the caller's: wait for a job to end, or kill one
    ├─ InputNotTaken     the job's: it has not read what was written; `taken` says how much it has
    │  └─ InputClosed        it cannot be written to any more
    ├─ HostUnfit         the operator's: change the machine (`hint` says how)
    ├─ StateError        the operator's: the state directory cannot be used
    ├─ LaunchFailed      the kernel refused a step of the set-up
    └─ Protocol          ours: a peer broke the wire protocol

A program that exits with 1, dies of SIGSEGV, runs out of memory or of time is no error: it was run, and that is an `Outcome`.
"""

from __future__ import annotations

import errno as errno_names
import os


class StockadeError(Exception):
    """Base of all errors raised by Stockade; `hint` names the way out where there is one."""

    code = "internal"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


class InvalidRequest(StockadeError):
    """The request is wrong and nothing has happened; `field` names the argument."""

    code = "invalid"

    def __init__(self, message: str, *, field: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class PolicyError(InvalidRequest):
    """The policy, a policy file or a seccomp profile is wrong."""

    code = "policy"


class NotAllowed(InvalidRequest):
    """The policy refuses the request."""

    code = "not_allowed"


class UnknownJob(InvalidRequest):
    """No job with this id is visible to the caller."""

    code = "unknown_job"


class NotInteractive(InvalidRequest):
    """The job has no standard input that can be written to, or no terminal."""

    code = "not_interactive"


class ExecutableNotFound(InvalidRequest):
    """The program cannot be found, or cannot be seen, inside the sandbox."""

    code = "executable_not_found"


class NotExecutable(ExecutableNotFound):
    """The program is there, inside the sandbox, and is no executable file."""

    code = "not_executable"


class Closed(StockadeError):
    """The executor has been closed; make a new one."""

    code = "closed"


class TooManyJobs(StockadeError):
    """The admission limit is reached; nothing was started."""

    code = "too_many_jobs"


class InputNotTaken(StockadeError):
    """A job has not taken all that was written to it within the time; `taken` is how many bytes it has, from the first on."""

    code = "input_not_taken"

    def __init__(self, message: str, *, taken: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.taken = taken


class InputClosed(InputNotTaken):
    """The job has ended, or its standard input has been closed by it or by a caller; nothing more can be written."""

    code = "input_closed"


class HostUnfit(StockadeError):
    """This host cannot enforce what the policy asks for; `feature` names what is missing."""

    code = "host_unfit"

    def __init__(self, message: str, *, feature: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.feature = feature


class StateError(StockadeError):
    """The state directory is locked, damaged, not ours or not writable."""

    code = "state"


class Protocol(StockadeError):
    """A peer of the wire protocol sent something that is not part of it."""

    code = "protocol"


class LaunchFailed(StockadeError):
    """The sandbox could not be built: which step, which call, on which path, and the kernel's errno."""

    code = "launch_failed"

    def __init__(self, *, step: str, call: str, path: str | None, errno: int | None, hint: str | None = None) -> None:
        where = f" on {path!r}" if path else ""
        why = "" if errno is None else f": {errno_names.errorcode.get(errno, errno)} ({os.strerror(errno)})"
        super().__init__(f"launch failed at step {step!r}: {call}{where}{why}", hint=hint)
        self.step = step
        self.call = call
        self.path = path
        self.errno = errno
