"""Public bug reports about the life cycle, as host-side drivers that run unchanged against a supervisor process of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.corpus import CORPUS, verdict
from support.survivors import members
from support.waiting import SLOWNESS

TESTS = Path(__file__).parent.parent
BOUND = 120.0 * SLOWNESS  # seconds for one driver


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup that must be empty, and is removed, when the driver has ended."""
    path = f"{os.environ['STOCKADE_CGROUP']}/driver"
    os.mkdir(path)
    yield path
    assert members(path) == []
    os.rmdir(path)


def drive(case: str, tmp_path: Path, cgroup: str, **settings: str) -> str:
    """Runs a driver to its end; returns its verdict."""
    (program,) = CORPUS.glob(f"{case}-*")
    shown = tmp_path / "shown"
    shown.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(TESTS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SBX_ADAPTER": "support.sbx_adapter",
        "SBX_CGROUP": cgroup,
        "SBX_PLACE": str(tmp_path),
        "TMPDIR": str(shown),
        **settings,
    }
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BOUND
    )
    text = done.stdout.decode("utf-8", "replace")
    print(text)
    return verdict(done.stdout)


DRIVERS = ["f01", "f06", "f07", "f09", "f11", "f13"]
MARKS = {"f06": [pytest.mark.measures_time]}


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.case(case), *MARKS.get(case, [])]) for case in DRIVERS])
def test_the_driver_passes(case: str, tmp_path: Path, cgroup: str) -> None:
    assert drive(case, tmp_path, cgroup) == "PASS"


@pytest.mark.case("f04")
@pytest.mark.vm
def test_timeouts_and_ages_survive_a_jump_of_the_wall_clock(tmp_path: Path, cgroup: str) -> None:
    """Sets the clock of the whole machine; does so only where the environment says I_AM_DISPOSABLE=1, and fails elsewhere."""
    assert drive("f04", tmp_path, cgroup, I_AM_DISPOSABLE=os.environ.get("I_AM_DISPOSABLE", "")) == "PASS"


@pytest.mark.case("f02")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")
def test_a_full_disk_under_bank_and_registry_loses_no_job(tmp_path: Path, cgroup: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(small)], check=True)
    try:
        assert drive("f02", tmp_path, cgroup, SMALLDIR=str(small)) == "PASS"
    finally:
        subprocess.run(["umount", str(small)], check=True)
