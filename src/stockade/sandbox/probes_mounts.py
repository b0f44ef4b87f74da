"""Trials of what a job's root is made of: mounts of every kind that we use, devices, terminals, path walks.

Man pages: mount(2), open_tree(2), mount_setattr(2), move_mount(2), pivot_root(2), openat2(2), pts(4).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from functools import partial

from stockade.sandbox import mounts, namespaces, rootfs, syscalls
from stockade.sandbox.spec import JOB_GID, JOB_UID
from stockade.sandbox.trial import NoEffect, NotApplicable, Probe, Setting, expect_errno, in_child, stage

_FLAGS = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
_TMPFS = syscalls.MS_NOSUID | syscalls.MS_NODEV
# ioctl_tty(2); the termios module of Python 3.11 lacks them.
TIOCSPTLCK = 0x40045431
TIOCGPTN = 0x80045430
_TREE = "/usr"
_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC


def _tmpfs(setting: Setting) -> str:
    return in_child(_fill_tmpfs, flags=_FLAGS, setting=setting)


def _fill_tmpfs() -> str:
    stage()
    os.mkdir("small")
    syscalls.mount("tmpfs", "small", "tmpfs", _TMPFS, "size=65536,nr_inodes=4,mode=0700")
    file = os.open("small/file", _CREATE, 0o600)
    try:
        expect_errno(errno.ENOSPC, "more than the size of a tmpfs", lambda: [os.write(file, bytes(4096)) for _ in range(64)])
    finally:
        os.close(file)
    expect_errno(errno.ENOSPC, "more files than a tmpfs may have", partial(os.makedirs, "small/a/b/c/d/e"))
    return "its bounds on bytes and on files hold"


def _proc(setting: Setting) -> str:
    return in_child(_mount_proc, flags=_FLAGS, setting=setting)


def _mount_proc() -> str:
    stage()
    os.mkdir("proc")
    syscalls.mount("proc", "proc", "proc", rootfs.PROC_FLAGS, rootfs.PROC_OPTIONS)
    seen = sorted(name for name in os.listdir("proc") if name.isdigit())
    if seen != ["1"]:
        raise NoEffect(f"a new procfs shows the processes {', '.join(seen[:8])}, not only number 1")
    return "a new one shows its own pid namespace only"


def _pty(setting: Setting) -> str:
    return in_child(_open_pty, flags=_FLAGS, setting=setting)


def _open_pty() -> str:
    stage()
    os.mkdir("pts")
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", "pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")
    master = os.open("pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
    number = struct.unpack("i", fcntl.ioctl(master, TIOCGPTN, bytes(4)))[0]
    terminal = os.open(f"pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    os.write(terminal, b"x")
    if os.read(master, 1) != b"x":
        raise NoEffect("what is written to the terminal does not come out of its other end")
    return f"a terminal of its own devpts, number {number}"


def _bind(setting: Setting) -> str:
    return in_child(_bind_read_only, flags=_FLAGS, setting=setting)


def _bind_read_only() -> str:
    """A tree with a mount below it, bound read-only: neither may be written, and the original still may."""
    stage()
    for name in ("from", "usr", "to"):
        os.mkdir(name)
    syscalls.mount("tmpfs", "from", "tmpfs", _TMPFS, "size=65536")
    os.mkdir("from/below")
    syscalls.mount("tmpfs", "from/below", "tmpfs", _TMPFS, "size=65536")
    root = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _copy("from", root, "to")
    for path in ("to/file", "to/below/file"):
        expect_errno(errno.EROFS, f"writing to {path} of a read-only bind", partial(os.open, path, _CREATE, 0o600))
    os.close(os.open("from/file", _CREATE, 0o600))
    _copy(_TREE, root, "usr")
    expect_errno(errno.EROFS, f"writing to a read-only bind of {_TREE}", partial(os.mkdir, "usr/stockade-probe"))
    return f"read-only with all that is mounted below, before it can be reached; also {_TREE}"


def _copy(path: str, root: int, target: str) -> None:
    source = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounts.attach(mounts.detach_copy(source, read_only=True), root, target)
    finally:
        os.close(source)


def _idmap(setting: Setting) -> str:
    if not setting.has_range:
        raise NotApplicable("an ordinary user's jobs have the user's own id, no mount is mapped")
    return in_child(partial(_map_directory, setting))


def _map_directory(setting: Setting) -> str:
    found = os.stat(setting.directory)
    uid, gid = setting.uid_map[1] + JOB_UID, setting.gid_map[1] + JOB_GID
    userns = namespaces.make_idmap((found.st_uid, uid, 1), (found.st_gid, gid, 1))
    source = os.open(setting.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        copy = mounts.detach_copy(source, read_only=False, idmap=userns)
    except syscalls.KernelError as error:
        raise syscalls.KernelError(error.call, setting.directory, error.errno or 0) from None
    mapped = os.fstat(copy)
    if (mapped.st_uid, mapped.st_gid) != (uid, gid):
        raise NoEffect(f"the owner of {setting.directory} is seen as {mapped.st_uid}:{mapped.st_gid}, not as {uid}:{gid}")
    return f"on the file system of {setting.directory}"


def _pivot(setting: Setting) -> str:
    return in_child(_pivot_into_stage, flags=_FLAGS, setting=setting)


def _pivot_into_stage() -> str:
    place = stage()
    os.mkdir("inside")
    root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    rootfs.enter(root)
    if os.listdir("/") != ["inside"] or os.listdir("/..") != ["inside"]:
        raise NoEffect("the old root is still in sight")
    expect_errno(errno.EROFS, "writing to the sealed root", partial(os.mkdir, "/outside"))
    return "the old root is gone, the new one read-only"


def _devices(setting: Setting) -> str:
    return in_child(_copy_devices, flags=_FLAGS, setting=setting)


def _copy_devices() -> str:
    for name, numbers in rootfs.DEVICES.items():
        path = f"/dev/{name}"
        try:
            device = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise syscalls.KernelError("open", path, error.errno or 0) from None
        found = os.fstat(device)
        if not stat.S_ISCHR(found.st_mode) or (os.major(found.st_rdev), os.minor(found.st_rdev)) != numbers:
            raise NoEffect(f"{path} is not character device {numbers[0]}:{numbers[1]}")
        os.close(mounts.detach_copy(device, read_only=False, device=True, recursive=False))
        os.close(device)
    return f"{', '.join(rootfs.DEVICES)} are what their names say, and can be bound"


def _openat2(setting: Setting) -> str:
    return in_child(partial(_walk, setting.directory))


def _walk(directory: str) -> str:
    top = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    links = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
    walk = partial(syscalls.openat2, flags=os.O_PATH)
    expect_errno(errno.EXDEV, "a walk out of RESOLVE_BENEATH", partial(walk, top, "..", resolve=syscalls.RESOLVE_BENEATH))
    expect_errno(errno.ELOOP, "a walk through a link", partial(walk, syscalls.AT_FDCWD, "/proc/self", resolve=links))
    inside = walk(top, "/..", resolve=syscalls.RESOLVE_IN_ROOT)
    if not os.path.samestat(os.fstat(inside), os.fstat(top)):
        raise NoEffect("a walk left RESOLVE_IN_ROOT")
    return "BENEATH, IN_ROOT, NO_SYMLINKS and NO_MAGICLINKS hold"


PROBES = (
    Probe("mount.tmpfs", _tmpfs),
    Probe("mount.proc", _proc),
    Probe("mount.bind", _bind),
    Probe("mount.idmap", _idmap, required=False),
    Probe("mount.pivot_root", _pivot),
    Probe("devices", _devices),
    Probe("pty", _pty),
    Probe("openat2", _openat2),
)
