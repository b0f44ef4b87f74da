"""What the kernel has counted for one leaf, from the text of its files.

Rests on the kernel's cgroup-v2 documentation and on its text about pressure (PSI, Documentation/accounting/psi.rst).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_PRESSURES = ("cpu", "memory", "io")


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
    oom_kills: int | None = None  # processes that an out-of-memory killer ended, whoever was out of memory
    oom_events: int | None = None  # how often the leaf's own limit could not be kept by reclaiming
    refused_forks: int | None = None
    pressure: tuple[tuple[str, float], ...] | None = None  # ("memory.some", seconds) …: that some, or all, of it waited for that


def read_usage(read: Callable[[str], str | None]) -> Usage:
    """All counters; `read` gives the text of a file of the leaf, or None."""
    cpu = flat_keyed(read("cpu.stat") or "")
    memory_events = flat_keyed(read("memory.events") or "")
    pids_events = flat_keyed(read("pids.events") or "")
    disk = _io_totals(read("io.stat"))
    return Usage(
        user_cpu=_seconds(cpu.get("user_usec")),
        system_cpu=_seconds(cpu.get("system_usec")),
        throttled=_seconds(cpu.get("throttled_usec")),
        peak_memory=_integer(read("memory.peak")),
        peak_processes=_integer(read("pids.peak")),
        read_bytes=disk[0],
        written_bytes=disk[1],
        oom_kills=memory_events.get("oom_kill"),
        oom_events=memory_events.get("oom"),
        refused_forks=pids_events.get("max"),
        pressure=_pressure(read),
    )


def flat_keyed(text: str) -> dict[str, int]:
    """A "flat keyed" file: one `name value` a line."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _pressure(read: Callable[[str], str | None]) -> tuple[tuple[str, float], ...] | None:
    found: list[tuple[str, float]] = []
    for resource in _PRESSURES:
        for line in (read(f"{resource}.pressure") or "").splitlines():
            kind, _, fields = line.partition(" ")
            total = fields.rpartition("total=")[2]
            if kind in ("some", "full") and total.isdigit():
                found.append((f"{resource}.{kind}", int(total) / 1e6))
    return tuple(found) or None


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
