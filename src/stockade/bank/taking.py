"""Taking files out of a workspace that a job could write, by descriptor and without trusting a name in it.

Only regular files of the workspace's own file system are taken; links, fifos, sockets and devices are refused, each
refusal is part of the result, and nothing here blocks on what a job has put in the way. Rests on openat(2), O_NOFOLLOW,
and SEEK_DATA (lseek(2)).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from stockade.bank.private import READ_FLAGS

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_BLOCK: Final = 1_048_576
_KINDS: Final = (
    (stat.S_ISLNK, "it is a symbolic link"),
    (stat.S_ISFIFO, "it is a fifo"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
    (stat.S_ISDIR, "it is a directory"),
)


@dataclass(frozen=True, slots=True)
class TakeLimits:
    """How much is taken at most; sizes are in bytes and are those that stat(2) shows, holes included."""

    files: int = 256
    bytes_per_file: int = 64 * 1_048_576
    bytes_total: int = 256 * 1_048_576
    depth: int = 32
    visited: int = 10_000


DEFAULT_LIMITS: Final = TakeLimits()


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that was copied: its path in the workspace, what it is stored as, its size, whether its owner may execute
    it.
    """

    path: str
    stored_as: str
    size: int
    executable: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """A path that was not taken, and why; a path is text with undecodable bytes as surrogates (os.fsdecode)."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Harvest:
    """What was taken and what was not."""

    taken: tuple[Taken, ...]
    refused: tuple[Refusal, ...]


class _Refused(Exception):
    """A path is not taken; the text says why."""


# Creates the file that a copy goes to: returns what it is called and a descriptor that is closed here.
Target = Callable[[str], tuple[str, int]]


def _why(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it leads through a symbolic link or a file"
    return (error.strerror or str(error)).lower()


def _parts(path: str) -> list[bytes]:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise _Refused("it holds a NUL")
    if encoded.startswith(b"/"):
        raise _Refused("it is absolute; name it relative to the workspace")
    parts = [part for part in encoded.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise _Refused("it leads upwards; name it relative to the workspace")
    if not parts:
        raise _Refused("it names no file")
    return parts


class _Taking:
    """One harvest: the limits and what is left of them."""

    def __init__(self, root: int, limits: TakeLimits, target: Target) -> None:
        self._root = root
        self._device = os.fstat(root).st_dev
        self._limits = limits
        self._target = target
        self._bytes = 0
        self.taken: list[Taken] = []
        self.refused: list[Refusal] = []

    def refuse(self, path: str, reason: str) -> None:
        self.refused.append(Refusal(path, reason))

    def take_path(self, path: str) -> None:
        """Take the file at `path`, relative to the root, one component at a time."""
        try:
            *directories, name = _parts(path)
            if len(directories) > self._limits.depth:
                raise _Refused(f"it is more than {self._limits.depth} directories deep")
            current = os.dup(self._root)
            try:
                for part in directories:
                    deeper = os.open(part, _DIRECTORY, dir_fd=current)
                    os.close(current)
                    current = deeper
                self._take(current, name, path)
            finally:
                os.close(current)
        except _Refused as refused:
            self.refuse(path, str(refused))
        except OSError as error:
            self.refuse(path, _why(error))

    def _take(self, parent: int, name: bytes, path: str) -> None:
        limits = self._limits
        if len(self.taken) >= limits.files:
            raise _Refused(f"{limits.files} files have been taken, which is the limit")
        # Looked at before it is opened, because opening a device can do things; and again afterwards.
        self._check(os.stat(name, dir_fd=parent, follow_symlinks=False))
        source = os.open(name, READ_FLAGS, dir_fd=parent)
        try:
            status = os.fstat(source)
            self._check(status)
            stored_as, target = self._target(path)
            try:
                copy_data(source, target, status.st_size)
            except OSError:
                os.ftruncate(target, 0)  # What follows may still fit.
                raise
            finally:
                os.close(target)
            self._bytes += status.st_size
            self.taken.append(Taken(path, stored_as, status.st_size, bool(status.st_mode & stat.S_IXUSR)))
        finally:
            os.close(source)

    def _check(self, status: os.stat_result) -> None:
        limits = self._limits
        for is_kind, reason in _KINDS:
            if is_kind(status.st_mode):
                raise _Refused(reason)
        if not stat.S_ISREG(status.st_mode):
            raise _Refused("it is no regular file")
        if status.st_dev != self._device:
            raise _Refused("it is on another file system than the workspace")
        if status.st_size > limits.bytes_per_file:
            raise _Refused(f"its size of {status.st_size} bytes is over the limit of {limits.bytes_per_file}")
        if self._bytes + status.st_size > limits.bytes_total:
            raise _Refused(f"with it, more than {limits.bytes_total} bytes would have been taken, which is the limit")


def copy_data(source: int, target: int, size: int) -> None:
    """Copy the first `size` bytes; holes stay holes, so neither time nor space goes into them. Raises: OSError."""
    offset = 0
    while offset < size:
        try:
            begin = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # Nothing but a hole follows.
                break
            raise
        end = min(os.lseek(source, begin, os.SEEK_HOLE), size)
        while begin < end:
            data = os.pread(source, min(_BLOCK, end - begin), begin)
            if not data:  # It was cut short while we read.
                return
            view = memoryview(data)
            while view:
                written = os.pwrite(target, view, begin)
                begin += written
                view = view[written:]
        offset = max(end, begin, offset + 1)
    os.ftruncate(target, size)


def walk_files(root: int, limits: TakeLimits, refuse: Callable[[str, str], None]) -> Iterator[str]:
    """The paths of everything below `root` that is no directory, in order of name, breadth first, within the limits.

    Directories are reached by name from the root again each time, so the walk holds two descriptors at most.
    """
    device = os.fstat(root).st_dev
    waiting: list[tuple[bytes, ...]] = [()]
    visited = 0
    for parts in waiting:  # Grows while it is walked.
        path = os.fsdecode(b"/".join(parts))
        try:
            current = os.dup(root)
            try:
                for part in parts:
                    deeper = os.open(part, _DIRECTORY, dir_fd=current)
                    os.close(current)
                    current = deeper
                if os.fstat(current).st_dev != device:
                    refuse(path, "it is on another file system than the workspace")
                    continue
                entries: list[tuple[bytes, bool]] = []
                with os.scandir(current) as listing:
                    for entry in listing:
                        visited += 1
                        if visited > limits.visited:
                            break
                        entries.append((os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)))
            finally:
                os.close(current)
        except OSError as error:
            refuse(path, _why(error))
            continue
        for name, is_directory in sorted(entries):
            below = (*parts, name)
            if not is_directory:
                yield os.fsdecode(b"/".join(below))
            elif len(below) > limits.depth:
                refuse(os.fsdecode(b"/".join(below)), f"it is more than {limits.depth} directories deep")
            else:
                waiting.append(below)
        if visited > limits.visited:
            refuse(path or ".", f"{limits.visited} entries have been looked at, which is the limit; name the files you want")
            return


def take_files(root: int, paths: Iterable[str] | None, target: Target, limits: TakeLimits = DEFAULT_LIMITS) -> Harvest:
    """Copy files from below the directory descriptor `root`: those at `paths`, or all where `paths` is None.

    `target` makes the file that a copy goes to. What cannot be taken is in the result with its reason; nothing is
    raised for it, except what `target` raises other than OSError.
    """
    taking = _Taking(root, limits, target)
    full = False
    for path in walk_files(root, limits, taking.refuse) if paths is None else paths:
        if paths is None and len(taking.taken) >= limits.files:
            full = True
            break
        taking.take_path(path)
    if full:
        taking.refuse(".", f"{limits.files} files have been taken, which is the limit; the rest was not looked at")
    return Harvest(tuple(taking.taken), tuple(taking.refused))
