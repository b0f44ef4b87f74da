"""The plan of one sandbox as data: what will be mounted, who the job is, what bounds it.

A spec is made by `policy.compile`, shown by `describe()`, carried to the fork server by `wire()` and executed by `sandbox.init`.
It holds no policy: every choice has been made. `wire()` gives plain lists and dicts, because importing `dataclasses` (9 ms) would
be paid by the fork server; only the parent's side sees the classes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

# Ids inside every sandbox. Uid 0 inside is init's while it builds the root, and nobody's afterwards.
JOB_UID = 1000
JOB_GID = 1000
JOB_USER = "job"
JOB_HOME = "/home/job"
INOTIFY = (32, 16_384)  # instances and watches of one job, where the host has not been asked


class Access(enum.StrEnum):
    """How a host path appears inside."""

    RO = "ro"
    RW = "rw"


class Identity(enum.StrEnum):
    """Which host ids a job's ids stand for (user_namespaces(7))."""

    RANGE = "range"  # its own 65,536 host ids; needs root
    CALLER = "caller"  # the caller's own id, nothing else; rootless


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A memory file system with a cap on bytes and on inodes (tmpfs(5))."""

    target: str
    size: int
    inodes: int
    mode: int = 0o755
    owned_by_job: bool = False

    def describe(self) -> str:
        return f"tmpfs    {self.target} ({_bytes(self.size)}, {self.inodes} inodes)"

    def wire(self) -> list[Any]:
        owner = [JOB_UID, JOB_GID] if self.owned_by_job else None
        return ["tmpfs", self.target, self.size, self.inodes, self.mode, owner]


@dataclass(frozen=True, slots=True)
class Bind:
    """A host tree or file, bound with all that is mounted below it.

    `device` and `inode` are those that were seen when the path was admitted; the mount is refused where they have changed.
    """

    source: str
    target: str
    access: Access
    device: int
    inode: int
    owner: tuple[int, int] | None = None  # (uid, gid) outside that the job's own id stands for: an idmapped mount

    def describe(self) -> str:
        mapped = f", idmapped: uid {self.owner[0]} outside is the job inside" if self.owner is not None else ""
        where = self.target if self.source == self.target else f"{self.target} (from {self.source})"
        return f"bind     {where} ({self.access}{mapped})"

    def wire(self) -> list[Any]:
        return ["bind", self.target, self.source, str(self.access), self.device, self.inode, self.owner]


@dataclass(frozen=True, slots=True)
class Directory:
    """An empty directory, made where it is missing."""

    target: str
    mode: int = 0o755

    def describe(self) -> str:
        return f"dir      {self.target}"

    def wire(self) -> list[Any]:
        return ["dir", self.target, self.mode]


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link in the sandbox's own root."""

    target: str
    points_to: str

    def describe(self) -> str:
        return f"symlink  {self.target} -> {self.points_to}"

    def wire(self) -> list[Any]:
        return ["symlink", self.target, self.points_to]


@dataclass(frozen=True, slots=True)
class Devices:
    """A minimal /dev: null, zero, full, random, urandom, the standard links, an own devpts instance and /dev/shm."""

    shm_size: int
    shm_inodes: int
    terminal: bool = False  # and /dev/tty, which is whatever terminal controls the process that opens it (tty(4))

    def describe(self) -> str:
        tty = " tty" if self.terminal else ""
        return f"dev      /dev (null zero full random urandom{tty}, own pts, shm {_bytes(self.shm_size)})"

    def wire(self) -> list[Any]:
        return ["dev", "/dev", self.shm_size, self.shm_inodes, self.terminal]


@dataclass(frozen=True, slots=True)
class Proc:
    """A fresh procfs of the job's own pid namespace, with kernel controls masked or read-only."""

    def describe(self) -> str:
        return "proc     /proc (own pid namespace, hidepid=invisible, masked)"

    def wire(self) -> list[Any]:
        return ["proc", "/proc"]


Mount = Tmpfs | Bind | Directory | Symlink | Devices | Proc


@dataclass(frozen=True, slots=True)
class Rlimit:
    """One resource limit (getrlimit(2)); `name` without the RLIMIT_ prefix, soft and hard are set to the same value."""

    name: str
    value: int

    def describe(self) -> str:
        return f"rlimit   {self.name} = {self.value}"


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """What is written into the leaf before anybody enters it (cgroup-v2 documentation). None: not set."""

    memory_max: int | None = None  # bytes
    memory_high: int | None = None  # bytes
    swap_max: int | None = None  # bytes
    oom_group: bool | None = None
    pids_max: int | None = None
    cpu_max: float | None = None  # in CPUs: 1.5 is one and a half
    cpu_weight: int | None = None  # 1 to 10,000
    cpuset_cpus: str | None = None
    io_max: tuple[str, ...] = ()  # lines of io.max, such as "254:0 rbps=1048576"

    def describe(self) -> tuple[str, ...]:
        rows = (
            ("memory.max", self.memory_max),
            ("memory.high", self.memory_high),
            ("memory.swap.max", self.swap_max),
            ("memory.oom.group", None if self.oom_group is None else int(self.oom_group)),
            ("pids.max", self.pids_max),
            ("cpu.max", None if self.cpu_max is None else f"{self.cpu_max} CPUs"),
            ("cpu.weight", self.cpu_weight),
            ("cpuset.cpus", self.cpuset_cpus),
            *(("io.max", line) for line in self.io_max),
        )
        return tuple(f"cgroup   {name} = {value}" for name, value in rows if value is not None)


@dataclass(frozen=True, slots=True)
class Place:
    """A host path that has been looked at: the real path, what it is, and whose.

    `given` is the path that the caller named (absolute, normalised); it differs from `real` where links were on the way.
    """

    given: str
    real: str
    device: int
    inode: int
    uid: int
    gid: int
    is_dir: bool


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the host says about the paths of one request; made by `launcher.lookup`, read by `policy.compile`."""

    executable: str  # absolute path inside the sandbox
    cwd: str  # absolute path inside the sandbox
    workspace: Place | None = None
    ro: tuple[Place, ...] = ()
    rw: tuple[Place, ...] = ()
    # (directory, the writable place around it): on the way down to a read-only path, where a rename would take that path away.
    pins: tuple[tuple[Place, Place], ...] = ()
    io: tuple[str, ...] = ()  # lines of io.max, with the numbers of whole disks


@dataclass(frozen=True, slots=True)
class Host:
    """What `policy.compile` must know of this host; found once, when an executor starts."""

    identity: Identity
    controllers: frozenset[str]  # cgroup v2 controllers that a job's leaf has: memory, pids, cpu, io, cpuset
    system: tuple[Place, ...]  # trees that make up the default root: /usr, and /bin, /lib … where they are no links
    links: tuple[tuple[str, str], ...]  # top-level links of the host, such as ("/bin", "usr/bin")
    etc: Place  # a directory with the /etc that jobs see
    cpus: int
    cpuset: str | None = None  # the CPUs that jobs can have, such as "0-3"; None: not known
    inotify: tuple[int, int] = INOTIFY  # instances and watches that one job may have


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything that the fork server and init need to build one sandbox and start one program in it."""

    argv: tuple[str, ...]
    executable: str
    cwd: str
    environment: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]  # in the order in which they are made
    rlimits: tuple[Rlimit, ...]
    cgroup: CgroupLimits
    seccomp: str  # name of the compiled profile
    identity: Identity
    hostname: str = "stockade"
    loopback: bool = True
    inotify: tuple[int, int] = INOTIFY  # instances and watches
    shm_bytes: int | None = None  # of System V shared memory in all (kernel.shmall); None: the kernel's default
    mechanisms: tuple[tuple[str, str], ...] = field(default=())  # ("memory", "memory.cgroup") …, one a limit
    interactive: bool = False  # standard input is written while it runs
    terminal: tuple[int, int] | None = None  # rows and columns of the pseudoterminal that is its standard streams

    def describe(self) -> tuple[str, ...]:
        """One line for each thing that will be done, in order; what `stockade explain` prints."""
        who = "its own range of host ids" if self.identity is Identity.RANGE else "the caller's own id"
        return (
            f"program  {self.executable}",
            f"argv     {list(self.argv)}",
            f"cwd      {self.cwd}",
            *((f"stdin    {self._stdin()}",) if self.interactive else ()),
            "clone    new user, mount, pid, ipc, uts, net and cgroup namespaces, into a fresh cgroup",
            f"identity uid {JOB_UID} inside stands for {who}",
            f"hostname {self.hostname}",
            f"network  {'loopback only' if self.loopback else 'none, loopback down'}",
            *(mount.describe() for mount in self.mounts),
            *self.cgroup.describe(),
            *(limit.describe() for limit in self.rlimits),
            "nested   user.max_*_namespaces = 0",
            "inotify  {} instances, {} watches".format(*self.inotify),
            "drop     all capabilities, securebits locked, no_new_privs",
            f"seccomp  {self.seccomp}",
            *(f"env      {name}={value}" for name, value in self.environment),
            *(f"limit    {name}: {mechanism}" for name, mechanism in self.mechanisms),
        )

    def _stdin(self) -> str:
        return "open, a pipe" if self.terminal is None else "a terminal of its own, {} rows, {} columns".format(*self.terminal)

    @property
    def shape(self) -> tuple[object, ...]:
        """What two specs must have in common for one sandbox to serve either: everything but the command."""
        return (
            self.mounts,
            self.rlimits,
            self.cgroup,
            self.seccomp,
            self.identity,
            self.hostname,
            self.loopback,
            self.inotify,
            self.shm_bytes,
        )

    def wire(self) -> dict[str, Any]:
        """What init builds, as JSON-able lists and dicts; text is passed with surrogateescape."""
        return {
            "mounts": [mount.wire() for mount in self.mounts],
            "rlimits": [[limit.name, limit.value] for limit in self.rlimits],
            "seccomp": self.seccomp,
            "hostname": self.hostname,
            "loopback": self.loopback,
            "inotify": self.inotify,
            "shm_bytes": self.shm_bytes,
            "terminal": self.terminal,
            "uid": JOB_UID,
            "gid": JOB_GID,
        }

    def wire_command(self, *, has_stdin: bool) -> dict[str, Any]:
        """What init starts in what it has built; `has_stdin`: with the standard input that came with the request."""
        return {
            "argv": list(self.argv),
            "executable": self.executable,
            "cwd": self.cwd,
            "env": [f"{name}={value}" for name, value in self.environment],
            "has_stdin": has_stdin,
        }


def _bytes(count: int) -> str:
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"
