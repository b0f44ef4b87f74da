"""Memory of a whole process tree where no memory controller counts it.

Counted are the resident pages of every process, its page tables and what is swapped out, memory files (memfd_create(2), unlinked shared
memory, System V segments) that it holds open, maps or executes, resident or not, and what lies in the job's own tmpfs mounts. Sizes are
summed first: they can only be too large, since shared pages count once a process, and they cost a hundredth. Only a tree that seems to
be over its limit is looked at page by page, by proportional set size (smaps_rollup in proc_pid_smaps(5)), in which every shared page
counts once.

A look that loses sight of a process is repeated; where that goes on, the job is held still for one look, at most once a second.

Not seen: System V segments that nobody has attached (init bounds them by kernel.shmall), memory files that are only in flight between
two processes, and what lies in the buffers of sockets and pipes. An ordinary user cannot see how large a file is that is mapped and
not open, only what is resident of it, and nothing of a process that has made itself invisible.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time

from stockade.launcher.procfs import Hidden, Process, Vanished
from stockade.sandbox import syscalls
from stockade.sandbox.cgroup import Leaf

_MAX_MAPPINGS = 20_000  # looked at page by page in one go: about 0.2 s
MAX_DESCRIPTORS = 65_536  # looked at in one go: about 0.2 s
_LOOKS = 3  # before a job is held still
_STILL_BOUND = 0.05  # seconds until every process of a job stands still
_STILL_PERIOD = 1.0  # seconds between two looks for which a job is held still


class Uncountable(Exception):
    """A job holds more than can be looked at in one go."""


class MemorySampler:
    """Looks at one job again and again; belongs to whoever watches it, one look at a time."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._was_still = -_STILL_PERIOD
        self.is_blind = False  # some memory could not be looked at, in a process that has made itself invisible
        self.most_open = 0  # descriptors, of the process that had most in any look

    def look(self, limit: int, scratch: int) -> int:
        """Bytes that the job holds, `scratch` of them in its own tmpfs mounts: an upper bound while it is at most `limit`, as exact as
        can be above. Blocks.

        Raises: Uncountable, where the job has more than `MAX_DESCRIPTORS` open: there would be a place to hide memory files.
        """
        seen = 0
        for _ in range(_LOOKS):
            held, has_lost_sight = self._once(limit, scratch)
            seen = max(seen, held)
            if not has_lost_sight or seen > limit:
                return seen
        if (now := time.monotonic()) - self._was_still >= _STILL_PERIOD:
            self._was_still = now
            with self._leaf.held_still(_STILL_BOUND):
                seen = max(seen, self._once(limit, scratch)[0])
        return seen

    def _once(self, limit: int, scratch: int) -> tuple[int, bool]:
        look = _Look(self._leaf)
        held = look.total(limit, scratch)
        self.is_blind = self.is_blind or look.is_blind
        self.most_open = max(self.most_open, look.most_open)
        return held, look.has_lost_sight


def most_open(leaf: Leaf) -> int:
    """How many descriptors that process of a job has which has most, init left out; 0 where none can be looked at. Blocks."""
    most = 0
    for pid in leaf.processes():
        with contextlib.suppress(Vanished, Hidden):
            process = Process(pid)
            if not process.memory().is_init:
                most = max(most, len(process.descriptors()))
    return most


class _Look:
    """One pass over all processes."""

    def __init__(self, leaf: Leaf) -> None:
        self.has_lost_sight = False
        self.is_blind = False
        self.most_open = 0  # descriptors, of the process that has most
        self._processes: list[Process] = []
        self._mapped: dict[Process, int] = {}
        self._init: Process | None = None  # has no memory files; rootless, nobody may look at it
        self._files: dict[int, int] = {}  # bytes of each memory file, by inode
        self._is_complete = True  # no file that is mapped is missing
        for pid in leaf.processes():
            try:
                self._processes.append(Process(pid))
            except (Vanished, Hidden):
                self.has_lost_sight = True

    def total(self, limit: int, scratch: int) -> int:
        mapped = resident = rest = looked_at = 0
        for process in self._processes:
            try:
                memory = process.memory()
            except (Vanished, Hidden):
                self.has_lost_sight = True
                continue
            self._mapped[process] = memory.mapped
            mapped += memory.mapped
            resident += memory.resident
            rest += memory.page_tables + memory.swapped
            if memory.is_init:
                self._init = process
                continue
            looked_at += self._add_open_files(process)
            if looked_at > MAX_DESCRIPTORS:
                raise Uncountable(f"more than {MAX_DESCRIPTORS} descriptors were open, and what they hold could not be counted")
        rest += scratch
        if mapped + rest + self._sum_of_files() <= limit:
            return resident + rest + self._sum_of_files()
        for process in self._processes:
            if process is not self._init:
                self._add_mapped_files(process)
        total = resident + rest + self._sum_of_files()
        return total if total <= limit else min(total, self._exact(limit, rest))

    def _sum_of_files(self) -> int:
        return sum(self._files.values())

    def _add_open_files(self, process: Process) -> int:
        """Adds the memory files that a process holds open or executes; the number of its descriptors."""
        try:
            numbers = process.descriptors()
        except Vanished:
            self.has_lost_sight = True
            return 0
        except Hidden:
            self.is_blind = True
            return 0
        self.most_open = max(self.most_open, len(numbers))
        if len(numbers) <= MAX_DESCRIPTORS:
            for name in ("exe", *(f"fd/{number}" for number in numbers)):
                self._add_file(process, name)
        return len(numbers)

    def _add_file(self, process: Process, name: str) -> None:
        try:
            device, inode, size = process.stat(name)
        except (Vanished, Hidden):
            return  # closed meanwhile, or, of an executable, the kernel's secret
        if device == _memory_file_device():
            self._files[inode] = size

    def _add_mapped_files(self, process: Process) -> None:
        """Adds the memory files that a process maps, however little of them is resident."""
        try:
            for mapping in process.mappings(_memory_file_device()):
                if mapping.inode in self._files:
                    continue
                try:
                    self._files[mapping.inode] = process.stat(f"map_files/{mapping.range}")[2]
                except Vanished:
                    self.has_lost_sight = True
                except Hidden:
                    self._is_complete = False
        except Vanished:
            self.has_lost_sight = True
        except Hidden:
            self.is_blind, self._is_complete = True, False

    def _exact(self, limit: int, rest: int) -> int:
        """Every page once."""
        private, shared = rest + self._sum_of_files(), 0
        for process in self._without_twins():
            try:
                part = process.proportional()
            except Vanished:
                self.has_lost_sight = True
            except Hidden:  # init, when rootless
                try:
                    private += process.memory().resident
                except (Vanished, Hidden):
                    self.has_lost_sight = True
            else:
                private, shared = private + part.private, shared + part.shared
        if self._is_complete or private > limit or private + shared <= limit:
            return private + (0 if self._is_complete else shared)
        return private + self._mapped_alone(at_most=shared)

    def _without_twins(self) -> list[Process]:
        """Each address space once: a child of vfork(2) has its parent's until it executes a program."""
        kept: list[Process] = []
        for process in self._processes:
            size = self._mapped.get(process)
            if not any(self._mapped.get(other) == size and syscalls.share_memory(process.number, other.number) for other in kept):
                kept.append(process)
        return kept

    def _mapped_alone(self, *, at_most: int) -> int:
        """Proportional bytes of shared memory that is in no file counted so far.

        `at_most` where there are more mappings than can be looked at in one go, or what they are cannot be read.
        """
        found = seen = 0
        try:
            for process in self._processes:
                if process is self._init:
                    continue
                for inode, share in process.shared_by_mapping(_memory_file_device()):
                    seen += 1
                    if seen > _MAX_MAPPINGS:
                        return at_most
                    if inode is not None and inode not in self._files:
                        found += share
        except (Vanished, Hidden, ValueError, IndexError):
            return at_most
        return min(max(found, 0), at_most)


@functools.cache
def _memory_file_device() -> int:
    """The device of the kernel's one internal tmpfs, in which every memory file lies."""
    descriptor = os.memfd_create("stockade-device", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
