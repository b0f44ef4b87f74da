"""The sealed policy of a shell: any program and any shell line, inside a sandbox that shows one directory (conflict table 4.1).

Contracts D and T have no policy of their own, so this one is explicit: permissive in what may be run, never in what is seen. What a
model passes as a working directory picks a place in it and cannot widen it. Both take no other environment than the policy names;
`inherit_env` passes on what is no secret.
"""

from __future__ import annotations

import errno as errno_names
import math
import os
import signal as signal_names
from typing import Final

from stockade.confinement import find_directory
from stockade.errors import InvalidRequest
from stockade.jobs.records import JobRecord
from stockade.policy.model import Limits, Policy
from stockade.policy.quantities import shown

# Nobody sits at a terminal, and no pager may wait for keys (1B.3).
QUIET: Final = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
MAX_MS: Final = 2_147_483_647  # the longest timer of contract D


def shell_policy(base: Policy | None, workspace: str) -> Policy:
    """`base` (by default one that trusts a command with nothing but `workspace`), with any executable and no time limit of its own.

    Raises: PolicyError where the directory cannot be shown to a command.
    """
    policy = base if base is not None else Policy(limits=Limits(wall_time=None))
    return policy.replace(
        workspace=workspace,
        ro=tuple(path for path in policy.ro if path != workspace),
        rw=tuple(path for path in policy.rw if path != workspace),
        executables=None,
    )


def checked_ms(field: str, value: object, *, what: str) -> float:
    """A positive finite number of milliseconds, or of bytes. Raises: InvalidRequest with the field (1B.3)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidRequest(f"{what}: {field} must be a positive finite number", field=field, hint=f"{shown(value)} is none")
    return int(value) if value == int(value) else value


def check_directory(field: str, path: str, policy: Policy) -> None:
    """Looks whether a directory that the policy shows is there; blocks.

    What the policy does not show is refused later, in the same words whether it is there or not.

    Raises: InvalidRequest with the kernel's error (D-3).
    """
    try:
        roots = [os.path.realpath(each) for each in (policy.workspace, *policy.rw, *policy.ro) if each is not None]
        number = find_directory(os.path.abspath(path), roots).errno
    except ValueError as error:  # a NUL byte, say
        raise _unusable(field, path, str(error)) from None
    if number is not None:
        raise _unusable(field, path, f"{errno_names.errorcode.get(number, number)}: {os.strerror(number)}")


def _unusable(field: str, path: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: {path!r:.300} cannot be used: {why}", field=field, hint="name an existing directory that the sandbox shows"
    )


def signal_of(record: JobRecord) -> str | None:
    """The name of the signal that ended its command."""
    outcome = record.outcome
    if outcome is None:
        return None
    if outcome.signal is None:
        # Nobody saw the status of a command whose whole tree the kernel killed at once; it is the one signal that does that.
        return "SIGKILL" if outcome.exit_code is None and record.started_at is not None else None
    try:
        return signal_names.Signals(outcome.signal).name
    except ValueError:
        return f"SIG{outcome.signal}"
