"""The limits of a leaf as the texts of its files: before anybody enters it, and changed while a job runs in it.

Rests on the kernel's cgroup-v2 documentation.
"""

from __future__ import annotations

from stockade.sandbox.spec import CgroupLimits

_CPU_PERIOD = 100_000  # microseconds; the kernel's default
# Which limit of a policy a file carries, for whoever must say what was refused.
LIMIT_OF_FILE = {
    "memory.max": "memory",
    "memory.high": "memory_high",
    "memory.swap.max": "memory",
    "memory.oom.group": "memory_oom_group",
    "pids.max": "processes",
    "cpu.max": "cpus",
    "cpu.weight": "cpu_weight",
    "cpuset.cpus": "cpuset",
    "io.max": "io",
}
# What a file holds where nothing has been written to it; the lines of io.max have a default each.
_UNSET = {
    "memory.max": "max",
    "memory.high": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "pids.max": "max",
    "cpu.max": f"max {_CPU_PERIOD}",
    "cpu.weight": "100",
    "cpuset.cpus": "\n",  # an empty write would not reach the kernel
}


def limit_files(limits: CgroupLimits) -> list[tuple[str, str]]:
    """(file, text) in the order in which they are written."""
    return [
        ("cgroup.max.descendants", "0"),
        ("cgroup.max.depth", "0"),
        *_values(limits).items(),
        *(("io.max", line) for line in limits.io_max),
    ]


def changed_files(old: CgroupLimits, new: CgroupLimits) -> list[tuple[str, str, str]]:
    """(file, text, the text that takes it back) for what differs, in the order in which they are written."""
    before, after = _values(old), _values(new)
    rows = [
        (file, after.get(file, unset), before.get(file, unset)) for file, unset in _UNSET.items() if after.get(file) != before.get(file)
    ]
    was, will = _io_caps(old.io_max), _io_caps(new.io_max)
    rows += [
        ("io.max", f"{device} {key}={will.get((device, key), 'max')}", f"{device} {key}={was.get((device, key), 'max')}")
        for device, key in {**was, **will}
        if will.get((device, key)) != was.get((device, key))
    ]
    return rows


def _values(limits: CgroupLimits) -> dict[str, str]:
    """The text of each file that is written, but for io.max."""
    rows: dict[str, str | None] = {
        "memory.max": _text(limits.memory_max),
        "memory.high": _text(limits.memory_high),
        "memory.swap.max": _text(limits.swap_max),
        "memory.oom.group": None if limits.oom_group is None else str(int(limits.oom_group)),
        "pids.max": _text(limits.pids_max),
        "cpu.max": None if limits.cpu_max is None else f"{max(1000, round(limits.cpu_max * _CPU_PERIOD))} {_CPU_PERIOD}",
        "cpu.weight": _text(limits.cpu_weight),
        "cpuset.cpus": limits.cpuset_cpus,
    }
    return {file: value for file, value in rows.items() if value is not None}


def _io_caps(lines: tuple[str, ...]) -> dict[tuple[str, str], str]:
    split = (line.split(" ") for line in lines)
    return {(device, key): cap for device, *caps in split for key, _, cap in (one.partition("=") for one in caps)}


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
