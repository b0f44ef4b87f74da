"""What the job finds where: the mounts of a sandbox in the order in which they are made.

A mount hides what is below its target, so shallow targets come before deeper ones; of two plans for one target the
caller's holds. Directories on the way to a target are made by init, in the sandbox's own file systems only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Set

from stockade.errors import PolicyError
from stockade.policy.checks import is_within, mountable_path
from stockade.policy.model import Limits, Policy
from stockade.policy.quantities import shown
from stockade.sandbox.spec import (
    JOB_HOME,
    Access,
    Bind,
    Devices,
    Directory,
    Host,
    Identity,
    Mount,
    Place,
    Proc,
    Resolution,
    Symlink,
    Tmpfs,
)

SHM_INODES = 4096


def mount_plan(policy: Policy, host: Host, resolution: Resolution) -> tuple[Mount, ...]:
    """All mounts but the root itself, in order.

    Raises: PolicyError where a path leads to a place that cannot be passed in, or two paths contradict each other.
    """
    return _mount_plan(policy.limits, host, dataclasses.replace(resolution, executable="", cwd=""))


@functools.lru_cache(maxsize=64)  # job after job has the same one
def _mount_plan(limits: Limits, host: Host, resolution: Resolution) -> tuple[Mount, ...]:
    binds = _granted(resolution, host.identity)
    pins = _pinned(resolution, host.identity, {bind.target for bind in binds})
    aliases = {place.given: place.real for _, place, _ in _places(resolution) if place.given != place.real}
    names = {*aliases, *(bind.target for bind in binds)}
    plan: dict[str, Mount] = {target(mount): mount for mount in _own(limits, host, names)}
    plan.update((bind.target, bind) for bind in (*binds, *pins))
    return _with_links(_without_covered(_shallow_first(plan.values()), {pin.target for pin in pins}), aliases)


def target(mount: Mount) -> str:
    """Where the mount appears inside."""
    match mount:
        case Devices():
            return "/dev"
        case Proc():
            return "/proc"
        case _:
            return mount.target


def _own(limits: Limits, host: Host, names: Set[str]) -> Iterable[Mount]:
    yield from (_bind(place, place.given, Access.RO) for place in host.system)
    yield from (Symlink(name, to) for name, to in host.links)
    yield _bind(host.etc, "/etc", Access.RO)
    yield Directory("/home")
    yield Directory("/run")
    yield Tmpfs("/tmp", limits.tmp_size, limits.tmp_inodes, mode=0o1777)
    yield Tmpfs(JOB_HOME, limits.home_size, limits.home_inodes, mode=0o700, owned_by_job=True)
    yield Devices(limits.shm_size, SHM_INODES)
    yield Proc()
    if any(is_within(name, "/var/tmp") for name in names):
        # A link there would lead the caller's paths into /tmp.
        yield Tmpfs("/var/tmp", limits.tmp_size, limits.tmp_inodes, mode=0o1777)
    elif not any(is_within("/var/tmp", name) for name in names):
        yield Symlink("/var/tmp", "/tmp")


def _granted(resolution: Resolution, identity: Identity) -> tuple[Bind, ...]:
    """The caller's binds, each at its real path, none twice."""
    binds: dict[str, tuple[str, Bind]] = {}
    for field, place, access in _places(resolution):
        # The given path was checked with the policy; links may have led to one that would not have passed.
        try:
            mountable_path(place.real)
        except ValueError as error:
            raise PolicyError(f"{field}: {shown(place.given)} leads elsewhere: {error}", field=field) from None
        bind = _bind(place, place.real, access, _mapped_owner(place, access, identity))
        other, earlier = binds.setdefault(place.real, (field, bind))
        if earlier != bind:
            raise PolicyError(
                f"{field}: {shown(place.given)} is {shown(place.real)}, already given as {other}: name it once",
                field=field,
            )
    return tuple(bind for _, bind in binds.values())


def _mapped_owner(place: Place, access: Access, identity: Identity) -> tuple[int, int] | None:
    """Whose files outside are the job's own inside, where it has ids of its own.

    What root owns stays root's where it is only read: a path of the system must not lose the modes that protect its secrets.
    """
    if identity is not Identity.RANGE or (access is Access.RO and place.uid == 0):
        return None
    return place.uid, place.gid


def _pinned(resolution: Resolution, identity: Identity, granted: Set[str]) -> tuple[Bind, ...]:
    """Binds of directories on themselves: a mount point cannot be renamed, and so what is protected below it cannot be replaced."""
    pins = []
    for place, around in resolution.pins:
        if place.real not in granted:
            pins.append(_bind(place, place.real, Access.RW, _mapped_owner(around, Access.RW, identity)))
    return tuple(pins)


def _places(resolution: Resolution) -> Iterable[tuple[str, Place, Access]]:
    if resolution.workspace is not None:
        yield "workspace", resolution.workspace, Access.RW
    yield from (("rw", place, Access.RW) for place in resolution.rw)
    yield from (("ro", place, Access.RO) for place in resolution.ro)


def _bind(place: Place, at: str, access: Access, owner: tuple[int, int] | None = None) -> Bind:
    return Bind(place.real, at, access, place.device, place.inode, owner)


def _shallow_first(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    return tuple(sorted(mounts, key=lambda mount: (target(mount).count("/"), target(mount))))


def _without_covered(ordered: tuple[Mount, ...], pins: Set[str]) -> tuple[Mount, ...]:
    """The mounts without those binds that show what the bind around them shows already and are no pins."""
    kept: list[Mount] = []
    for mount in ordered:
        around = _around(mount.target, kept) if isinstance(mount, Bind) else None
        if target(mount) in pins or not (isinstance(mount, Bind) and isinstance(around, Bind) and _shows(around, mount)):
            kept.append(mount)
    return tuple(kept)


def _around(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The innermost mount that `path` lies in."""
    covering = [mount for mount in mounts if is_within(path, target(mount))]
    return max(covering, key=lambda mount: len(target(mount)), default=None)


def _shows(outer: Bind, inner: Bind) -> bool:
    same_tree = inner.source == outer.source + inner.target.removeprefix(outer.target)
    return same_tree and (inner.access, inner.owner) == (outer.access, outer.owner)


def _with_links(mounts: tuple[Mount, ...], aliases: Mapping[str, str]) -> tuple[Mount, ...]:
    """The mounts, and a link for each path that was given by another name than its real one.

    A name inside a bound tree, or behind a link, is there already.
    """
    plan = {target(mount): mount for mount in mounts}
    for given, real in sorted(aliases.items(), key=lambda alias: (alias[0].count("/"), alias[0])):
        around = _around(given, plan.values())
        replaced = around is not None and target(around) == given and not isinstance(around, Bind)
        if replaced or not isinstance(around, Bind | Symlink | Devices | Proc):
            plan[given] = Symlink(given, real)
    return _shallow_first(plan.values())
