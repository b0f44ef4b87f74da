"""Removing a directory tree by descriptor, whatever a job has made of it.

Links are removed and never followed. The tree is flattened as it is emptied: a directory two levels down is first moved
up to the top, so depth costs neither descriptors nor recursion. Rests on openat(2), renameat(2) and O_PATH.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import Final

from stockade.bank.private import DIRECTORY_FLAGS

_PATH_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _open_directory(parent: int, name: bytes) -> int:
    """Open `name` to be emptied; where its mode keeps even its owner out, give it one that does not. Raises: OSError."""
    path = os.open(name, _PATH_FLAGS, dir_fd=parent)
    try:
        status = os.fstat(path)
        if stat.S_IMODE(status.st_mode) & 0o700 != 0o700:
            # fchmod(2) refuses O_PATH descriptors; the link in /proc reaches the same inode and no other.
            os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(f"/proc/self/fd/{path}", DIRECTORY_FLAGS & ~os.O_NOFOLLOW)
    finally:
        os.close(path)


class _Removal:
    """The emptying of one directory, `top`, which it holds open."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        self._prefix = f".{secrets.token_hex(6)}.".encode()
        self._moved = 0
        self.failure: OSError | None = None

    def _failed(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error

    def empty(self) -> None:
        """Remove what is below `top`, pass by pass, until nothing is left or a pass gets nowhere."""
        while True:
            progress, left = False, False
            for name in os.listdir(f"/proc/self/fd/{self._top}".encode()):
                left = True
                progress |= self._remove_child(name)
            if not left or not progress:
                return

    def _remove_child(self, name: bytes) -> bool:
        try:
            try:
                os.unlink(name, dir_fd=self._top)
                return True
            except (IsADirectoryError, PermissionError):
                # A directory: EISDIR on Linux, EPERM where POSIX is followed to the letter.
                if not stat.S_ISDIR(os.stat(name, dir_fd=self._top, follow_symlinks=False).st_mode):
                    raise
            child = _open_directory(self._top, name)
            try:
                if os.fstat(child).st_dev != self._device:
                    raise OSError(errno.EBUSY, "another file system is mounted there")
                progress = self._hoist(child)
            finally:
                os.close(child)
            try:
                os.rmdir(name, dir_fd=self._top)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return progress
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            self._failed(error)
            return False

    def _hoist(self, child: int) -> bool:
        """Remove the files of `child` and move its directories up to the top; True where anything was done."""
        progress = False
        with os.scandir(child) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        self._lift(child, name)
                    else:
                        os.unlink(name, dir_fd=child)
                    progress = True
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._failed(error)
        return progress

    def _lift(self, child: int, name: bytes) -> None:
        self._moved += 1
        target = self._prefix + str(self._moved).encode()
        try:
            os.rename(name, target, src_dir_fd=child, dst_dir_fd=self._top)
        except PermissionError:
            # A directory that is moved has its ".." rewritten, for which its owner needs write permission.
            os.close(_open_directory(child, name))
            os.rename(name, target, src_dir_fd=child, dst_dir_fd=self._top)


def remove_tree(parent: int, name: str | bytes) -> None:
    """Remove `name` below the directory descriptor `parent`, a file or a whole tree; missing is no error.

    Raises: OSError, the first failure, after everything else has been removed.
    """
    encoded = os.fsencode(name)
    if b"/" in encoded or encoded in (b"", b".", b".."):
        raise ValueError(f"not a name: {name!r}")
    try:
        if not stat.S_ISDIR(os.stat(encoded, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(encoded, dir_fd=parent)
            return
        top = _open_directory(parent, encoded)
    except FileNotFoundError:
        return
    try:
        removal = _Removal(top)
        removal.empty()
    finally:
        os.close(top)
    try:
        os.rmdir(encoded, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise (removal.failure or error) from None
