"""Tests of the kernel's controllers: run where a job's cgroup has them, by scripts/vm elsewhere."""

from __future__ import annotations

import os

import pytest

from stockade.sandbox import cgroup

NEEDED = {"memory", "pids", "cpu"}


@pytest.fixture(scope="session", autouse=True)
def _controllers(_own_places: None) -> None:
    on = cgroup.enable_controllers(os.environ["STOCKADE_CGROUP"])
    if NEEDED <= on:
        return
    if os.environ.get("STOCKADE_VM"):
        pytest.fail(f"the virtual machine's cgroups have only {sorted(on)}")
    pytest.skip("this host does not give its controllers to cgroup version 2; scripts/test runs these in scripts/vm")
