"""The policy: everything a job may touch and use, as one frozen value. Sizes are bytes, durations are seconds.

Each field is checked when the value is made, and may afterwards only be tightened (`narrow`).
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from stockade.errors import PolicyError
from stockade.policy.checks import (
    Checked,
    Environment,
    Strict,
    absolute_path,
    distinct,
    flag,
    host_name,
    mountable_path,
    one_of,
    text,
    texts,
    unknown_name,
    variable_name,
    variables,
)
from stockade.policy.quantities import (
    bounded,
    format_bytes,
    format_count,
    format_cpus,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_cpus,
    parse_seconds,
    shown,
)
from stockade.sandbox.spec import KiB, MiB

MAX_BYTES = 1 << 62  # 4 EiB: the next power of two does not fit the kernel's signed counters
MAX_SECONDS = 31_536_000.0  # a year
MAX_PROCESSES = 4_194_303  # PID_MAX_LIMIT, less one for init
MAX_CPUS = 8192.0  # NR_CPUS of the largest kernels
MAX_OPEN_FILES = 1_048_576  # the usual fs.nr_open
MAX_INODES = 1 << 31

SECCOMP_PROFILES = ("strict", "default", "debug")  # tightest first

# What `require` can name: the strong mechanism of each limit.
STRONG_MECHANISMS = (
    "kill.cgroup",
    "memory.cgroup",
    "memory_high.cgroup",
    "processes.cgroup",
    "cpu.cgroup",
    "cpu_time.cgroup",
    "cpuset.cgroup",
    "io.cgroup",
    "disk.tmpfs",
    "open_files.rlimit",
    "file_size.rlimit",
    "wall_time.supervisor",
    "idle_time.supervisor",
    "output.supervisor",
)

_CPU_LIST = re.compile(r"[0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*\Z")
_IO_LINE = re.compile(r"([0-9]{1,7}:[0-9]{1,7}|/.*?)((?: (?:rbps|wbps|riops|wiops)=[0-9A-Za-z.]{1,24})+)\Z", re.DOTALL)
_IO = "write '<major>:<minor> rbps=<bytes>' or '<path> wbps=<size>', such as '254:0 rbps=1048576' or '/srv wbps=10M riops=100'"


class Network(enum.StrEnum):
    """What a job can reach; its network namespace is its own in every case."""

    NONE = "none"  # nothing, not even its own loopback
    LOOPBACK = "loopback"  # its own processes, by 127.0.0.1 and ::1


class Overflow(enum.StrEnum):
    """What happens when a stream has reached its cap."""

    KILL = "kill"  # the job ends as output_limited, exactly `output` bytes are kept
    KEEP_TAIL = "keep-tail"  # the job goes on and the last `output` bytes are kept


def _size(low: int, high: int = MAX_BYTES, *, optional: bool = False) -> Checked:
    return Checked(bounded(parse_bytes, format_bytes, low, high, optional=optional))


def _seconds(*, high: float = MAX_SECONDS, optional: bool = False) -> Checked:
    return Checked(bounded(parse_seconds, format_seconds, 0.001, high, optional=optional))


def _count(low: int, high: int, *, optional: bool = False) -> Checked:
    return Checked(bounded(parse_count, format_count, low, high, optional=optional))


def cpu_numbers(written: str) -> frozenset[int]:
    """The CPUs that a list such as "0-3,8" stands for."""
    ranges = (part.partition("-") for part in written.split(","))
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def _cpuset(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _CPU_LIST.match(value) or not all(cpu_numbers(part) for part in value.split(",")):
        raise ValueError(f"{shown(value)} is not a list of CPUs: give numbers and ranges, such as '0-3,8'")
    return value


def io_caps(lines: tuple[str, ...]) -> dict[tuple[str, str], int]:
    """The caps of checked io lines by (device, key); a device is its number or a path that lies on it."""
    found = (_IO_LINE.match(line) for line in lines)
    return {(each[1], key): int(cap) for each in found if each for key, _, cap in (one.partition("=") for one in each[2].split())}


def _io(value: Any) -> tuple[str, ...]:
    lines, keys = [], []
    for line in texts(value, what="lines of io.max"):
        match = _IO_LINE.match(line)
        if match is None:
            raise ValueError(f"{shown(line)} is no line of io.max: {_IO}")
        device = "/" if match[1] == "/" else absolute_path(match[1]) if match[1].startswith("/") else match[1]
        caps = [_io_cap(line, *cap.split("=")) for cap in match[2].split()]
        lines.append(" ".join((device, *caps)))
        keys += [f"{device} {cap.partition('=')[0]}" for cap in caps]
    distinct(keys)
    return tuple(lines)


def _io_cap(line: str, key: str, written: str) -> str:
    """`rbps=10M` in the digits of the kernel."""
    is_size = key.endswith("bps") and not written.isdigit()
    number = parse_bytes(written) if is_size else int(written) if written.isdigit() else 0
    if not 0 < number < 1 << 63:
        raise ValueError(f"{shown(line)}: {key}={written} is no cap: {_IO}")
    return f"{key}={number}"


class Limits(Strict):
    """How much a job may use. None is no limit, and only where it is named.

    Raises: PolicyError, with the field.
    """

    refusal = PolicyError
    noun = "limits"

    wall_time: Annotated[float | None, _seconds(optional=True)] = 120.0
    cpu_time: Annotated[float | None, _seconds(optional=True)] = None  # of all processes together
    idle_time: Annotated[float | None, _seconds(optional=True)] = None  # without output
    count_frozen: Annotated[bool, Checked(flag)] = True  # wall and idle time go on while the job is frozen
    grace: Annotated[float, _seconds(high=3600.0)] = 5.0  # between the first signal and SIGKILL

    # Init itself is charged to the job, so less than 4 MiB would end every job before it begins.
    memory: Annotated[int | None, _size(4 * MiB, optional=True)] = 512 * MiB
    memory_high: Annotated[int | None, _size(4 * MiB, optional=True)] = None  # above it the job is slowed down, not ended
    memory_oom_group: Annotated[bool, Checked(flag)] = True  # over `memory` the whole job dies, not one process of it
    processes: Annotated[int, _count(1, MAX_PROCESSES)] = 256  # and threads
    cpus: Annotated[float | None, Checked(bounded(parse_cpus, format_cpus, 0.01, MAX_CPUS, optional=True))] = None
    cpu_weight: Annotated[int | None, _count(1, 10_000, optional=True)] = None
    cpuset: Annotated[str | None, Checked(_cpuset)] = None  # such as "0-3,8"
    io: Annotated[tuple[str, ...], Checked(_io)] = ()  # lines of io.max

    output: Annotated[int, _size(1)] = 10 * MiB  # each of stdout and stderr
    open_files: Annotated[int, _count(8, MAX_OPEN_FILES)] = 1024  # each process
    file_size: Annotated[int | None, _size(1, optional=True)] = None  # each file

    # Zero would mean "no limit" to tmpfs(5), and less than a page is rounded up to one.
    tmp_size: Annotated[int, _size(4 * KiB)] = 64 * MiB
    tmp_inodes: Annotated[int, _count(16, MAX_INODES)] = 16_384
    home_size: Annotated[int, _size(4 * KiB)] = 64 * MiB
    home_inodes: Annotated[int, _count(16, MAX_INODES)] = 16_384
    shm_size: Annotated[int, _size(4 * KiB)] = 64 * MiB


def _limits(value: Any) -> Limits:
    if isinstance(value, Limits):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a table of limits: give Limits, or names and values such as {{'memory': '1G'}}")
    try:
        return Limits.model_validate(dict(value))
    except PolicyError as error:
        raise PolicyError(f"limits.{error.message}", field=f"limits.{error.field}", hint=error.hint) from None


def _workspace(value: Any) -> str | None:
    return None if value is None else mountable_path(value)


def _mountable(value: Any) -> tuple[str, ...]:
    return distinct([mountable_path(path) for path in texts_or_paths(value)])


def _search_path(value: Any) -> tuple[str, ...]:
    directories = distinct([absolute_path(path) for path in texts_or_paths(value)])
    if not directories:
        raise ValueError("is empty: name at least one directory, such as '/usr/bin'")
    for directory in directories:
        if ":" in directory:
            raise ValueError(f"{shown(directory)} contains ':', which separates entries of PATH: give a list with one directory each")
    return directories


def texts_or_paths(value: Any) -> tuple[Any, ...]:
    """The entries of a list of paths; one path by itself is refused."""
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ValueError(f"{shown(value)} is not a list: give a list of absolute paths, even for one")


def _root(value: Any) -> str:
    if value == "host":
        return "host"
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.startswith("/")):
        return absolute_path(value)
    raise ValueError(f"{shown(value)} is not a root: give 'host', or the absolute path of a directory with a system in it")


def _executables(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = texts(value, what="program names")
    if "" in names:
        raise ValueError("names an empty program: give names such as 'python3', or [] to refuse every program")
    return names


def _inherit(value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise ValueError(f"{shown(value)} is not known: give true, false or a list of names such as ['LANG']")
    names = tuple(sorted(variable_name(name) for name in texts(value, what="names")))
    for name in names:
        if name.startswith("LD_"):
            raise ValueError(f"{name} is never inherited, because it changes every program: set it in env if it is meant")
    return names or False


def _seccomp(value: Any) -> str:
    name = text(value)
    return absolute_path(name) if name.startswith("/") else one_of(name, (*SECCOMP_PROFILES, "/path/to/profile.json"))


def _require(value: Any) -> frozenset[str]:
    names = texts(value, what="mechanisms")
    for name in names:
        if name not in STRONG_MECHANISMS:
            raise unknown_name(PolicyError, "mechanism", name, STRONG_MECHANISMS, field="require")
    return frozenset(names)


def _network(value: Any) -> Network:
    return Network(one_of(value, Network))


def _overflow(value: Any) -> Overflow:
    return Overflow(one_of(value, Overflow))


class Policy(Strict):
    """What a job may see, reach and use; the default trusts it with nothing of the host but its programs.

    Paths appear inside where they are outside. Raises: PolicyError, with the field.
    """

    refusal = PolicyError
    noun = "policy"

    workspace: Annotated[str | None, Checked(_workspace)] = None  # writable; where jobs start
    ro: Annotated[tuple[str, ...], Checked(_mountable)] = ()
    rw: Annotated[tuple[str, ...], Checked(_mountable)] = ()
    root: Annotated[str, Checked(_root)] = "host"  # or a directory with a system in it

    executables: Annotated[tuple[str, ...] | None, Checked(_executables)] = None  # exact argv[0]; None: any
    path: Annotated[tuple[str, ...], Checked(_search_path)] = (
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    )
    env: Annotated[Mapping[str, str], Checked(variables)] = Field(default_factory=Environment)
    inherit_env: Annotated[bool | tuple[str, ...], Checked(_inherit)] = False

    network: Annotated[Network, Checked(_network)] = Network.LOOPBACK
    seccomp: Annotated[str, Checked(_seccomp)] = "default"  # or the path of an OCI profile
    hostname: Annotated[str, Checked(host_name)] = "stockade"
    limits: Annotated[Limits, Checked(_limits)] = Limits()
    require: Annotated[frozenset[str], Checked(_require)] = frozenset()  # mechanisms that must hold
    overflow: Annotated[Overflow, Checked(_overflow)] = Overflow.KILL
    merge_streams: Annotated[bool, Checked(flag)] = False  # stderr into stdout, in order

    @model_validator(mode="after")
    def _each_path_once(self) -> Policy:
        kinds: dict[str, str] = {}
        workspace = () if self.workspace is None else (self.workspace,)
        for kind, paths in (("workspace", workspace), ("rw", self.rw), ("ro", self.ro)):
            for path in paths:
                if path in kinds:
                    raise PolicyError(
                        f"{kind}: {shown(path)} is already given as {kinds[path]}: name it once",
                        field=kind,
                        hint="the workspace is writable by itself" if kinds[path] == "workspace" else None,
                    )
                kinds[path] = kind
        return self

    def replace(self, /, **changes: Any) -> Policy:
        """A copy with these fields; `limits` given as a mapping changes the limits that it names. May widen.

        Raises: PolicyError, with the field.
        """
        limits = changes.get("limits")
        if isinstance(limits, Mapping):
            changes["limits"] = {**_fields(self.limits), **limits}
        for name in changes:
            if name in Limits.model_fields:
                raise PolicyError(f"unknown policy field {name!r}: it is a limit", field=name, hint=f"give limits={{{name!r}: …}}")
        return Policy.model_validate({**_fields(self), **changes})

    def narrow(self, /, **changes: Any) -> Policy:
        """A copy with these fields, none of which may be wider than here; see `narrowing` for each field's order.

        Raises: NotAllowed for what would widen, PolicyError for what is wrong in itself.
        """
        from stockade.policy.narrowing import check_narrower

        narrowed = self.replace(**changes)
        check_narrower(narrowed, self)
        return narrowed


def _fields(value: Strict) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).model_fields}
