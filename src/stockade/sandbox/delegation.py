"""Where a cgroup of ours may be made: in what has been delegated to us, or, as root, at the top.

The mount is found in mountinfo, never assumed: on hybrid hosts it is not /sys/fs/cgroup.

Rests on the kernel's cgroup-v2 documentation (delegation) and systemd's rules for it (systemd.resource-control(5), Delegate=).
"""

from __future__ import annotations

import errno
import os

from stockade.errors import HostUnfit

SUPERVISOR = "stockade-supervisor"  # where an executor's own process goes when it stands in the way of delegation


def find_mount(mountinfo: str) -> tuple[str, str] | None:
    """(mount point, root of the mount) of the first cgroup2 file system in the text of /proc/self/mountinfo, or None."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if right.split(" ", 1)[0] == "cgroup2":
            fields = left.split(" ")
            return fields[4], fields[3]
    return None


def own_path(proc_cgroup: str) -> str | None:
    """Our own cgroup, from the text of /proc/self/cgroup: the line of hierarchy 0 (cgroups(7))."""
    for line in proc_cgroup.splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def own_directory() -> str:
    """The directory of our own cgroup.

    Raises: HostUnfit, where no cgroup2 file system is mounted or ours lies outside of what is mounted.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        found = find_mount(table.read())
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as table:
        path = own_path(table.read())
    if found is None or path is None:
        raise HostUnfit(
            "no cgroup2 file system is mounted",
            feature="cgroup2",
            hint="mount one: mount -t cgroup2 none /sys/fs/cgroup (or …/unified beside version 1)",
        )
    mount_point, root = found
    if path.startswith("/..") or (root not in ("/", path) and not path.startswith(root.rstrip("/") + "/")):
        raise HostUnfit(
            f"our cgroup {path!r} lies outside of what is mounted at {mount_point!r} ({root!r})",
            feature="cgroup2",
            hint="give the container its own cgroup namespace (--cgroupns=private)",
        )
    return os.path.normpath(f"{mount_point}/{path if root == '/' else path[len(root) :]}")


def choose_base(*, is_root: bool, wanted: str | None) -> str:
    """Where an executor's cgroup is made: `wanted`, else our own cgroup where it has been delegated to us, else (as root) its root.

    Raises: HostUnfit, where no place can be written to, with the way out.
    """
    if wanted is not None:
        return _checked(wanted)
    own = own_directory()
    if os.path.basename(own) == SUPERVISOR:
        own = os.path.dirname(own)
    if is_root and not _is_delegated(own):
        return topmost(own)
    if not os.access(own, os.W_OK | os.X_OK) or not os.access(f"{own}/cgroup.procs", os.W_OK):
        raise no_cgroup(own, PermissionError(errno.EACCES, "not writable"))
    return own


def step_aside(base: str) -> None:
    """Moves this process out of `base`, where it sits there, so that controllers can be turned on below it.

    Only the root cgroup may have processes and controllers at once ("no internal processes"). What else sits there stays.
    """
    if own_directory() != os.path.normpath(base) or not os.path.exists(f"{base}/cgroup.type"):
        return
    aside = f"{base}/{SUPERVISOR}"
    os.makedirs(aside, exist_ok=True)
    with open(f"{aside}/cgroup.procs", "w", encoding="ascii") as procs:
        procs.write(str(os.getpid()))


def topmost(own: str) -> str:
    """The topmost cgroup of the hierarchy that is in sight: the mount point, which has no cgroup.type when it is the real root."""
    top = own
    while os.path.exists(f"{os.path.dirname(top)}/cgroup.procs"):
        top = os.path.dirname(top)
    return top


def _is_delegated(path: str) -> bool:
    """True where systemd says that this cgroup is ours to divide (Delegate=yes sets an extended attribute)."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(path, name) == b"1":
                return True
        except OSError:
            continue
    return False


def no_cgroup(base: str, error: OSError) -> HostUnfit:
    """The error of a place in which no cgroup can be made, with the way out."""
    read_only = error.errno == errno.EROFS
    hint = (
        "the cgroup file system is read-only here; in a container give it its own, writable one"
        if read_only
        else "start under a delegated cgroup: systemd-run --user --scope -p Delegate=yes -- COMMAND"
    )
    return HostUnfit(f"no cgroup can be made in {base!r}: {error.strerror}", feature="cgroup.delegation", hint=hint)


def _checked(wanted: str) -> str:
    """The directory that the operator names, which must be a cgroup of version 2: anywhere else plain directories would be made."""
    names = ("cgroup.procs", "cgroup.controllers", "cgroup.subtree_control")
    if not os.path.isabs(wanted) or not all(os.path.isfile(os.path.join(wanted, name)) for name in names):
        raise HostUnfit(
            f"{wanted!r} is no cgroup of version 2",
            feature="cgroup2",
            hint="name the absolute path of a directory of the cgroup2 file system, or leave it out (STOCKADE_CGROUP)",
        )
    return os.path.normpath(wanted)
