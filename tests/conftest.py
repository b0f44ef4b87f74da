"""What holds for every test: nothing may be left behind, and the event loop may not be blocked.

KERNEL_MUST_WORK=1 (set by scripts/test) turns a host that cannot sandbox into failures instead of skips.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from stockade.sandbox import cgroup, delegation
from support.leaks import Leftovers

SETTLE = 10.0  # seconds within which what a test made must be gone


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
