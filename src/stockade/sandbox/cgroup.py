"""Control groups, version 2: an executor's own, one fresh leaf a job, its limits, its counters, and its end.

A leaf is written before anybody enters
and never used twice: a cgroup that was killed once kills whatever is later cloned into it.

Rests on the kernel's cgroup-v2 documentation; cgroup.kill is 5.14, memory.peak 5.19, pids.peak 6.1.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time
from dataclasses import dataclass

from stockade.sandbox.delegation import SUPERVISOR, no_cgroup
from stockade.sandbox.spec import CgroupLimits

CONTROLLERS = ("memory", "pids", "cpu", "io", "cpuset")
PREFIX = "stockade-"
_ATTEMPTS = 10
_RETRY = 0.5  # seconds between two writes to cgroup.kill
_REMOVE_BOUND = 10.0  # seconds within which a tree that was killed must be empty
_CPU_PERIOD = 100_000  # microseconds; the kernel's default


@dataclass(frozen=True, slots=True)
class Usage:
    """What a leaf counted. Seconds and bytes; None where this host does not count it."""

    user_cpu: float | None = None
    system_cpu: float | None = None
    throttled: float | None = None
    peak_memory: int | None = None
    peak_processes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    oom_kills: int | None = None
    oom_events: int | None = None
    refused_forks: int | None = None


class Leaf:
    """One job's cgroup, by the descriptor of its directory; made by `Tree.make_leaf`."""

    def __init__(self, parent: int, name: str, directory: int) -> None:
        self.name = name
        self.directory = directory
        self._parent = parent

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
        self.write("cgroup.freeze", "1" if frozen else "0")

    def is_populated(self) -> bool:
        """True while a live process is in it; zombies do not count."""
        return _flat(self.read("cgroup.events") or "").get("populated", 0) == 1

    def processes(self) -> list[int]:
        """The host pids of its live processes, at this moment."""
        return [int(line) for line in (self.read("cgroup.procs") or "").split()]

    def cpu_seconds(self) -> float | None:
        """User and system CPU time so far; needs no controller."""
        used = _flat(self.read("cpu.stat") or "").get("usage_usec")
        return None if used is None else used / 1e6

    def usage(self) -> Usage:
        """All counters; read before `remove`."""
        cpu = _flat(self.read("cpu.stat") or "")
        memory_events = _flat(self.read("memory.events") or "")
        pids_events = _flat(self.read("pids.events") or "")
        disk = _io_totals(self.read("io.stat"))
        return Usage(
            user_cpu=_seconds(cpu.get("user_usec")),
            system_cpu=_seconds(cpu.get("system_usec")),
            throttled=_seconds(cpu.get("throttled_usec")),
            peak_memory=_integer(self.read("memory.peak")),
            peak_processes=_integer(self.read("pids.peak")),
            read_bytes=disk[0],
            written_bytes=disk[1],
            oom_kills=memory_events.get("oom_kill"),
            oom_events=memory_events.get("oom"),
            refused_forks=pids_events.get("max"),
        )

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


def limit_files(limits: CgroupLimits) -> list[tuple[str, str]]:
    """(file, text) in the order in which they are written."""
    rows: list[tuple[str, str | None]] = [
        ("cgroup.max.descendants", "0"),
        ("cgroup.max.depth", "0"),
        ("memory.max", _text(limits.memory_max)),
        ("memory.high", _text(limits.memory_high)),
        ("memory.swap.max", _text(limits.swap_max)),
        ("memory.oom.group", None if limits.oom_group is None else str(int(limits.oom_group))),
        ("pids.max", _text(limits.pids_max)),
        (
            "cpu.max",
            None if limits.cpu_max is None else f"{max(1000, round(limits.cpu_max * _CPU_PERIOD))} {_CPU_PERIOD}",
        ),
        ("cpu.weight", _text(limits.cpu_weight)),
        ("cpuset.cpus", limits.cpuset_cpus),
        *(("io.max", line) for line in limits.io_max),
    ]
    return [(file, value) for file, value in rows if value is not None]


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
    except OSError:  # ENODEV, EOPNOTSUPP: the file is there but has nothing to say
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


def _flat(text: str) -> dict[str, int]:
    """A "flat keyed" file: one `name value` a line."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _io_totals(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    totals = {"rbytes": 0, "wbytes": 0}
    for field in text.split():
        name, _, value = field.partition("=")
        if name in totals and value.isdigit():
            totals[name] += int(value)
    return totals["rbytes"], totals["wbytes"]


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
