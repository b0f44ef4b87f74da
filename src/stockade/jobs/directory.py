"""The state directory: whose it is, what is in it, and that one executor at a time uses it.

    stockade-state     the marker: a directory without it that is not empty is somebody else's
    lock               an open-file-description lock, held for the life of one executor; the kernel drops it with its owner
    temporary          only where the directory goes with its executor: whoever finds it unheld removes it
    registry.sqlite3   `jobs.store`
    bank/  run/        `bank` and the executor's sockets

Rests on fcntl(2) (F_OFD_SETLK, Linux 3.15), open(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from stockade.errors import StateError
from stockade.ids import InstanceId, new_instance_id

LAYOUT_VERSION: Final = 1
_MARKER: Final = "stockade-state"
_MARKER_TEXT: Final = "Stockade state directory, layout "
TEMPORARY_PREFIX: Final = "stockade-"
_LOCK_STRUCT: Final = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in a state directory."""

    root: str

    @property
    def database(self) -> str:
        return os.path.join(self.root, "registry.sqlite3")

    @property
    def bank(self) -> str:
        return os.path.join(self.root, "bank")

    @property
    def run(self) -> str:
        return os.path.join(self.root, "run")

    @property
    def lock(self) -> str:
        return os.path.join(self.root, "lock")

    @property
    def temporary(self) -> str:
        return os.path.join(self.root, "temporary")

    @property
    def marker(self) -> str:
        return os.path.join(self.root, _MARKER)


@dataclass(frozen=True, slots=True)
class Owner:
    """The executor that holds a state directory; None where it had no time to write its name yet."""

    pid: int | None
    instance: InstanceId | None


class StateDirectory:
    """A state directory that this process holds until `close` or death."""

    def __init__(self, layout: Layout, instance: InstanceId, lock: int) -> None:
        self.layout = layout
        self.instance = instance
        self._lock: int | None = lock
        _held.add(self)

    @classmethod
    def open(cls, path: str, *, temporary: bool = False) -> StateDirectory:
        """Makes or takes over the directory at `path` and locks it, without waiting; a `temporary` one is swept when we die.

        Raises:
            StateError: another executor uses it, it is not ours, others can enter it, or it cannot be written.
        """
        layout = Layout(_path(path))
        try:
            _make(layout.root)
            _verify(layout.root, is_ours=lambda: _may_be_ours(layout))
            _mark(layout)
            _check_database(layout)
            lock = _take_lock(layout)
        except OSError as why:
            raise StateError(
                f"the state directory {layout.root!r} cannot be used: {why.strerror} ({why.filename or 'lock'})",
                hint="name a directory on a local file system that you can write",
            ) from why
        try:
            for place in (layout.bank, layout.run):
                _make(place)
                _verify(place)
            instance = new_instance_id()
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} {instance}\n".encode(), 0)
            if temporary:
                os.close(os.open(layout.temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        except OSError as why:
            os.close(lock)
            raise StateError(
                f"the state directory {layout.root!r} cannot be written: {why.strerror}",
                hint="make room on its file system, make it writable, or name another one",
            ) from why
        except BaseException:
            os.close(lock)
            raise
        return cls(layout, instance, lock)

    def __enter__(self) -> StateDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets the directory go; once is enough."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def look(path: str) -> Layout:
    """The layout of an existing state directory, for readers: nothing is made and nothing is locked.

    Raises:
        StateError: there is none at `path`, or it is not one of ours.
    """
    layout = Layout(_path(path))
    try:
        found = os.path.isdir(layout.root) and os.path.isfile(layout.marker)
        if not found:
            raise StateError(f"{path!r} is no state directory of Stockade", hint="name the one that the executor was given")
        _verify(layout.root)
        _check_database(layout)
    except OSError as why:
        raise StateError(f"the state directory {path!r} cannot be read: {why.strerror}") from why
    return layout


def living_owner(layout: Layout) -> Owner | None:
    """The executor that holds the directory now, None where none does; asking disturbs nobody (F_OFD_GETLK)."""
    try:
        lock = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        request = struct.pack(_LOCK_STRUCT, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(lock, fcntl.F_OFD_GETLK, request)
        return None if struct.unpack(_LOCK_STRUCT, answer)[0] == fcntl.F_UNLCK else _name_on(lock)
    finally:
        os.close(lock)


def sweep(place: str) -> None:
    """Removes the temporary state directories in `place` whose executors were killed; never one that was named by somebody.

    The `temporary` file is made under the lock, so a directory that has it and whose lock is free belongs to nobody.
    """
    try:
        names = os.listdir(place)
    except OSError:
        return
    for name in names:
        if name.startswith(TEMPORARY_PREFIX):
            try:
                _sweep_one(Layout(os.path.join(place, name)))
            except (OSError, StateError):
                continue  # somebody else's, or in use, or just gone


def _sweep_one(layout: Layout) -> None:
    _verify(layout.root)
    if not (os.path.isfile(layout.marker) and os.path.isfile(layout.temporary) and os.path.isfile(layout.lock)):
        return
    lock = _take_lock(layout)
    try:
        if os.path.isfile(layout.temporary):
            shutil.rmtree(layout.root, ignore_errors=True)
    finally:
        os.close(lock)


def _path(path: str) -> str:
    if not path or "\0" in path:
        why = "is empty" if not path else "contains a NUL byte"
        raise StateError(f"the path of the state directory {why}", hint="name a directory on a local file system that you can write")
    return os.path.abspath(path)


def _may_be_ours(layout: Layout) -> bool:
    return os.path.lexists(layout.marker) or not os.listdir(layout.root)


def _not_ours(path: str) -> StateError:
    return StateError(f"{path!r} is not empty and no state directory of Stockade", hint="name an empty or a new directory")


def _make(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    os.chmod(path, 0o700)  # whatever the umask took away


def _verify(path: str, is_ours: Callable[[], bool] = lambda: True) -> None:
    """Raises StateError where the directory is a link, somebody else's, not for our use, or open to others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as why:
        if why.errno in (errno.ELOOP, errno.ENOTDIR):
            raise StateError(f"{path!r} is a link or no directory", hint="name the directory itself, or move that away") from why
        raise
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if found.st_uid != os.geteuid():
        raise StateError(f"{path!r} belongs to uid {found.st_uid}, not to you", hint="name a directory of your own")
    if not is_ours():  # before its mode: nobody is told to change that of a directory that we would not take
        raise _not_ours(path)
    if mode := stat.S_IMODE(found.st_mode) & 0o077:
        raise StateError(f"{path!r} is open to others (mode bits {mode:03o})", hint=f"chmod 700 {path}")


def _check_database(layout: Layout) -> None:
    """Raises StateError where something else is in the place of the registry: SQLite would wait for a writer of a fifo, for ever."""
    try:
        found = os.lstat(layout.database)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise StateError(f"{layout.database!r} is no regular file", hint="move it away, or name another state directory")


def _mark(layout: Layout) -> None:
    try:
        marker = os.open(layout.marker, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if os.listdir(layout.root) and not os.path.lexists(layout.marker):
            raise _not_ours(layout.root) from None
        marker = os.open(layout.marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as why:
        if why.errno == errno.ELOOP:
            raise StateError(f"{layout.marker!r} is a link", hint="name another directory") from why
        raise
    try:
        text = os.pread(marker, 200, 0).decode(errors="replace")
        if not text:  # new, or its maker died between two calls
            os.pwrite(marker, f"{_MARKER_TEXT}{LAYOUT_VERSION}\n".encode(), 0)
            return
    finally:
        os.close(marker)
    version = text.removeprefix(_MARKER_TEXT).strip()
    if not text.startswith(_MARKER_TEXT) or not version.isdecimal():
        raise StateError(f"{layout.marker!r} is not a marker of ours", hint="name an empty or a new directory")
    if int(version) > LAYOUT_VERSION:
        raise StateError(
            f"{layout.root!r} has layout {version}, this Stockade knows layout {LAYOUT_VERSION}",
            hint="use the newer Stockade that made it, or name another state directory",
        )


def _take_lock(layout: Layout) -> int:
    lock = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack(_LOCK_STRUCT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as why:
        owner = _name_on(lock)
        os.close(lock)
        if why.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        who = "another executor" if owner.pid is None else f"the executor in process {owner.pid}"
        raise StateError(
            f"the state directory {layout.root!r} is in use by {who}",
            hint="close that executor, or give this one a state directory of its own",
        ) from why
    return lock


def _name_on(lock: int) -> Owner:
    words = os.pread(lock, 200, 0).decode(errors="replace").split()
    if len(words) == 2 and words[0].isdecimal():
        return Owner(int(words[0]), InstanceId(words[1]))
    return Owner(None, None)


# A child that the host forks without exec shares the lock's open file description and would hold it beyond our death.
_held: weakref.WeakSet[StateDirectory] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    for directory in list(_held):
        directory.close()


os.register_at_fork(after_in_child=_let_go_after_fork)
