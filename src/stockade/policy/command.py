"""What a caller asks to be run, as a value that has been checked before anything exists; limits of execve(2)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from stockade.errors import InvalidRequest
from stockade.policy.checks import PATH_MAX, Checked, Environment, Strict, flag, text, variables
from stockade.policy.quantities import bounded, format_seconds, parse_seconds, shown

MAX_ARG_STRLEN = 131_072  # bytes of one argument or variable, with its NUL: 32 pages
ARG_MAX = 2_097_152  # bytes of all of them with their pointers: a quarter of the usual 8 MiB stack
LABEL_MAX = 60  # characters
LONGEST = 31_536_000.0  # seconds: a year
LARGEST_TERMINAL: Final = 4_096  # rows and columns; the kernel has 16 bits for each, and programs make arrays of them

_ONE_ENTRY_EACH = "give a list with the program first and one entry per argument, such as ['ls', '-l'], never one command string"


def _argv(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes):
        raise ValueError(f"{shown(value)} is one string: {_ONE_ENTRY_EACH}")
    if not isinstance(value, Sequence):
        raise ValueError(f"{shown(value)} is not a list: {_ONE_ENTRY_EACH}")
    if not value:
        raise ValueError(f"is empty: {_ONE_ENTRY_EACH}")
    return tuple(_argument(position, entry) for position, entry in enumerate(value))


def _argument(position: int, entry: object) -> str:
    if not isinstance(entry, str):
        raise ValueError(f"entry {position} is {shown(entry)}: every entry must be a str, one per argument")
    try:
        argument = text(entry)
    except ValueError as error:
        raise ValueError(f"entry {position}: {error}") from None
    if position == 0 and not argument:
        raise ValueError("entry 0 is empty: it names the program to run")
    return argument


def _stdin(value: Any) -> bytes | None:
    if isinstance(value, str):
        raise ValueError(f"{shown(value)} is text: give bytes, such as text.encode()")
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise ValueError(f"{shown(value)} is not bytes: give bytes, or None for /dev/null")


def _cwd(value: Any) -> str | None:
    if value is None:
        return None
    path = text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if not path:
        raise ValueError("is empty: name a directory, or leave it out for the workspace")
    if len(os.fsencode(path)) >= PATH_MAX:
        raise ValueError(f"{shown(path)} is longer than {PATH_MAX - 1} bytes, the kernel's limit for a path: shorten it")
    return path


def _label(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text: give a str")
    # A label is shown in tables and prompts, so it stays on one line.
    words = " ".join(value.split())
    return _shortened(words) or None


def _shortened(words: str) -> str:
    return words if len(words) <= LABEL_MAX else words[:LABEL_MAX] + "…"


def _cells(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_TERMINAL:
        raise ValueError(f"{shown(value)} is no size of a terminal: give a whole number from 1 to {LARGEST_TERMINAL}")
    return value


class Terminal(Strict):
    """The size of a job's terminal in characters (TIOCSWINSZ in ioctl_tty(2)).

    Raises: InvalidRequest, with the field.
    """

    noun = "terminal"

    rows: Annotated[int, Checked(_cells)] = 24
    columns: Annotated[int, Checked(_cells)] = 80


def _tty(value: Any) -> Terminal | None:
    if value is None or isinstance(value, Terminal):
        return value
    raise ValueError(f"{shown(value)} is no terminal: give Terminal(rows=24, columns=80), or None for a job without one")


class Command(Strict):
    """One program with its arguments and what is given to it; says nothing about what it may do.

    Raises: InvalidRequest, with the field.
    """

    noun = "command"

    argv: Annotated[tuple[str, ...], Checked(_argv)]
    cwd: Annotated[str | None, Checked(_cwd)] = None  # absolute, or relative to the workspace; None: the workspace
    env: Annotated[Mapping[str, str], Checked(variables)] = Field(default_factory=Environment)  # on top of the policy's
    replace_env: Annotated[bool, Checked(flag)] = False  # `env` is the whole environment instead
    stdin: Annotated[bytes | None, Checked(_stdin)] = None  # None: /dev/null
    interactive: Annotated[bool, Checked(flag)] = False  # its standard input stays open and is written while it runs
    tty: Annotated[Terminal | None, Checked(_tty)] = None  # its standard streams are a terminal of its own; always interactive
    timeout: Annotated[
        float | None,
        Checked(bounded(parse_seconds, format_seconds, 0.001, LONGEST, optional=True)),
    ] = None  # seconds; None: the policy's wall_time
    label: Annotated[str | None, Checked(_label)] = None

    @model_validator(mode="after")
    def _fits(self) -> Command:
        check_exec_size(self.argv, self.env)
        if self.stdin is not None and self.takes_input:
            raise InvalidRequest(
                "stdin: a job that is interactive or has a terminal gets its input while it runs",
                field="stdin",
                hint="leave stdin out and write it with write_stdin, then close_stdin",
            )
        return self

    @property
    def takes_input(self) -> bool:
        """True where the job can be written to while it runs."""
        return self.interactive or self.tty is not None

    @property
    def title(self) -> str:
        """The label, else the first two entries of argv, on one line of at most 60 characters and an ellipsis."""
        return self.label or _shortened(" ".join(" ".join(self.argv[:2]).split())) or "command"


def command(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    replace_env: bool = False,
    stdin: bytes | None = None,
    interactive: bool = False,
    tty: Terminal | None = None,
    timeout: float | str | None = None,
    label: str | None = None,
) -> Command:
    """The command of these parts.

    Raises: InvalidRequest, with the field.
    """
    return Command.model_validate(
        {
            "argv": argv,
            "cwd": cwd,
            "env": {} if env is None else env,
            "replace_env": replace_env,
            "stdin": stdin,
            "interactive": interactive,
            "tty": tty,
            "timeout": timeout,
            "label": label,
        }
    )


def check_exec_size(argv: Iterable[str], env: Mapping[str, str]) -> None:
    """Refuse what execve(2) would answer with E2BIG.

    Raises: InvalidRequest for argv or env.
    """
    total = 0
    for field, strings in (
        ("argv", {f"entry {position}": entry for position, entry in enumerate(argv)}),
        ("env", {f"variable {shown(name)}": f"{name}={value}" for name, value in env.items()}),
    ):
        for which, string in strings.items():
            size = len(os.fsencode(string)) + 1
            if size > MAX_ARG_STRLEN:
                raise InvalidRequest(
                    f"{field}: {which} has {size - 1} bytes, and the kernel takes {MAX_ARG_STRLEN - 1} in one string",
                    field=field,
                    hint="pass the data on stdin or in a file",
                )
            total += size + 8
            if total > ARG_MAX:
                raise InvalidRequest(
                    f"{field}: arguments and environment take more than {ARG_MAX} bytes in all, the kernel's limit",
                    field=field,
                    hint="pass the data on stdin or in a file, or split the call",
                )
