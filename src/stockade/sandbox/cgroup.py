"""Control groups, version 2: an executor's own, one fresh leaf a job, its limits, its counters, and its end.

A leaf is written before anybody enters
and never used twice: a cgroup that was killed once kills whatever is later cloned into it.

Rests on the kernel's cgroup-v2 documentation; cgroup.kill is 5.14, memory.peak 5.19, pids.peak 6.1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import threading
import time
from collections.abc import Iterator

from stockade.sandbox.counters import Usage, flat_keyed, read_usage
from stockade.sandbox.delegation import SUPERVISOR, no_cgroup
from stockade.sandbox.limitfiles import changed_files, limit_files
from stockade.sandbox.spec import CgroupLimits

CONTROLLERS = ("memory", "pids", "cpu", "io", "cpuset")
PREFIX = "stockade-"
_ATTEMPTS = 10
_RETRY = 0.5  # seconds between two writes to cgroup.kill
_REMOVE_BOUND = 10.0  # seconds within which a tree that was killed must be empty


class Leaf:
    """One job's cgroup, by the descriptor of its directory; made by `Tree.make_leaf`."""

    def __init__(self, parent: int, name: str, directory: int) -> None:
        self.name = name
        self.directory = directory
        self._parent = parent
        self._freezing = threading.Lock()
        self._is_frozen = False

    def read(self, name: str) -> str | None:
        """The text of one of its files, None where the kernel has no such file."""
        return read_file(self.directory, name)

    def write(self, name: str, text: str) -> None:
        write_file(self.directory, name, text)

    def kill(self) -> None:
        """Sends SIGKILL to every process in it, whatever they are doing (cgroup.kill)."""
        self.write("cgroup.kill", "1")

    def freeze(self, *, frozen: bool) -> None:
        """Stops or resumes every process in it (cgroup.freeze)."""
        with self._freezing:
            self.write("cgroup.freeze", "1" if frozen else "0")
            self._is_frozen = frozen

    @contextlib.contextmanager
    def held_still(self, bound: float) -> Iterator[None]:
        """Stops every process in it meanwhile; goes on after `bound` seconds where some could not be stopped yet. Blocks."""
        with self._freezing:
            directory = os.dup(self.directory)  # the leaf may be closed meanwhile, and its number be another's
            try:
                if not self._is_frozen:
                    write_file(directory, "cgroup.freeze", "1")
                try:
                    _await_frozen(directory, bound)
                    yield
                finally:
                    if not self._is_frozen:
                        write_file(directory, "cgroup.freeze", "0")
            finally:
                os.close(directory)

    def is_populated(self) -> bool:
        """True while a live process is in it; zombies do not count."""
        return flat_keyed(self.read("cgroup.events") or "").get("populated", 0) == 1

    def processes(self) -> list[int]:
        """The host pids of its live processes, at this moment."""
        return [int(line) for line in (self.read("cgroup.procs") or "").split()]

    def count_threads(self) -> int:
        """How many threads of live processes are in it, at this moment."""
        return (self.read("cgroup.threads") or "").count("\n")

    def change(self, old: CgroupLimits, new: CgroupLimits) -> None:
        """Writes what differs between the limits that hold and `new`: all of it or nothing. Blocks while the kernel reclaims.

        Raises: OSError, with the file that refused and the value; the old limits hold then.
        """
        written: list[tuple[str, str]] = []
        try:
            for file, text, before in changed_files(old, new):
                _write_limit(self.directory, file, text)
                written.append((file, before))
        except OSError:
            for file, before in reversed(written):
                _write_limit(self.directory, file, before)
            raise

    def cpu_seconds(self) -> float | None:
        """User and system CPU time so far; needs no controller."""
        used = flat_keyed(self.read("cpu.stat") or "").get("usage_usec")
        return None if used is None else used / 1e6

    def usage(self) -> Usage:
        """All counters; read before `remove`."""
        return read_usage(self.read)

    def wait_empty(self, bound: float) -> bool:
        """Waits until no live process is in it, killing what is found; False after `bound` seconds. Blocks."""
        deadline = time.monotonic() + bound
        events = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.directory)
        try:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            while self.is_populated():
                if (left := deadline - time.monotonic()) <= 0:
                    return False
                self.kill()
                poll.poll(min(left, _RETRY) * 1000)
                os.pread(events, 4096, 0)
            return True
        finally:
            os.close(events)

    def open_procs(self) -> int:
        """A descriptor of cgroup.procs for writing; a process that writes 0 to it joins."""
        return os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.directory)

    def remove(self) -> None:
        """Removes the empty leaf and closes the descriptor. Raises: OSError (EBUSY) while a process is in it."""
        os.rmdir(self.name, dir_fd=self._parent)
        self.close()

    def close(self) -> None:
        if self.directory >= 0:
            os.close(self.directory)
            self.directory = -1


class Tree:
    """An executor's own cgroup: `<base>/stockade-<instance>`, with one leaf a job and one for the fork server."""

    def __init__(self, base: str, instance: str) -> None:
        """Makes the cgroup below `base` and turns on the controllers that can be had.

        Raises: HostUnfit, where it cannot be made, with the way out.
        """
        self.path = f"{base}/{PREFIX}{instance}"
        self.directory = _make_locked(base, self.path)
        enable_controllers(base)
        self.controllers = enable_controllers(self.path)

    def cpuset(self) -> str | None:
        """The CPUs that leaves can have, such as "0-3": the cgroup's own, or where no controller says so, those that are online."""
        effective = read_file(self.directory, "cpuset.cpus.effective")
        if effective is None:
            try:
                with open("/sys/devices/system/cpu/online", encoding="ascii") as online:
                    effective = online.read()
            except OSError:
                return None
        return effective.strip() or None

    def make_leaf(self, name: str, limits: CgroupLimits) -> Leaf:
        """A fresh leaf with its limits written and no room for cgroups below it.

        Raises: OSError, with the file that refused; nothing is left then.
        """
        os.mkdir(name, 0o755, dir_fd=self.directory)
        directory = -1
        try:
            directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.directory)
            for file, value in limit_files(limits):
                _write_limit(directory, file, value)
        except BaseException:
            if directory >= 0:
                os.close(directory)
            os.rmdir(name, dir_fd=self.directory)
            raise
        return Leaf(self.directory, name, directory)

    def close(self) -> None:
        """Kills what is left in it and removes it."""
        if self.directory < 0:
            return
        os.close(self.directory)
        self.directory = -1
        remove_tree(self.path)


def await_event(events: int, line: str, bound: float) -> bool:
    """Waits until an open cgroup.events has that line, such as "frozen 1", by notification; False after `bound` seconds. Blocks."""
    deadline = time.monotonic() + bound
    poll = select.poll()
    poll.register(events, select.POLLPRI)
    while line not in os.pread(events, 4096, 0).decode("ascii", "replace").splitlines():
        if (left := deadline - time.monotonic()) <= 0 or not poll.poll(left * 1000):
            return False
    return True


def _await_frozen(directory: int, bound: float) -> None:
    events = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        await_event(events, "frozen 1", bound)
    finally:
        os.close(events)


def _write_limit(directory: int, file: str, value: str) -> None:
    try:
        write_file(directory, file, value)
    except FileNotFoundError:
        # A kernel without swap accounting has no such file, and where the host has no swap nothing is lost by that.
        if file != "memory.swap.max" or _has_swap():
            raise


def _has_swap() -> bool:
    with open("/proc/swaps", encoding="utf-8", errors="replace") as table:
        return len(table.readlines()) > 1


def enable_controllers(path: str) -> frozenset[str]:
    """Turns on, for the children of a cgroup, each controller that it has; returns those that are on."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        available = (read_file(directory, "cgroup.controllers") or "").split()
        for controller in CONTROLLERS:
            if controller in available:
                try:
                    write_file(directory, "cgroup.subtree_control", f"+{controller}")
                except OSError:
                    pass  # busy or not delegated: it is then missing from what is returned, and named by whoever needs it
        return frozenset((read_file(directory, "cgroup.subtree_control") or "").split()) & frozenset(CONTROLLERS)
    finally:
        os.close(directory)


def remove_tree(path: str) -> bool:
    """Kills and removes a cgroup with those directly below it; False where something is still in it after a while. Blocks."""
    try:
        tree = Leaf(-1, path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except FileNotFoundError:
        return True
    try:
        tree.kill()
        if not tree.wait_empty(_REMOVE_BOUND):
            return False
        names = [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return True
    finally:
        tree.close()
    try:
        for name in names:
            os.rmdir(f"{path}/{name}")
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def sweep(base: str) -> list[str]:
    """Kills and removes the cgroups of executors that are gone; returns their instance ids.

    A living executor holds a lock (flock(2)) on the directory of its cgroup, which ends with it, however it ends.
    """
    swept = []
    with os.scandir(base) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        if not name.startswith(PREFIX) or name == SUPERVISOR:
            continue
        path = f"{base}/{name}"
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or another user's
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if remove_tree(path):
                swept.append(name.removeprefix(PREFIX))
        except OSError:
            continue  # its executor lives
        finally:
            os.close(directory)
    return swept


def _make_locked(base: str, path: str) -> int:
    """Makes a cgroup and locks it; where a sweeper was between the two, it is made again."""
    for _ in range(_ATTEMPTS):
        try:
            os.mkdir(path, 0o700)  # who can open it can hold its lock
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise no_cgroup(base, error) from None
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(directory, path):
                return directory
        except BlockingIOError:
            pass  # a sweeper has it, and will remove it
        os.close(directory)
        remove_tree(path)
    raise no_cgroup(base, OSError(errno.EBUSY, "it was removed again and again"))


def _is_same(directory: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(directory), os.stat(path))
    except FileNotFoundError:
        return False


def read_file(directory: int, name: str) -> str | None:
    """The text of a file of an open cgroup directory, None where there is none."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        text = b""
        while piece := os.read(descriptor, 65536):
            text += piece
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):  # the file is there but has nothing to say
            raise
        return None
    finally:
        os.close(descriptor)
    return text.decode("ascii", "replace")


def write_file(directory: int, name: str, text: str) -> None:
    """Writes a file of an open cgroup directory. Raises: OSError, which names the file and the value."""
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}, value {text!r}", name) from None
