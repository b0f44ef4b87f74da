"""Mount operations by descriptor: sources that cannot be swapped, attributes before attachment, targets inside our own root.

A source is opened without following any link and must be the very inode that was admitted. Its copy gets all attributes while it is
still detached, on every mount below it (AT_RECURSIVE): there is no moment at which it is writable. A target is resolved inside the
new root without links, and made there where it is missing.

Man pages: open_tree(2), mount_setattr(2), move_mount(2), openat2(2), mount_namespaces(7).
"""

from __future__ import annotations

import os
import stat
from errno import ESTALE

from stockade.sandbox import syscalls
from stockade.sandbox.syscalls import KernelError

_NO_LINKS = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SourceChanged(KernelError):
    """A path that was admitted is now another file: it was swapped between the check and the mount."""

    def __init__(self, path: str) -> None:
        super().__init__("openat2", path, ESTALE)


def open_source(path: str, device: int, inode: int) -> int:
    """An O_PATH descriptor of the admitted host path.

    Raises: SourceChanged; KernelError (ELOOP where a link has appeared on the way).
    """
    descriptor = syscalls.openat2(syscalls.AT_FDCWD, path, os.O_PATH, resolve=_NO_LINKS)
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != (device, inode):
        os.close(descriptor)
        raise SourceChanged(path)
    return descriptor


def detach_copy(source: int, *, read_only: bool, device: bool = False, recursive: bool = True, idmap: int | None = None) -> int:
    """A detached copy of the mount at `source` with its attributes set; `idmap` is a user namespace for an idmapped mount."""
    depth = syscalls.AT_RECURSIVE if recursive else 0
    tree = syscalls.open_tree(source, "", syscalls.OPEN_TREE_CLONE | syscalls.AT_EMPTY_PATH | depth)
    add = syscalls.MOUNT_ATTR_NOSUID
    if not device:
        add |= syscalls.MOUNT_ATTR_NODEV
    if read_only:
        add |= syscalls.MOUNT_ATTR_RDONLY
    if idmap is not None:
        add |= syscalls.MOUNT_ATTR_IDMAP
    try:
        syscalls.mount_setattr(tree, "", syscalls.AT_EMPTY_PATH | depth, add=add, propagation=syscalls.MS_PRIVATE, userns=idmap)
    except BaseException:
        os.close(tree)
        raise
    return tree


def attach(tree: int, root: int, target: str) -> None:
    """Attaches a detached mount at `target` (absolute, inside) and closes the descriptor."""
    try:
        parent, name = mount_point(root, target, directory=stat.S_ISDIR(os.fstat(tree).st_mode))
        try:
            syscalls.move_mount(tree, parent, name)
        except KernelError as error:
            raise KernelError("move_mount", target, error.errno or 0) from None
        finally:
            os.close(parent)
    finally:
        os.close(tree)


def mount_point(root: int, target: str, *, directory: bool) -> tuple[int, str]:
    """(O_PATH descriptor of the parent, name) of a mount point inside the root, made where missing."""
    parent_path, _, name = target.rpartition("/")
    parent = make_directories(root, parent_path)
    try:
        if directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=parent))
    except FileExistsError:
        pass
    except OSError as error:
        os.close(parent)
        raise KernelError("mkdir" if directory else "open", target, error.errno or 0) from None
    return parent, name


def make_directories(root: int, path: str, mode: int = 0o755) -> int:
    """An O_PATH descriptor of a directory inside the root, made with its parents where missing; a link on the way is ENOTDIR.

    One component at a time and never through a link, so nothing that a job may have put there can lead elsewhere.
    """
    current = os.dup(root)
    for name in filter(None, path.split("/")):
        try:
            try:
                below = os.open(name, _STEP, dir_fd=current)
            except FileNotFoundError:
                os.mkdir(name, mode, dir_fd=current)
                below = os.open(name, _STEP, dir_fd=current)
        except OSError as error:
            raise KernelError("open", path, error.errno or 0) from None
        finally:
            os.close(current)
        current = below
    return current


def exists(root: int, path: str) -> bool:
    """True where `path` resolves inside the root, links followed."""
    flags = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
    try:
        os.close(syscalls.openat2(root, path.lstrip("/"), os.O_PATH, resolve=flags))
    except OSError:
        return False
    return True


def mount_at(root: int, target: str, fstype: str, flags: int, data: str) -> int:
    """Mounts a new file system at a directory inside the root (made where missing); returns an O_PATH descriptor of its top."""
    parent, name = mount_point(root, target, directory=True)
    try:
        # No link can be followed: the name is one component below a descriptor, in a directory that we made.
        syscalls.mount(fstype, f"/proc/self/fd/{parent}/{name}", fstype, flags, data)
        return os.open(name, _STEP, dir_fd=parent)
    except OSError as error:
        raise KernelError(getattr(error, "call", "open"), target, error.errno or 0) from None
    finally:
        os.close(parent)


def make_read_only(mount: int) -> None:
    """Makes one mount (not those below it), given by a descriptor of its top, read-only."""
    syscalls.mount_setattr(mount, "", syscalls.AT_EMPTY_PATH, add=syscalls.MOUNT_ATTR_RDONLY)


def detach_unneeded(kinds: frozenset[str]) -> None:
    """Unmounts, deepest first, whatever is of a kind that no job needs; for a mount namespace of our own.

    A clone copies the whole mount table, so each mount that goes makes every job cheaper. A mount that cannot go stays.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        rows = [line.split() for line in table]
    for row in reversed(rows):
        kind = row[row.index("-") + 1]
        if kind in kinds:
            try:
                syscalls.umount2(unescape(row[4]), syscalls.MNT_DETACH)
            except KernelError:
                pass  # busy, or covered by another: harmless, merely one mount more to copy


def unescape(path: str) -> str:
    r"""A path as mountinfo writes it, with \040 for a space and so on (proc_pid_mountinfo(5))."""
    head, *rest = path.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
