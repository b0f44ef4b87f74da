"""Memory of a whole process tree where no memory controller counts it: proportional set size, so that shared pages count once.

Resident sizes are summed first; they can only be too large, and cost a hundredth. Only a tree that seems to be over its limit is
looked at page by page (smaps_rollup, proc_pid_smaps(5)).
"""

from __future__ import annotations

import psutil

from stockade.sandbox.cgroup import Leaf


def tree_memory(leaf: Leaf, limit: int) -> int:
    """Bytes that the processes of `leaf` hold: an upper bound while it is at most `limit`, the proportional size above."""
    processes = list(_processes(leaf))
    resident = sum(_resident(process) for process in processes)
    return resident if resident <= limit else min(resident, sum(_proportional(process) for process in processes))


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


def _proportional(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
        return int(full.pss + full.swap)
    except psutil.Error:
        return _resident(process)  # init cannot be looked into when rootless
