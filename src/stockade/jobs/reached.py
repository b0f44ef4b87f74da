"""Limits that a job has reached without being ended by them: each a value with its numbers, and one sentence.

What ended a job is its outcome (`launcher.outcome`); the same limit is never both. Only what can be seen is here: a program that is
refused a file descriptor (EMFILE) between two looks, or a child of the command that dies of SIGXFSZ, leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from stockade.launcher.outcome import Outcome, OutOfMemory, size_text
from stockade.launcher.scratch import Filling
from stockade.policy.model import Limits
from stockade.sandbox.counters import Usage
from stockade.sandbox.spec import JOB_HOME

Limit = Literal["memory", "processes", "open_files", "tmp_size", "tmp_inodes", "home_size", "home_inodes", "shm_size", "shm_inodes"]

_OF_PLACE: dict[str, tuple[Limit, Limit]] = {
    "/tmp": ("tmp_size", "tmp_inodes"),
    "/var/tmp": ("tmp_size", "tmp_inodes"),
    JOB_HOME: ("home_size", "home_inodes"),
    "/dev/shm": ("shm_size", "shm_inodes"),
}


@dataclass(frozen=True, slots=True)
class Reached:
    """One limit that was reached. `bound` is its value (bytes, processes, descriptors or inodes); None where there was none.

    `count` is how often: processes killed for memory, forks refused; None where nobody counted. `peak` in bytes, of memory only.
    `place` is the directory inside, of scratch places only.
    """

    limit: Limit
    bound: int | None
    count: int | None = None
    peak: int | None = None
    place: str | None = None

    def sentence(self) -> str:
        """What was reached, in words with numbers."""
        if self.limit == "memory":
            facts = [f"{_plural(self.count, 'process', 'processes')} killed"]
            facts += [] if self.bound is None else [f"{size_text(self.bound)} limit"]
            facts += [] if self.peak is None else [f"peak {size_text(self.peak)}"]
            return f"out of memory, and the command went on: {', '.join(facts)}"
        if self.limit == "processes":
            what = "how many forks were refused is not known here" if self.count is None else _plural(self.count, "fork") + " refused"
            return f"processes limit: {what}, at most {_plural(self.bound, 'process', 'processes')}"
        if self.limit == "open_files":
            return f"open files limit: a process had as many open as it may, {self.bound}"
        if self.limit.endswith("_inodes"):
            return f"{self.place} was full: {_plural(self.bound, 'inode')}"
        return f"{self.place} was full: {size_text(self.bound or 0)}"


def _plural(count: int | None, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def find_reached(
    outcome: Outcome, usage: Usage, limits: Limits, filled: Mapping[str, Filling], *, was_crowded: bool, most_open: int = 0
) -> tuple[Reached, ...]:
    """What a job has reached beside what ended it, from what its cgroup counted and how full its places were.

    `was_crowded`: where forks are not counted, as many processes were seen as may be. `most_open`: as many descriptors one process was
    seen to have.
    """
    return tuple(_find(outcome, usage, limits, filled, was_crowded, most_open))


def _find(
    outcome: Outcome, usage: Usage, limits: Limits, filled: Mapping[str, Filling], was_crowded: bool, most_open: int
) -> Iterator[Reached]:
    # Without an event of the leaf's own, it was the host, or a cgroup around, that was out of memory.
    if usage.oom_kills and usage.oom_events and not isinstance(outcome, OutOfMemory):
        yield Reached("memory", limits.memory, count=usage.oom_kills, peak=usage.peak_memory)
    if usage.refused_forks or (usage.refused_forks is None and was_crowded):
        yield Reached("processes", limits.processes, count=usage.refused_forks)
    if most_open >= limits.open_files:
        yield Reached("open_files", limits.open_files)
    for place in sorted(filled.keys() & _OF_PLACE.keys()):
        filling = filled[place]
        of_bytes, of_inodes = _OF_PLACE[place]
        if filling.is_out_of_bytes:
            yield Reached(of_bytes, filling.max_bytes, place=place)
        if filling.is_out_of_inodes:
            yield Reached(of_inodes, filling.max_inodes, place=place)


def fuller(known: Mapping[str, Filling], seen: Mapping[str, Filling]) -> dict[str, Filling]:
    """Of each place the fullest that it was seen."""
    merged = dict(known)
    for place, filling in seen.items():
        before = merged.get(place, filling)
        merged[place] = Filling(
            max(before.used_bytes, filling.used_bytes),
            filling.max_bytes,
            max(before.used_inodes, filling.used_inodes),
            filling.max_inodes,
        )
    return merged
