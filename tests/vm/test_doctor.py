"""What `stockade doctor` says of Debian's own kernel with AppArmor and Yama on, to root and to an ordinary user alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.waiting import BOUND

pytestmark = pytest.mark.vm
CONTROLLERS = {"memory", "pids", "cpu", "io", "cpuset"}


def read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "stockade", "doctor", "--json"], capture_output=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_machine_has_apparmor_and_yama_on() -> None:
    assert {"apparmor", "yama", "landlock"} <= set(read("/sys/kernel/security/lsm").split(","))
    assert read("/sys/module/apparmor/parameters/enabled") == "Y"
    assert read("/proc/sys/kernel/yama/ptrace_scope") == "1"
    assert read("/proc/sys/kernel/osrelease").endswith("-amd64")  # Debian's


def test_the_host_is_fit_and_lacks_no_controller(report: dict[str, Any]) -> None:
    checks = {check["name"]: check for check in report["checks"]}
    assert report["fit"], report["verdict"]
    assert report["verdict"].startswith("fit: ")
    assert {name: check["cause"] for name, check in checks.items() if check["ok"] is False} == {}
    assert {name for name, check in checks.items() if name.startswith("controller.") and check["ok"]} == {
        f"controller.{name}" for name in CONTROLLERS
    }
    is_root = os.geteuid() == 0
    assert checks["mount.idmap"]["ok"] is (True if is_root else None)
    assert checks["identity"]["detail"].startswith("root: " if is_root else f"uid {os.geteuid()}: ")


def test_the_security_modules_are_named_with_what_they_do(report: dict[str, Any]) -> None:
    (check,) = (check for check in report["checks"] if check["name"] == "security.modules")
    assert "apparmor (does not confine us)" in check["detail"]
    assert "yama (ptrace_scope 1)" in check["detail"]
