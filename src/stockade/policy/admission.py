"""Whether a policy lets a command in, as far as their text tells; nothing is looked up and nothing is created.

That the working directory really lies inside the workspace is found out by `launcher.lookup`, on descriptors.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from stockade.errors import NotAllowed
from stockade.policy.checks import is_within, listed
from stockade.policy.command import Command
from stockade.policy.model import Policy
from stockade.policy.quantities import format_seconds, shown
from stockade.sandbox.spec import JOB_HOME

# What only a shell would understand.
_SHELL = frozenset(";&|<>$`\n\r\t ")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A command that may be looked up: its timeout is part of the policy, its working directory is absolute."""

    policy: Policy
    command: Command
    cwd: str


def admit(policy: Policy, command: Command) -> Admitted:
    """Hold the command against the policy.

    Raises: NotAllowed for argv, timeout or cwd, with the way out.
    """
    _check_executable(policy, command)
    return Admitted(_timed(policy, command), command, _cwd(policy, command))


def _check_executable(policy: Policy, command: Command) -> None:
    name = command.argv[0]
    if policy.executables is None or name in policy.executables:
        return
    # The name is compared as it was given: "./git" or "/workspace/git" is not the "git" that was permitted.
    hint = f"permitted executables: {listed(policy.executables)}; use one of those exactly as written, or other tools"
    if _SHELL & set(name):
        hint += "; there is no shell: put the program alone in argv[0] and each argument in its own entry"
    raise NotAllowed(f"executable {shown(name)} is not allowed", field="argv", hint=hint)


def _timed(policy: Policy, command: Command) -> Policy:
    if command.timeout is None:
        return policy
    limit = policy.limits.wall_time
    if limit is not None and command.timeout > limit:
        raise NotAllowed(
            f"timeout: {format_seconds(command.timeout)} is longer than the policy's {format_seconds(limit)}",
            field="timeout",
            hint=f"give at most {format_seconds(limit)}, or leave timeout out",
        )
    return policy.narrow(limits={"wall_time": command.timeout})


def _cwd(policy: Policy, command: Command) -> str:
    top = policy.workspace or JOB_HOME
    if command.cwd is None:
        return top
    if command.cwd.startswith("/"):
        return _tidied(command.cwd)
    joined = posixpath.join(top, command.cwd)
    plain = posixpath.normpath(joined)
    if not is_within(plain, top):
        raise NotAllowed(
            f"cwd: {shown(command.cwd)} leads to {shown(plain)}, outside the permitted root {shown(top)}",
            field="cwd",
            hint=f"name a directory inside {shown(top)}, absolute or relative to it",
        )
    return _tidied(joined)


def _tidied(path: str) -> str:
    # ".." stays for lookup to follow: after a link it does not lead where the text says.
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
