"""Memory of a whole process tree where no memory controller counts it.

Counted are the resident pages of every process and its page tables, the memory files that they hold open (memfd_create(2), unlinked
shared memory), and what lies in the job's own tmpfs mounts. Resident sizes are summed first: they can only be too large, since shared
pages count once a process, and they cost a hundredth. Only a tree that seems to be over its limit is looked at page by page, by
proportional set size (smaps_rollup in proc_pid_smaps(5)), in which every shared page counts once.

Not seen: System V segments that nobody has attached (init bounds them by kernel.shmall), and memory files that are only in flight
between two processes; what lies in the buffers of sockets and pipes.
"""

from __future__ import annotations

import functools
import os

import psutil

from stockade.sandbox.cgroup import Leaf

_BLOCK = 512  # bytes of st_blocks, whatever the file system's own block is (stat(2))
_MAX_FILES = 4096  # memory files looked at in one go; a job has at most `open_files` in each process


def tree_memory(leaf: Leaf, limit: int, scratch: int) -> int:
    """Bytes that a job holds, `scratch` of them in its own tmpfs mounts: an upper bound while it is at most `limit`, as exact as can
    be above. Blocks.
    """
    processes = _processes(leaf)
    rest = scratch + _memory_file_bytes(processes) + sum(_page_tables(process) for process in processes)
    total = sum(_resident(process) for process in processes) + rest
    if total <= limit:
        return total
    # Pages of files are in `rest` already, mapped or not.
    return min(total, sum(_proportional_without_files(process) for process in processes) + rest)


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


def _proportional_without_files(process: psutil.Process) -> int:
    """Proportional resident and swapped bytes but for those of shared memory; the resident size where it cannot be read."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii", errors="replace") as rollup:
            fields = {
                name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in rollup) if rest.strip().endswith("kB")
            }
    except (OSError, ValueError, IndexError):
        return _resident(process)  # init cannot be looked into when rootless
    return 1024 * (fields.get("Pss", 0) - fields.get("Pss_Shmem", 0) + fields.get("SwapPss", 0))


def _memory_file_bytes(processes: list[psutil.Process]) -> int:
    """Bytes of memory files that are held open, each counted once; files of a disk are none."""
    device = _memory_file_device()
    seen: dict[int, int] = {}
    for process in processes:
        directory = f"/proc/{process.pid}/fd"
        try:
            numbers = os.listdir(directory)
        except OSError:
            continue
        for number in numbers:
            if len(seen) >= _MAX_FILES:
                return sum(seen.values())
            try:
                found = os.stat(f"{directory}/{number}")
            except OSError:
                continue
            if found.st_dev == device:
                seen[found.st_ino] = found.st_blocks * _BLOCK
    return sum(seen.values())


@functools.cache
def _memory_file_device() -> int:
    """The device of the kernel's one internal tmpfs, in which every memory file lies."""
    descriptor = os.memfd_create("stockade-device", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
