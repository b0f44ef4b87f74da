"""The job's root: a small tmpfs that we make, filled by the plan's operations, pivoted into, then read-only.

The old root is detached at the very end: a fresh procfs may be mounted only while an unmasked one is still in sight
(`mount_too_revealing` in the kernel), and devices and sources are taken from it.

Man pages: pivot_root(2), tmpfs(5), devpts in mount(8), proc(5).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from errno import EINVAL, ENODEV, ENOENT
from typing import Any

from stockade.sandbox import mounts, namespaces, syscalls
from stockade.sandbox.syscalls import KernelError

_TMPFS_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_ROOT_OPTIONS = "size=4194304,nr_inodes=4096,mode=0755"  # mount points only; the job cannot write here
# Terminals are taken from one number for the whole host (kernel.pty.max): without a cap one job could take them all.
_PTS_OPTIONS = "newinstance,ptmxmode=0666,mode=0620,max=64"
# Where the new root is put until we pivot; any directory does, since this mount namespace is ours alone.
_STAGES = ("/tmp", "/mnt", "/run")

# name: (major, minor) as Documentation/admin-guide/devices.txt has them.
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
CONTROLLING_TERMINAL = {"tty": (5, 0)}
_DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)

PROC_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
PROC_OPTIONS = "hidepid=invisible"
# Of the whole host: how it was started, kernel memory, when a key is typed, keys, the log, who holds which lock, timers. Files are
# covered by /dev/null, directories by an empty tmpfs.
PROC_MASKED = (
    *("cmdline", "interrupts", "kcore", "keys", "key-users", "kmsg", "latency_stats", "locks", "sched_debug", "softirqs", "timer_list"),
    *("acpi", "asound", "scsi"),
)
# Pressure files take triggers from anybody who can write to them, and each makes the whole host's kernel work.
PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs", "pressure")


def build(operations: list[list[Any]], sources: list[int | None], *, inotify: tuple[int, int], shm_bytes: int | None = None) -> int:
    """Makes the root and runs every operation in it; returns a descriptor of it, not yet pivoted into.

    `sources` holds, for each operation that is a bind, its detached copy (see `open_binds`).
    """
    stage = next((path for path in _STAGES if os.path.isdir(path)), None)
    if stage is None:
        raise KernelError("mount", "/tmp", ENOENT)
    syscalls.mount("tmpfs", stage, "tmpfs", _TMPFS_FLAGS, _ROOT_OPTIONS)
    root = os.open(stage, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for operation, source in zip(operations, sources, strict=True):
        if source is not None:
            mounts.attach(source, root, operation[1])
        else:
            _MAKE[operation[0]](root, operation)
    _seal_proc(root, inotify, shm_bytes)
    return root


def open_binds(operations: list[list[Any]], idmap: Callable[[int, int], int] | None) -> list[int | None]:
    """A detached copy for every bind of the plan, None for the other operations.

    Runs where the host's paths can be reached: in the fork server as root, in init when rootless. `idmap` gives the user
    namespace by which files of (uid, gid) outside are the job's inside.
    """
    trees: list[int | None] = []
    try:
        for operation in operations:
            tree = _open_bind(operation, idmap) if operation[0] == "bind" else None
            trees.append(tree)  # one by one: what was opened before a failure is closed
    except BaseException:
        for tree in filter(None, trees):
            os.close(tree)
        raise
    return trees


def _open_bind(operation: list[Any], idmap: Callable[[int, int], int] | None) -> int:
    _, _, source, access, device, inode, owner = operation
    read_only = access == "ro"
    descriptor = mounts.open_source(source, device, inode)
    try:
        userns = idmap(*owner) if idmap is not None and owner is not None else None
        try:
            return mounts.detach_copy(descriptor, read_only=read_only, idmap=userns)
        except KernelError as error:
            # A file system without idmapped mounts. Read-only, the job merely stays a stranger there and can read less.
            if not (read_only and userns is not None and error.errno == EINVAL):
                raise
            return mounts.detach_copy(descriptor, read_only=True)
    except KernelError as error:
        raise KernelError(error.call, source, error.errno or 0) from None
    finally:
        os.close(descriptor)


def open_scratch(operations: list[list[Any]]) -> tuple[list[str], list[int]]:
    """The tmpfs mounts in which a job can write, as paths inside and a descriptor of each (O_PATH); after `enter`."""
    paths = [operation[1] if operation[0] == "tmpfs" else "/dev/shm" for operation in operations if operation[0] in ("tmpfs", "dev")]
    return paths, [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) for path in paths]


def enter(root: int) -> None:
    """Pivots into the root, detaches the host's, and makes what is left of ours read-only."""
    os.fchdir(root)
    syscalls.pivot_root(".", ".")
    # The old root now lies on top of the new one at "/".
    syscalls.mount(None, ".", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")
    syscalls.mount_setattr(syscalls.AT_FDCWD, "/", 0, add=syscalls.MOUNT_ATTR_RDONLY)


def _tmpfs(root: int, operation: list[Any]) -> None:
    _, target, size, inodes, mode, owner = operation
    ids = ",uid={},gid={}".format(*owner) if owner else ""
    os.close(mounts.mount_at(root, target, "tmpfs", _TMPFS_FLAGS, f"size={size},nr_inodes={inodes},mode={mode:o}{ids}"))


def _directory(root: int, operation: list[Any]) -> None:
    _, target, mode = operation
    os.close(mounts.make_directories(root, target, mode))


def _symlink(root: int, operation: list[Any]) -> None:
    _, target, points_to = operation
    if mounts.exists(root, target):
        return
    parent_path, _, name = target.rpartition("/")
    parent = mounts.make_directories(root, parent_path)
    try:
        os.symlink(points_to, name, dir_fd=parent)
    finally:
        os.close(parent)


def _devices(root: int, operation: list[Any]) -> None:
    _, target, shm_size, shm_inodes, terminal = operation
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    dev = mounts.mount_at(root, target, "tmpfs", flags, "size=65536,nr_inodes=64,mode=0755")
    try:
        for name, numbers in (DEVICES | CONTROLLING_TERMINAL if terminal else DEVICES).items():
            source = _open_device(name, numbers)
            try:
                mounts.attach(mounts.detach_copy(source, read_only=False, device=True, recursive=False), dev, name)
            finally:
                os.close(source)
        for name, points_to in _DEVICE_LINKS:
            os.symlink(points_to, name, dir_fd=dev)
        os.close(mounts.mount_at(dev, "pts", "devpts", flags, _PTS_OPTIONS))
        shm = f"size={shm_size},nr_inodes={shm_inodes},mode=1777"
        os.close(mounts.mount_at(dev, "shm", "tmpfs", _TMPFS_FLAGS | syscalls.MS_NOEXEC, shm))
        mounts.make_read_only(dev)
    finally:
        os.close(dev)


def _open_device(name: str, numbers: tuple[int, int]) -> int:
    """A host device that is what its name says (CVE-2025-31133: /dev/null was something else)."""
    path = f"/dev/{name}"
    source = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(source)
    if not stat.S_ISCHR(found.st_mode) or (os.major(found.st_rdev), os.minor(found.st_rdev)) != numbers:
        os.close(source)
        raise KernelError("fstat", path, ENODEV)
    return source


def _proc(root: int, operation: list[Any]) -> None:
    os.close(mounts.mount_at(root, operation[1], "proc", PROC_FLAGS, PROC_OPTIONS))


def _seal_proc(root: int, inotify: tuple[int, int], shm_bytes: int | None) -> None:
    """Forbids namespaces below ours, then covers the kernel's controls; last of all, because a detached mount is a namespace too.

    open_tree(2) with OPEN_TREE_CLONE counts against max_mnt_namespaces, so every copy is made before that becomes 0, and
    /proc/sys can no longer be written once it has been covered.
    """
    proc = os.open("proc", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    null = _open_device("null", DEVICES["null"])
    covers: list[tuple[str, int]] = []
    directories: list[str] = []
    try:
        for name, entry in _entries(proc, PROC_READ_ONLY):
            covers.append((name, mounts.detach_copy(entry, read_only=True, recursive=False)))
        for name, entry in _entries(proc, PROC_MASKED):
            if stat.S_ISDIR(os.fstat(entry).st_mode):
                directories.append(name)
            else:
                covers.append((name, mounts.detach_copy(null, read_only=True, device=True, recursive=False)))
        namespaces.forbid_nested_namespaces(proc)
        namespaces.bound_watches(proc, *inotify)
        namespaces.bound_system_v(proc, shm_bytes)
        for name in directories:
            flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
            os.close(mounts.mount_at(proc, name, "tmpfs", flags, "size=4096,nr_inodes=2,mode=0555"))
        while covers:
            name, tree = covers.pop()
            try:
                syscalls.move_mount(tree, proc, name)
            finally:
                os.close(tree)
    finally:
        for _, tree in covers:
            os.close(tree)
        os.close(null)
        os.close(proc)


def _entries(proc: int, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """(name, O_PATH descriptor) of those entries of /proc that this kernel has; each is closed when the next is asked for."""
    for name in names:
        try:
            entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=proc)
        except FileNotFoundError:
            continue
        try:
            yield name, entry
        finally:
            os.close(entry)


_MAKE: dict[str, Callable[[int, list[Any]], None]] = {
    "tmpfs": _tmpfs,
    "dir": _directory,
    "symlink": _symlink,
    "dev": _devices,
    "proc": _proc,
}
