"""What a test could leave behind on the host, as a value that can be subtracted."""

from __future__ import annotations

import glob
import os
import tempfile
import threading
from dataclasses import dataclass, fields

import psutil


@dataclass(frozen=True)
class Leftovers:
    """Names of everything of a kind that is there now."""

    descriptors: frozenset[str]
    processes: frozenset[str]
    threads: frozenset[str]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    directories: frozenset[str]

    @classmethod
    def now(cls) -> Leftovers:
        return cls(
            descriptors=frozenset(_descriptors()),
            processes=frozenset(f"{child.pid} {child.name()}" for child in psutil.Process().children(recursive=True)),
            threads=frozenset(thread.name for thread in threading.enumerate() if thread.name.startswith("stockade")),
            cgroups=frozenset(_cgroups()),
            mounts=frozenset(_mounts()),
            directories=frozenset(glob.glob(f"{tempfile.gettempdir()}/stockade-*")),
        )

    def __sub__(self, other: Leftovers) -> dict[str, list[str]]:
        """What is here and not in `other`, by kind."""
        return {field.name: sorted(extra) for field in fields(self) if (extra := getattr(self, field.name) - getattr(other, field.name))}


def _descriptors() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if (
            "stockade" in target
            or target.endswith("/ptmx")
            or target.startswith(("pipe:", "socket:", "anon_inode:[pidfd]", "anon_inode:[eventpoll]", "/memfd:"))
        ):
            found.append(f"{number} -> {target}")
    return found


def _cgroups() -> list[str]:
    base = os.environ["STOCKADE_CGROUP"]
    return [path for path in glob.glob(f"{base}/*") + glob.glob(f"{base}/*/*") if os.path.isdir(path)]


def _mounts() -> list[str]:
    """Those of this run: another one may mount something of its own at the same time."""
    with open("/proc/self/mountinfo") as table:
        places = [line.split()[4] for line in table]
    return [place for place in places if place.startswith(tempfile.gettempdir())]
