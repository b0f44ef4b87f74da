"""Memory of a whole process tree where no memory controller counts it.

Counted are the resident pages of every process and its page tables, the memory files that they hold open (memfd_create(2), unlinked
shared memory), what lies in the job's own tmpfs mounts, and shared memory that is only mapped (mmap(2) with MAP_SHARED, a memory file
that was closed, System V). Resident sizes are summed first: they can only be too large, since shared pages count once a process, and
they cost a hundredth. Only a tree that seems to be over its limit is looked at page by page, by proportional set size (smaps_rollup in
proc_pid_smaps(5)), in which every shared page counts once, and only where shared memory decides, mapping by mapping (smaps).

Not seen: System V segments that nobody has attached (init bounds them by kernel.shmall), and memory files that are only in flight
between two processes; what lies in the buffers of sockets and pipes.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import psutil

from stockade.sandbox.cgroup import Leaf

_BLOCK = 512  # bytes of st_blocks, whatever the file system's own block is (stat(2))
_MAX_MAPPINGS = 20_000  # looked at in one go: about 0.2 s
MAX_DESCRIPTORS = 65_536  # looked at in one go: about 0.2 s


class Uncountable(Exception):
    """A job holds more than can be looked at in one go."""


def tree_memory(leaf: Leaf, limit: int, scratch: int) -> int:
    """Bytes that a job holds, `scratch` of them in its own tmpfs mounts: an upper bound while it is at most `limit`, as exact as can
    be above. Blocks.

    Raises: Uncountable, where the job has more than `MAX_DESCRIPTORS` open: there would be a place to hide memory files.
    """
    processes = _processes(leaf)
    memory_files = _memory_files(processes)
    rest = scratch + sum(memory_files.values()) + sum(_page_tables(process) for process in processes)
    total = sum(_resident(process) for process in processes) + rest
    if total <= limit:
        return total
    parts = [_proportional(process) for process in processes]
    # Pages of files are in `rest` already, mapped or not; those of shared memory without a descriptor are not.
    private, shared = sum(part.private for part in parts) + rest, sum(part.shared for part in parts)
    if private > limit or private + shared <= limit:
        return min(total, private + shared)
    return min(total, private + _mapped_alone(processes, memory_files, at_most=shared))


@dataclass(frozen=True, slots=True)
class _Proportional:
    """Bytes of one process, each shared page by its share: those of shared memory, mapped files of a tmpfs among it, and all others."""

    private: int
    shared: int


def _processes(leaf: Leaf) -> list[psutil.Process]:
    found = []
    for pid in leaf.processes():
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _page_tables(process: psutil.Process) -> int:
    """Bytes of page tables (VmPTE in proc_pid_status(5)): a page of them for each 2 MiB that a process has read, and nothing resident."""
    try:
        with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as status:
            return next((1024 * int(line.split()[1]) for line in status if line.startswith("VmPTE:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _proportional(process: psutil.Process) -> _Proportional:
    """Proportional resident and swapped bytes; the resident size where it cannot be read."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii", errors="replace") as rollup:
            fields = {
                name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in rollup) if rest.strip().endswith("kB")
            }
    except (OSError, ValueError, IndexError):
        return _Proportional(_resident(process), 0)  # init cannot be looked into when rootless
    shared = 1024 * fields.get("Pss_Shmem", 0)
    return _Proportional(1024 * (fields.get("Pss", 0) + fields.get("SwapPss", 0)) - shared, shared)


def _mapped_alone(processes: list[psutil.Process], counted: dict[int, int], *, at_most: int) -> int:
    """Proportional bytes of shared memory of which no process holds a descriptor that was `counted`.

    `at_most` where there are more mappings than can be looked at in one go: a job with that many is taken to have shared nothing twice.
    """
    internal = _memory_file_device()
    device = f"{os.major(internal):02x}:{os.minor(internal):02x}"
    found, seen = 0, 0
    for process in processes:
        try:
            with open(f"/proc/{process.pid}/smaps", encoding="ascii", errors="replace") as maps:
                is_wanted = False
                for line in maps:
                    name, *rest = line.split(maxsplit=5)
                    if not name.endswith(":"):  # a mapping: range, flags, offset, device, inode, name
                        seen += 1
                        is_wanted = rest[2] == device and int(rest[3]) not in counted
                        if seen > _MAX_MAPPINGS:
                            return at_most
                    elif is_wanted and name == "Pss:":
                        found += 1024 * int(rest[0])
                    elif is_wanted and name == "Anonymous:":  # copied on writing: private
                        found -= 1024 * int(rest[0])
        except (OSError, ValueError, IndexError):
            continue  # it is gone, or may not be looked at: then its resident size was counted
    return min(max(found, 0), at_most)


def _memory_files(processes: list[psutil.Process]) -> dict[int, int]:
    """Bytes of each memory file that is held open, by inode; files of a disk are none. Raises: Uncountable."""
    device = _memory_file_device()
    sizes: dict[int, int] = {}
    looked_at = 0
    for process in processes:
        directory = f"/proc/{process.pid}/fd"
        try:
            numbers = os.listdir(directory)
        except OSError:
            continue
        looked_at += len(numbers)
        if looked_at > MAX_DESCRIPTORS:
            raise Uncountable(f"more than {MAX_DESCRIPTORS} descriptors were open, and what they hold could not be counted")
        for number in numbers:
            try:
                found = os.stat(f"{directory}/{number}")
            except OSError:
                continue
            if found.st_dev == device:
                sizes[found.st_ino] = found.st_blocks * _BLOCK
    return sizes


@functools.cache
def _memory_file_device() -> int:
    """The device of the kernel's one internal tmpfs, in which every memory file lies."""
    descriptor = os.memfd_create("stockade-device", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
