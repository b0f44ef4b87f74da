"""The options of `run` and `explain`: what they are called, and the policy and command that they make.

Nothing heavy is imported before an option has to be understood: `--help` must be quick.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from stockade.errors import InvalidRequest, PolicyError

if TYPE_CHECKING:
    from stockade.bank.retention import Retention
    from stockade.config import Config
    from stockade.policy.command import Command, Terminal
    from stockade.policy.model import Policy

MAX_STDIN: Final = 64 << 20  # bytes that --stdin takes; they are held in memory

_LIMITS: Final = {
    "memory": "memory",
    "cpus": "cpus",
    "pids": "processes",
    "timeout": "wall_time",
    "cpu_time": "cpu_time",
    "idle": "idle_time",
    "output": "output",
    "grace": "grace",
}
# Where the library's name of a field differs from the option that sets it.
_OPTION_OF: Final = {"network": "--net", **{f"limits.{limit}": f"--{option.replace('_', '-')}" for option, limit in _LIMITS.items()}}

StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR", help="Where records and output are kept [STOCKADE_STATE_DIR]."),
]


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """What jobs may do, as it was written on the command line; None and empty lists stand for what was not."""

    workspace: Annotated[
        str | None,
        _option(
            "--workspace", "DIR", "The directory that the job may read and write, and where it starts. Without it none of yours is visible."
        ),
    ] = None
    ro: Annotated[list[str] | None, _option("--ro", "PATH", "Make PATH visible, read-only. Repeatable.")] = None
    rw: Annotated[list[str] | None, _option("--rw", "PATH", "Make PATH visible and writable. Repeatable.")] = None
    memory: Annotated[str | None, _option("--memory", "SIZE", "Memory of all processes together, such as 512M; or none.")] = None
    cpus: Annotated[str | None, _option("--cpus", "NUMBER", "CPUs that may be kept busy, such as 0.5 or 2; or none.")] = None
    pids: Annotated[str | None, _option("--pids", "COUNT", "Processes and threads at a time.")] = None
    timeout: Annotated[str | None, _option("--timeout", "TIME", "Time that may pass: seconds, or 90s, 5m, 1h; or none.")] = None
    cpu_time: Annotated[str | None, _option("--cpu-time", "TIME", "CPU time of all processes together.")] = None
    idle: Annotated[str | None, _option("--idle", "TIME", "Time that may pass without output.")] = None
    output: Annotated[str | None, _option("--output", "SIZE", "Output kept of each stream; more ends the job.")] = None
    grace: Annotated[str | None, _option("--grace", "TIME", "Time between the first signal and SIGKILL.")] = None
    env: Annotated[
        list[str] | None, _option("--env", "NAME[=VALUE]", "Set a variable; NAME alone passes on the value that it has here. Repeatable.")
    ] = None
    net: Annotated[str | None, _option("--net", "none|loopback", "What can be reached: nothing, or the job's own 127.0.0.1.")] = None
    seccomp: Annotated[str | None, _option("--seccomp", "PROFILE", "strict, default, debug, or the path of an OCI profile.")] = None
    profile: Annotated[str | None, _option("--profile", "NAME", "The policy to start from: untrusted (default), build, debug.")] = None
    policy: Annotated[str | None, _option("--policy", "FILE", "The policy to start from, as a TOML file.")] = None
    require: Annotated[
        list[str] | None, _option("--require", "MECHANISM", "Refuse where the host lacks it, such as memory.cgroup. Repeatable.")
    ] = None
    state_dir: StateDir = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PolicyOptions):
    """What is to be run, and what it may do."""

    argv: Annotated[list[str], typer.Argument(metavar="ARGV", help="The program and its arguments; no shell reads them.")]
    cwd: Annotated[str | None, _option("--cwd", "DIR", "Where the job starts; relative to the workspace.")] = None
    label: Annotated[str | None, _option("--label", "TEXT", "A name for lists.")] = None


def with_run_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command all options of `RunOptions` besides its own; it gets them as one value named `options`."""
    return _with_options(RunOptions, command)


def with_policy_options(command: Callable[..., int]) -> Callable[..., int]:
    """As `with_run_options`, with those of `PolicyOptions`."""
    return _with_options(PolicyOptions, command)


def _with_options(options_type: type[PolicyOptions], command: Callable[..., int]) -> Callable[..., int]:
    hints = get_type_hints(options_type, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(options_type)
    ]
    own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def filled(**given: Any) -> int:
        options = options_type(**{name: given.pop(name) for name in hints})
        return command(options=options, **given)

    parameters = [*shared, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own if each.name != "options")]
    vars(filled)["__signature__"] = inspect.Signature(parameters)
    filled.__annotations__ = {each.name: each.annotation for each in parameters}
    return filled


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run, under which policy, with which settings."""

    policy: Policy
    command: Command
    config: Config
    environment: dict[str, str]


def understand(options: RunOptions, *, stdin: bytes | None = None, interactive: bool = False, terminal: Terminal | None = None) -> Wanted:
    """The policy and the command that the options describe. A job on a terminal finds it called as ours is (TERM).

    Raises: InvalidRequest and its kin, which name the option.
    """
    from stockade.config import caller_environment
    from stockade.policy.command import command

    environment = caller_environment()
    variables = _variables(options.env or (), environment)
    if terminal is not None and "TERM" in environment:
        variables = {"TERM": environment["TERM"], **variables}
    wanted = command(
        options.argv,
        cwd=options.cwd,
        env=variables,
        stdin=stdin,
        interactive=interactive,
        tty=terminal,
        label=options.label,
    )
    return Wanted(_policy(options), wanted, _config(options), environment)


@dataclass(frozen=True, slots=True)
class Ground:
    """What every job of a server runs under, and the settings of its executor."""

    policy: Policy
    config: Config
    environment: dict[str, str]


def understand_policy(options: PolicyOptions) -> Ground:
    """The policy that the options describe, variables included. Raises: InvalidRequest and its kin, which name the option."""
    from stockade.config import caller_environment

    environment = caller_environment()
    policy = _policy(options)
    variables = _variables(options.env or (), environment)
    return Ground(policy.replace(env={**policy.env, **variables}), _config(options), environment)


def _config(options: PolicyOptions) -> Config:
    from stockade.config import from_environment

    return from_environment(**({} if options.state_dir is None else {"state_dir": options.state_dir}))


def _policy(options: PolicyOptions) -> Policy:
    from stockade.policy.profiles import DEFAULT, profile

    if options.policy is None:
        base = profile(options.profile or DEFAULT)
    elif options.profile is not None:
        raise InvalidRequest(
            "--profile and --policy are both given", field="profile", hint="name the profile in the file: profile = 'build'"
        )
    else:
        base = _policy_file(options.policy)
    changes: dict[str, Any] = {}
    limits = {limit: _plain_number(given) for option, limit in _LIMITS.items() if (given := getattr(options, option)) is not None}
    if limits:
        changes["limits"] = limits
    if options.workspace is not None:
        changes["workspace"] = _absolute(options.workspace)
    for name in ("ro", "rw"):
        if paths := getattr(options, name):
            changes[name] = (*getattr(base, name), *map(_absolute, paths))
    if options.net is not None:
        changes["network"] = options.net
    if options.seccomp is not None:
        changes["seccomp"] = _absolute(options.seccomp) if "/" in options.seccomp else options.seccomp
    if options.require:
        changes["require"] = base.require | frozenset(options.require)
    try:
        return base.replace(**changes)
    except PolicyError as error:
        option = _OPTION_OF.get(error.field, f"--{error.field}")
        # The library's None is written as a word here.
        why = error.message.removeprefix(f"{error.field}: ").replace("or None for no limit", "or none for no limit")
        raise PolicyError(f"{option}: {why}", field=error.field, hint=error.hint) from None


def _policy_file(path: str) -> Policy:
    from stockade.policy.files import load_policy

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(1 << 20)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PolicyError(f"--policy: {path!r} cannot be read: {why}", field="policy", hint="name a TOML file") from None
    return load_policy(text, origin=path)


def _plain_number(given: Any) -> Any:
    """On a command line everything is text, so a plain number is a number: of seconds, bytes or CPUs."""
    if isinstance(given, str) and re.fullmatch(r"[0-9]{1,20}", given):
        return int(given)
    if isinstance(given, str) and re.fullmatch(r"[0-9]{1,20}\.[0-9]{1,30}", given):
        return float(given)
    return given


def _absolute(path: str) -> str:
    """Paths may be relative to where we are; one with `..` is resolved, because after a link it means another place."""
    return os.path.realpath(path) if ".." in path.split("/") else os.path.abspath(path)


def _variables(given: list[str] | tuple[()], environment: dict[str, str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in given:
        name, separator, value = entry.partition("=")
        if not name:
            raise InvalidRequest(f"--env: {entry!r} names no variable", field="env", hint="give NAME=VALUE, or NAME alone")
        if not separator:
            if name not in environment:
                raise InvalidRequest(f"--env: {name!r} is not set here", field="env", hint=f"give its value: --env {name}=VALUE")
            value = environment[name]
        variables[name] = value
    return variables


def read_stdin() -> bytes:
    """Our whole standard input. Blocks until its end. Raises: InvalidRequest where it is too long or cannot be read."""
    data = bytearray()
    try:
        while part := os.read(0, 1 << 20):
            data += part
            if len(data) > MAX_STDIN:
                raise InvalidRequest(
                    f"--stdin: the input is longer than {MAX_STDIN >> 20} MiB",
                    field="stdin",
                    hint="pass it as a file, with --ro or in the workspace",
                )
    except OSError as error:
        raise InvalidRequest(f"--stdin: the input cannot be read: {error.strerror}", field="stdin") from None
    return bytes(data)


def retention(older_than: str | None, keep_count: int | None, keep_bytes: str | None) -> Retention:
    """What `purge` is to keep. Raises: InvalidRequest where nothing is said, or what is said is no quantity."""
    from stockade.bank.retention import Retention
    from stockade.policy.quantities import QuantityError, parse_bytes, parse_seconds

    if older_than is None and keep_count is None and keep_bytes is None:
        raise InvalidRequest(
            "nothing says what to remove",
            field="older_than",
            hint="give --older-than TIME, --keep-count COUNT or --keep-bytes SIZE; --keep-count 0 removes all that has ended",
        )
    field = "--older-than"
    try:
        max_age = None if older_than is None else parse_seconds(_plain_number(older_than))
        field = "--keep-bytes"
        max_bytes = None if keep_bytes is None else parse_bytes(_plain_number(keep_bytes))
    except QuantityError as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None
    return Retention(max_age, keep_count, max_bytes)
