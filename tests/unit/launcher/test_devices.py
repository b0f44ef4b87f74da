"""Which disk an io limit means, on the disks that this host has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade.errors import InvalidRequest
from stockade.launcher.devices import resolve_io

BLOCK = Path("/sys/dev/block")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Stands for /sys/dev/block."""
    (tmp_path / "block").mkdir()
    return tmp_path / "block"


def of_kind(*, partition: bool) -> list[str]:
    return sorted(each.name for each in BLOCK.iterdir() if (each.resolve() / "partition").exists() is partition)


def test_a_disk_by_its_number_is_that_disk() -> None:
    disk = of_kind(partition=False)[0]
    assert resolve_io((f"{disk} rbps=10 wiops=3",)) == (f"{disk} rbps=10 wiops=3",)


def test_a_path_means_the_whole_disk_below_it(tmp_path: Path) -> None:
    number = os.stat("/usr").st_dev
    below = f"{os.major(number)}:{os.minor(number)}"
    if not (BLOCK / below).exists():
        with pytest.raises(InvalidRequest, match="no block device"):
            resolve_io(("/usr wbps=5",))
        return
    place = (BLOCK / below).resolve()
    disk = (place.parent / "dev").read_text().strip() if (place / "partition").exists() else below
    assert resolve_io(("/usr wbps=5",)) == (f"{disk} wbps=5",)
    with pytest.raises(InvalidRequest, match="both cap wbps"):
        resolve_io(("/usr wbps=5", f"{disk} wbps=6"))


def test_a_partition_means_its_disk_by_a_path_and_is_refused_by_its_number(sysfs: Path) -> None:
    """A made-up disk of two partitions, since few machines of tests have one."""
    disk, part = sysfs / "devices/sda", sysfs / "devices/sda/sda1"
    part.mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (part / "partition").write_text("1\n")
    (sysfs / "8:0").symlink_to(disk)
    (sysfs / "8:1").symlink_to(part)
    with pytest.raises(InvalidRequest, match="8:1 is a partition") as refused:
        resolve_io(("8:1 rbps=1",), sysfs=str(sysfs))
    assert "8:0" in str(refused.value.hint)
    assert resolve_io(("8:0 rbps=1",), sysfs=str(sysfs)) == ("8:0 rbps=1",)
    number = os.stat(sysfs).st_dev
    (sysfs / f"{os.major(number)}:{os.minor(number)}").symlink_to(part)
    assert resolve_io((f"{sysfs} rbps=1",), sysfs=str(sysfs)) == ("8:0 rbps=1",)


@pytest.mark.parametrize(
    ("device", "why"), [("7777:7", "there is no block device 7777:7"), ("/nowhere", "No such file"), ("/proc", "proc")]
)
def test_what_is_no_disk_is_refused_with_those_that_are(device: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        resolve_io((f"{device} rbps=1",))
    assert refused.value.field == "limits.io"
    assert refused.value.hint
