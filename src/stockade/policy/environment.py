"""The environment that a job starts with: clean, then what the policy inherits, then what is set outright."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stockade.policy.checks import Environment
from stockade.policy.command import Command
from stockade.policy.model import Policy
from stockade.sandbox.spec import JOB_HOME, JOB_USER

# Names that commonly hold what must not reach untrusted code.
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PWD_|_PWD|PASS(?:FILE)?\Z|CREDENTIAL|CREDS|AUTH|COOKIE|SESSION|PRIVATE|SIGNING|WEBHOOK|DSN"
    r"|CONNECTION_STRING|DATABASE_URL|KUBECONFIG|NETRC|API_?KEY|ACCESS_?KEY|(?:\A|_)KEYS?(?:_|\Z)|(?:\A|_)PAT\Z",
    re.IGNORECASE,
)
# A URL with a password in it.
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")
# The dynamic linker's and bash's ways to bring code into every program.
_CODE = ("LD_", "GLIBC_TUNABLES", "BASH_FUNC_", "BASH_ENV")
# These describe the caller's place, and the job has its own.
_OWN = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP", "SHLVL", "_"})

# Nobody sits at a terminal: no colours, no line editing, and no pager to wait in.
_NO_TERMINAL = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}
_TERMINAL = {"TERM": "xterm-256color"}


def is_inherited_by_default(name: str) -> bool:
    """True where `inherit_env=True` passes on a variable of this name."""
    return not (name.startswith(_CODE) or name in _OWN or _SECRET_NAME.search(name))


def job_environment(policy: Policy, command: Command, cwd: str, inherited: Mapping[str, str]) -> Environment:
    """All variables of the job; `inherited` is the caller's environment, of which the policy picks."""
    if command.replace_env:
        return Environment(command.env)
    return Environment(
        {
            "PATH": ":".join(policy.path),
            "HOME": JOB_HOME,
            "USER": JOB_USER,
            "LOGNAME": JOB_USER,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
            "PWD": cwd,
            **(_NO_TERMINAL if command.tty is None else _TERMINAL),
            **_picked(policy.inherit_env, inherited),
            **policy.env,
            **command.env,
        }
    )


def _picked(inherit: bool | tuple[str, ...], inherited: Mapping[str, str]) -> dict[str, str]:
    match inherit:
        case False:
            return {}
        case True:
            return {name: value for name, value in inherited.items() if is_inherited_by_default(name) and not _SECRET_VALUE.search(value)}
        case names:
            return {name: inherited[name] for name in names if name in inherited}
