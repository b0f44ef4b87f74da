"""What is true of this host and of the place we run in, as far as it explains why a kernel primitive fails.

Only reads: whether something works is tried by `features`, never guessed from here. `collect` looks, the rest is pure.

Man pages: proc_pid_mountinfo(5), proc_sys_user(5), cgroups(7), user_namespaces(7), proc_pid_status(5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from stockade.sandbox.mounts import unescape

NAMESPACES = ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup")
_CAP_SYS_ADMIN = 21
_V1_NAMES = {"io": "blkio"}  # controllers that had another name in version 1
# The kernel made these directories of procfs to be mounted on; a mount there hides nothing (is_empty_dir_inode).
_MADE_FOR_MOUNTS = ("/sys/fs/binfmt_misc", "/fs/nfsd", "/openprom")
_CONTAINER_MARKS = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"), ("/run/systemd/container", "a container"))


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    number: int
    parent: int
    root: str
    point: str
    kind: str
    read_only: bool
    options: str  # of the file system, not of the mount


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a cause may be made of; the defaults are those of a host with nothing in the way."""

    release: str = ""  # of the kernel
    machine: str = "x86_64"
    is_root: bool = False
    is_admin: bool = False  # has CAP_SYS_ADMIN
    outer_seccomp: bool = False  # a filter has been put on us already
    apparmor_restricts: bool = False  # kernel.apparmor_restrict_unprivileged_userns
    clone_forbidden: bool = False  # kernel.unprivileged_userns_clone = 0 (Debian's patch)
    exhausted: tuple[str, ...] = ()  # kinds of namespace of which user.max_*_namespaces allows none
    proc_covers: tuple[str, ...] = ()  # mounts that hide parts of every procfs in sight
    proc_read_only: str | None = None  # mount point of the read-only procfs, /proc or a part of it
    cgroup_read_only: str | None = None  # mount point of a read-only cgroup2 file system
    v1_mounts: dict[str, str] = field(default_factory=dict)  # controller, by its v2 name -> where version 1 holds it
    v1_bound: frozenset[str] = frozenset()  # controllers that version 1 holds, mounted in sight or not
    container: str | None = None
    is_chrooted: bool = False
    security_modules: tuple[str, ...] = ()  # in the order in which the kernel asks them; empty where it does not tell
    apparmor_profile: str | None = None  # the one that confines this process
    ptrace_scope: int | None = None  # kernel.yama.ptrace_scope


def collect() -> Facts:
    """Looks at this host, from this process; blocks."""
    mounts = parse_mounts(_read("/proc/self/mountinfo"))
    status = dict(line.split(":\t", 1) for line in _read("/proc/self/status").splitlines() if ":\t" in line)
    name = os.uname()
    return Facts(
        release=name.release,
        machine=name.machine,
        is_root=os.geteuid() == 0,
        is_admin=bool(int(status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1),
        outer_seccomp=status.get("Seccomp", "0") == "2",
        apparmor_restricts=_read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1",
        clone_forbidden=_read("/proc/sys/kernel/unprivileged_userns_clone").strip() == "0",
        exhausted=tuple(kind for kind in NAMESPACES if _read(f"/proc/sys/user/max_{kind}_namespaces").strip() == "0"),
        proc_covers=proc_covers(mounts),
        proc_read_only=read_only_proc(mounts),
        cgroup_read_only=next((mount.point for mount in mounts if mount.kind == "cgroup2" and mount.read_only), None),
        v1_mounts=v1_mounts(mounts),
        v1_bound=v1_bound(_read("/proc/cgroups")),
        container=next((what for mark, what in _CONTAINER_MARKS if os.path.exists(mark)), None),
        is_chrooted=bool(mounts) and all(mount.point != "/" for mount in mounts),
        **_security(),
    )


def _security() -> dict[str, Any]:
    """What the kernel's security modules say of themselves: Documentation/admin-guide/LSM, apparmor(7)."""
    listed = _read("/sys/kernel/security/lsm").strip()  # there only where securityfs is mounted
    modules = listed.split(",") if listed else []
    if not modules and _read("/sys/module/apparmor/parameters/enabled").strip() == "Y":
        modules.append("apparmor")
    scope = _read("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope and "yama" not in modules:
        modules.append("yama")
    profile = _read("/proc/self/attr/apparmor/current").strip("\0\n") if "apparmor" in modules else ""
    return {
        "security_modules": tuple(modules),
        "apparmor_profile": profile if profile and profile != "unconfined" else None,
        "ptrace_scope": int(scope) if scope.isdigit() else None,
    }


def parse_mounts(mountinfo: str) -> list[Mount]:
    """The text of /proc/self/mountinfo as values."""
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, filesystem = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(filesystem) < 3:
            continue
        number, parent, _, root, point, flags, *_ = fields
        mounts.append(
            Mount(
                number=int(number),
                parent=int(parent),
                root=unescape(root),
                point=unescape(point),
                kind=filesystem[0],
                read_only="ro" in flags.split(","),
                options=filesystem[2],
            )
        )
    return mounts


def proc_covers(mounts: list[Mount]) -> tuple[str, ...]:
    """The mounts because of which no new procfs may be mounted in a new user namespace (`mount_too_revealing` in the kernel).

    Empty where a procfs is in sight that nothing covers: one is enough.
    """
    covers: list[str] = []
    for proc in mounts:
        if proc.kind != "proc" or proc.root != "/":
            continue
        own = [
            mount.point for mount in mounts if mount.parent == proc.number and mount.point.removeprefix(proc.point) not in _MADE_FOR_MOUNTS
        ]
        if not own:
            return ()
        covers += own
    # A procfs that is covered whole lies below another one, whose covers are the ones to see.
    below = [point for point in covers if point.startswith("/proc/")]
    return tuple(dict.fromkeys(below or covers))


def read_only_proc(mounts: list[Mount]) -> str | None:
    """The mount point of the read-only procfs that lies at /proc or covers its sysctls, None where neither is."""
    for mount in mounts:
        if mount.kind == "proc" and mount.read_only and mount.point in ("/proc", "/proc/sys", "/proc/sys/user"):
            return mount.point
    return None


def v1_mounts(mounts: list[Mount]) -> dict[str, str]:
    """Where a version 1 hierarchy holds a controller, by its name in version 2."""
    held: dict[str, str] = {}
    for mount in mounts:
        if mount.kind == "cgroup":
            options = mount.options.split(",")
            for controller in ("memory", "pids", "cpu", "io", "cpuset"):
                if _V1_NAMES.get(controller, controller) in options:
                    held.setdefault(controller, mount.point)
    return held


def v1_bound(proc_cgroups: str) -> frozenset[str]:
    """The controllers that some version 1 hierarchy holds, from the text of /proc/cgroups: hierarchy 0 is version 2."""
    rows = [line.split("\t") for line in proc_cgroups.splitlines() if not line.startswith("#")]
    bound = {row[0] for row in rows if len(row) >= 2 and row[1] != "0"}
    return frozenset("io" if name == "blkio" else name for name in bound)


def _read(path: str) -> str:
    """The text of a file, empty where there is none or it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
