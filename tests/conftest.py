"""What holds for every test: nothing may be left behind, and the event loop may not be blocked.

KERNEL_MUST_WORK=1 (set by scripts/test) turns a host that cannot sandbox into failures instead of skips: then nothing may be skipped
but for the want of an optional program that the reason names.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from stockade.sandbox import cgroup, delegation
from support.leaks import Leftovers
from support.waiting import SLOWNESS

SETTLE = 10.0 * SLOWNESS  # seconds within which what a test made must be gone
OPTIONAL = {
    "g++",
    "gcc",
    "git",
    "go",
    "java",
    "javac",
    "make",
    "node",
    "perl",
    "rustc",
    "sqlite3",
}  # what tests/kernel/test_toolchains.py tries
_ROOTS = re.compile(r"(?:Skipped: )?.*\b(?:only root|needs root)\b.*")
_WANT = re.compile(r"(?:Skipped: )?not installed below /usr: ([\w+]+(?:, [\w+]+)*)")


def may_skip(reason: str) -> bool:
    """True where the reason is that optional programs are missing, each of them named, or that an ordinary user has no root's power."""
    if os.geteuid() != 0 and _ROOTS.fullmatch(reason):
        return True
    found = _WANT.fullmatch(reason)
    return found is not None and set(found[1].split(", ")) <= OPTIONAL


def pytest_configure(config: pytest.Config) -> None:
    """Stretches the bound of each test where the machine is slow; before pytest-timeout reads it, which does so at the first test."""
    if SLOWNESS != 1 and config.getoption("timeout", None) is None:
        config.option.timeout = float(config.getini("timeout")) * SLOWNESS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("KERNEL_MUST_WORK") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not may_skip(reason):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} may not be skipped under KERNEL_MUST_WORK=1: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _own_places() -> Iterator[None]:
    """A cgroup and a temporary directory of this run's own, so that what is left can be told from what others do."""
    base = delegation.choose_base(is_root=os.geteuid() == 0, wanted=os.environ.get("STOCKADE_CGROUP"))
    delegation.step_aside(base)
    own = f"{base}/tests-{os.getpid()}"
    os.mkdir(own)
    cgroup.enable_controllers(base)
    place = tempfile.mkdtemp(prefix="stockade-tests-")
    os.chmod(place, 0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOCKADE_CGROUP", own)
        patch.setattr(tempfile, "tempdir", place)
        yield
    shutil.rmtree(place)
    os.rmdir(own)


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """No descriptor, process, thread, cgroup, mount or directory that was not there before the test."""
    before = Leftovers.now()
    yield
    deadline = time.monotonic() + SETTLE
    while (left := Leftovers.now() - before) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not left, f"left behind: {left}"


@pytest.fixture(autouse=True)
def _free_loop(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """A blocking call on the event loop fails the test."""
    if request.node.get_closest_marker("asyncio") is None:
        yield None
        return
    with blockbuster_ctx("stockade") as guard:
        yield guard


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty directory that a job may write to, outside of /tmp's private parents."""
    place = tmp_path / "workspace"
    place.mkdir()
    return place
