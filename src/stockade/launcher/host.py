"""What this host offers to an executor, found once at its start: identity, the trees of the default root, the cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterable

from stockade.errors import HostUnfit, InvalidRequest
from stockade.launcher import idslots
from stockade.launcher.lookup import resolve_place
from stockade.sandbox.spec import Host, Identity, Place

_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
# What a sandbox makes for itself, or what a root directory must not bring along.
_OWN = frozenset({"dev", "etc", "home", "lost+found", "proc", "run", "sys", "tmp"})
_ENOUGH_INOTIFY_INSTANCES = 32
_ENOUGH_INOTIFY_WATCHES = 65_536
_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN = 6, 7, 21


def find_identity() -> Identity:
    """RANGE for a root that may hand out host ids, CALLER for an ordinary user.

    Raises: HostUnfit for a root without the power or the ids, since the caller's own id would then be root's.
    """
    if os.geteuid() != 0:
        return Identity.CALLER
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    if not all(effective >> capability & 1 for capability in (_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN)):
        raise HostUnfit(
            "running as root without CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID",
            feature="identity.range",
            hint="start as an ordinary user, or with these capabilities",
        )
    last = idslots.FIRST_ID + idslots.SLOTS * idslots.SLOT_SIZE - 1
    with open("/proc/self/uid_map", encoding="ascii") as id_map:
        ranges = [(int(first), int(count)) for first, _, count in (line.split() for line in id_map)]
    if not any(first <= idslots.FIRST_ID and last < first + count for first, count in ranges):
        raise HostUnfit(
            f"running as root of a user namespace without the ids {idslots.FIRST_ID} to {last}",
            feature="identity.range",
            hint="start as an ordinary user of that namespace, or map these ids into it",
        )
    return Identity.RANGE


def check_root(root: str) -> None:
    """Looks whether a directory can be the root of jobs. Raises: InvalidRequest, where `root` is none."""
    if root != "/" and not resolve_place(root, field="root").is_dir:
        raise InvalidRequest(f"root: {root!r} is not a directory", field="root", hint="name a directory with a system in it")


def find_host(*, identity: Identity, controllers: Iterable[str], etc: str, root: str = "/", cpuset: str | None = None) -> Host:
    """Describes the trees that make up the default root, taken from `root` ("/": the host's own), which has been checked."""
    names = [path[1:] for path in _SYSTEM] if root == "/" else sorted(set(os.listdir(root)) - _OWN)
    system: list[Place] = []
    links: list[tuple[str, str]] = []
    for name in names:
        path = os.path.join(root, name)
        if os.path.islink(path):
            links.append((f"/{name}", os.readlink(path)))
        elif os.path.isdir(path):
            place = resolve_place(path, field="root")
            system.append(Place(f"/{name}", place.real, place.device, place.inode, place.uid, place.gid, is_dir=True))
    real = os.path.realpath(etc)
    found = os.stat(real)
    return Host(
        identity=identity,
        controllers=frozenset(controllers),
        system=tuple(system),
        links=tuple(links),
        etc=Place("/etc", real, found.st_dev, found.st_ino, found.st_uid, found.st_gid, is_dir=True),  # ours, wherever our state is
        cpus=os.cpu_count() or 1,
        cpuset=cpuset,
        inotify=_inotify_share(),
    )


def _inotify_share() -> tuple[int, int]:
    """Instances and watches for one job: a quarter of what this host gives each user, and no more than a program needs."""
    bounds = []
    for name, enough in (("instances", _ENOUGH_INOTIFY_INSTANCES), ("watches", _ENOUGH_INOTIFY_WATCHES)):
        try:
            with open(f"/proc/sys/fs/inotify/max_user_{name}", encoding="ascii") as bound:
                bounds.append(min(enough, max(1, int(bound.read()) // 4)))
        except FileNotFoundError:  # a kernel without inotify
            bounds.append(enough)
    return bounds[0], bounds[1]
