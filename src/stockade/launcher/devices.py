"""Which block device of this host an io limit means: by number, or by a path that lies on it.

io.max (cgroup-v2 documentation) takes whole disks and no partitions; what is what is read from /sys/dev/block (sysfs(5)).
"""

from __future__ import annotations

import os
import re
import stat

from stockade.errors import InvalidRequest

_FIELD = "limits.io"
_SPLIT = re.compile(r"([0-9]+:[0-9]+|/.*?)((?: [a-z]+=[0-9]+)+)", re.DOTALL)


def resolve_io(lines: tuple[str, ...], *, sysfs: str = "/sys/dev/block") -> tuple[str, ...]:
    """The lines with the number of a whole disk in front of each, as io.max takes them; `lines` have been checked. Blocks.

    Raises: InvalidRequest for a device that is not there, a path that lies on none, and two lines that mean the same one.
    """
    found: dict[tuple[str, str], str] = {}
    resolved = []
    for line in lines:
        match = _SPLIT.fullmatch(line)
        assert match is not None
        device = _of_path(match[1], sysfs) if match[1].startswith("/") else _checked(match[1], sysfs)
        for cap in match[2].split():
            key = (device, cap.partition("=")[0])
            if key in found:
                raise InvalidRequest(
                    f"io: {line!r} and {found[key]!r} both cap {key[1]} of {device}", field=_FIELD, hint="cap each disk once in each way"
                )
            found[key] = line
        resolved.append(device + match[2])
    return tuple(resolved)


def _of_path(path: str, sysfs: str) -> str:
    try:
        seen = os.stat(path)
    except OSError as error:
        raise InvalidRequest(f"io: {path!r} cannot be used: {error.strerror}", field=_FIELD, hint="name a path that exists") from None
    number = seen.st_rdev if stat.S_ISBLK(seen.st_mode) else seen.st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    if not os.path.isdir(f"{sysfs}/{device}"):
        raise InvalidRequest(
            f"io: {path!r} lies on {_file_system(device)}, which is no block device of this host",
            field=_FIELD,
            hint=f"name the disk below it by its number; there are {_disks(sysfs)}",
        )
    return _whole_disk(device, sysfs)


def _checked(device: str, sysfs: str) -> str:
    if not os.path.isdir(f"{sysfs}/{device}"):
        raise InvalidRequest(f"io: there is no block device {device} on this host", field=_FIELD, hint=f"there are {_disks(sysfs)}")
    if (disk := _whole_disk(device, sysfs)) != device:
        raise InvalidRequest(
            f"io: {device} is a partition, and the kernel limits whole disks", field=_FIELD, hint=f"name its disk, {disk}, or a path on it"
        )
    return device


def _whole_disk(device: str, sysfs: str) -> str:
    place = os.path.realpath(f"{sysfs}/{device}")
    if not os.path.exists(f"{place}/partition"):
        return device
    with open(f"{os.path.dirname(place)}/dev", encoding="ascii") as number:
        return number.read().strip()


def _file_system(device: str) -> str:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        for line in table:
            left, _, right = line.partition(" - ")
            if left.split(" ")[2] == device:
                return f"{right.split(' ')[0]} ({device})"
    return device


def _disks(sysfs: str) -> str:
    names = []
    for number in sorted(os.listdir(sysfs)):
        place = os.path.realpath(f"{sysfs}/{number}")
        if not os.path.exists(f"{place}/partition") and not os.path.basename(place).startswith(("loop", "ram", "zram")):
            names.append(f"{number} ({os.path.basename(place)})")
    return ", ".join(names) or "none"
