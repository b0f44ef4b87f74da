"""Private directories and files, always reached by descriptor: 0700 and 0600, created exclusively, no link followed
(U-15).

Rests on openat(2), O_NOFOLLOW and renameat(2).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import Final

from stockade.errors import StateError

DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Directory:
    """An open directory descriptor, closed when the last holder lets go of it.

    Readers in other threads may still be using the descriptor, so the last reference closes it; `close` is for whoever knows that
    there are none. What is asked of it afterwards fails with EBADF.
    """

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def close(self) -> None:
        """Close the descriptor now; closing twice is allowed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()

    def stat(self) -> os.stat_result:
        return os.fstat(self.fd)


def _refuse(path: str, why: str, hint: str) -> StateError:
    return StateError(f"cannot keep output in {path!r}: {why}", hint=hint)


def _validated(fd: int, path: str) -> Directory:
    directory = Directory(fd, path)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise _refuse(
            path,
            f"it belongs to user {status.st_uid}, not to {os.geteuid()}",
            "name a directory of your own, or let one be created by naming a path that does not exist",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise _refuse(
            path,
            f"its mode {stat.S_IMODE(status.st_mode):04o} lets other users in",
            f"chmod 700 {path}, after checking that nobody else has put files there",
        )
    return directory


def open_private_root(path: str) -> Directory:
    """Open or create the private 0700 directory at `path`.

    Raises: StateError where it is a link, is not a directory, is not ours or lets others in.
    """
    path = os.path.abspath(path)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass  # Whoever made it: the checks below decide.
        fd = os.open(path, DIRECTORY_FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
            raise _refuse(path, "it is a symbolic link or not a directory", "name the directory itself, not a link to it") from error
        raise _refuse(path, error.strerror or str(error), "name a directory that this user can create and write") from error
    return _validated(fd, path)


def open_private_child(parent: Directory, name: str) -> Directory:
    """Open or create the private directory `name` below `parent`. Raises: StateError as `open_private_root`."""
    path = os.path.join(parent.path, name)
    try:
        try:
            os.mkdir(name, 0o700, dir_fd=parent.fd)
        except FileExistsError:
            pass  # As above.
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent.fd)
    except OSError as error:
        raise _refuse(path, error.strerror or str(error), "move it out of the way, or name another root") from error
    return _validated(fd, path)


def create_private_child(parent: Directory, name: str) -> Directory:
    """Create the private directory `name` below `parent`, which must not exist yet. Raises: StateError."""
    path = os.path.join(parent.path, name)
    try:
        os.mkdir(name, 0o700, dir_fd=parent.fd)
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent.fd)
    except FileExistsError as error:
        raise _refuse(path, "it exists already", "use an id that has never been used in this bank") from error
    except OSError as error:
        raise _refuse(path, error.strerror or str(error), "see to it that the bank's root can be written") from error
    return _validated(fd, path)


def open_child(parent: Directory, name: str) -> Directory | None:
    """Open the existing directory `name`; None where there is none, or where it is a link or not ours."""
    try:
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent.fd)
    except OSError:
        return None
    directory = Directory(fd, os.path.join(parent.path, name))
    return directory if directory.stat().st_uid == os.geteuid() else None


def create_file(directory: Directory, name: str, *, append: bool = False) -> int:
    """Create the 0600 file `name`, which must not exist; returns a descriptor to read and write. Raises: OSError."""
    flags = CREATE_FLAGS | (os.O_APPEND if append else 0)
    return os.open(name, flags, 0o600, dir_fd=directory.fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, going on after short writes. Raises: OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_small(directory: Directory, name: str, limit: int) -> bytes | None:
    """The content of a regular file of at most `limit` bytes; None where it is missing, larger or something else."""
    try:
        fd = os.open(name, READ_FLAGS, dir_fd=directory.fd)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        parts: list[bytes] = []
        size = 0
        while size <= limit and (part := os.read(fd, limit + 1 - size)):
            parts.append(part)
            size += len(part)
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"".join(parts) if size <= limit else None


def replace_file(directory: Directory, name: str, data: bytes) -> None:
    """Put `data` under `name` so that a reader sees the old content or the new, never a part. Raises: OSError."""
    temporary = f".{secrets.token_hex(8)}.new"
    fd = create_file(directory, temporary)
    try:
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    except OSError:
        try:
            os.unlink(temporary, dir_fd=directory.fd)
        except OSError:
            pass  # The first failure is the one to tell.
        raise
