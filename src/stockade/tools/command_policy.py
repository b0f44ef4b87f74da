"""What background commands may do: the policy of contract N (N-P1), as a value, and the `Policy` that it stands for.

There is no default (N-P2). The environment is the one difference that is meant: a command starts with a clean one unless
`inherit_env` says otherwise, since what a host keeps in its variables is seldom for a model's commands.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Annotated, Any, Final

from stockade.errors import PolicyError
from stockade.policy.checks import Checked, Strict, text, texts
from stockade.policy.model import MAX_BYTES, Policy
from stockade.policy.quantities import shown

DEFAULT_TIMEOUT_MS: Final = 120_000
DEFAULT_OUTPUT_BYTES: Final = 10_485_760
GRACE_MS: Final = 5_000
MAX_MS: Final = 31_536_000_000  # a year
MAX_GRACE_MS: Final = 3_600_000

# Gets argv and the real working directory; a text that it returns is the refusal, anything else lets the command in (N-P4).
Allowlist = Callable[[tuple[str, ...], str], object]


def checked_number(value: object, *, low: float, high: float, unit: str, whole: bool = False) -> float:
    """A real number within bounds; no boolean, no text, nothing that is not finite (U-1). Raises: ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{shown(value)} is not a number of {unit}: give one from {low} to {high}")
    if not low <= value <= high or (whole and value != int(value)):
        raise ValueError(f"{shown(value)} is not accepted: give a {'whole ' if whole else ''}number of {unit} from {low} to {high}")
    return int(value) if value == int(value) else value


def timeout_ms(value: object) -> float:
    """A time budget in milliseconds. Raises: ValueError."""
    return checked_number(value, low=1, high=MAX_MS, unit="milliseconds")


def output_bytes(value: object) -> int:
    """A cap on a stream in bytes. Raises: ValueError."""
    return int(checked_number(value, low=1, high=MAX_BYTES, unit="bytes", whole=True))


def _grace_ms(value: object) -> float:
    return checked_number(value, low=1, high=MAX_GRACE_MS, unit="milliseconds")


def _executables(value: Any) -> tuple[str, ...]:
    names = texts(value, what="executables, such as ['git', '/usr/bin/make']")
    if "" in names:
        raise ValueError("names an empty executable: give names such as 'git', or [] to refuse every command")
    return names


def _root(value: Any) -> str:
    path = text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if not path:
        raise ValueError("is empty: name the directory that commands run in")
    return path


def _hook(value: Any) -> Allowlist | None:
    if value is not None and not callable(value):
        raise ValueError(f"{shown(value)} is not a function of argv and cwd: give one, or None")
    hook: Allowlist | None = value
    return hook


def _inherit(value: Any) -> bool | tuple[str, ...]:
    return Policy(inherit_env=value).inherit_env


class BackgroundCommandPolicy(Strict):
    """Which executables may be run, below which directory, for how long and with how much output.

    Raises: PolicyError, with the field.
    """

    refusal = PolicyError
    noun = "background command policy"

    allowed_executables: Annotated[tuple[str, ...], Checked(_executables)]  # exact argv[0]; none of them: everything is refused
    cwd_root: Annotated[str, Checked(_root)]  # looked up at each start
    allowlist: Annotated[Allowlist | None, Checked(_hook)] = None
    default_timeout_ms: Annotated[float, Checked(timeout_ms)] = DEFAULT_TIMEOUT_MS
    max_output_bytes: Annotated[int, Checked(output_bytes)] = DEFAULT_OUTPUT_BYTES  # each stream
    grace_ms: Annotated[float, Checked(_grace_ms)] = GRACE_MS  # between the first signal and SIGKILL
    inherit_env: Annotated[bool | tuple[str, ...], Checked(_inherit)] = False  # as `Policy.inherit_env`

    def compile(self, base: Policy, root: str, *, timeout_ms: float, max_output_bytes: int) -> Policy:
        """The policy of one command in the existing directory `root`: `base`, with the root as its workspace and these limits.

        Raises: PolicyError where `root` cannot be shown to a command.
        """
        return base.replace(
            workspace=root,
            ro=tuple(path for path in base.ro if path != root),
            rw=tuple(path for path in base.rw if path != root),
            executables=self.allowed_executables,
            inherit_env=self.inherit_env,
            overflow="kill",
            merge_streams=False,
            limits={"wall_time": timeout_ms / 1_000, "output": max_output_bytes, "grace": self.grace_ms / 1_000},
        )
