"""Where an executor finds its place among cgroups that others made, and what it says where a controller is not handed down.

Each test builds what a service manager builds, below this run's own cgroup, and starts a supervisor in it: as root, or as the ordinary
user whom it has been delegated to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from stockade.sandbox import cgroup, delegation
from support.waiting import BOUND

pytestmark = pytest.mark.vm
USER = 12345 if os.geteuid() == 0 else os.geteuid()
IS_ROOT = os.geteuid() == 0
ALL = ("cpuset", "cpu", "io", "memory", "pids")

# Runs one job with every limit that a controller holds, and says where everybody was.
SUPERVISE = """
import asyncio, json, os
from stockade import Executor, Policy
from stockade.sandbox import delegation

POLICY = Policy(limits={"cpus": 0.5, "cpuset": "0", "memory_high": "200M"})

async def main():
    before = delegation.own_directory()
    async with Executor(POLICY) as executor:
        result = await executor.run(["/usr/bin/true"])
        places = {"before": before, "now": delegation.own_directory(), "tree": os.path.dirname(executor._engine.tree.path)}
    print(json.dumps({"ok": result.ok, "isolation": dict(result.isolation), "peak": result.usage.peak_memory, **places}))

asyncio.run(main())
"""
STRONG = {
    "memory": "memory.cgroup",
    "memory_high": "memory_high.cgroup",
    "processes": "processes.cgroup",
    "cpus": "cpu.cgroup",
    "cpuset": "cpuset.cgroup",
}
# controller -> what is named for a limit where it is missing
WEAK = {
    "memory": {"memory": "memory.sampled", "memory_high": "memory_high.none"},
    "pids": {"processes": "processes.rlimit"},
    "cpu": {"cpus": "cpu.none"},
    "cpuset": {"cpuset": "cpuset.none"},
    "io": {},
}


@dataclass
class Unit:
    """A cgroup with a process of its own, as a service manager starts it."""

    path: str

    def supervise(self, *, user: int | None = None, program: str = SUPERVISE) -> dict[str, Any]:
        """Starts a supervisor in it, which becomes `user` after it has entered, and returns what it said."""
        drop = [] if user is None or not IS_ROOT else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        enter = ["/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', self.path]
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        done = subprocess.run(
            [*enter, *drop, sys.executable, "-c", program], env=kept, cwd="/", capture_output=True, text=True, timeout=BOUND
        )
        assert done.returncode == 0, done.stderr[-2000:]
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def doctor(self, *, user: int | None = None) -> dict[str, dict[str, Any]]:
        """The checks of a doctor that is started in it, by name."""
        program = "import asyncio, json; from stockade import doctor, config\n"
        program += "print(json.dumps(asyncio.run(doctor.examine(config.from_environment())).to_json()))"
        return {check["name"]: check for check in self.supervise(user=user, program=program)["checks"]}


@pytest.fixture
def top() -> Iterator[str]:
    """A cgroup with every controller, for one test."""
    path = f"{os.environ['STOCKADE_CGROUP']}/manager"
    os.mkdir(path)
    yield path
    remove(path)


def remove(path: str) -> None:
    """Removes a cgroup with those below it, in which no process may be left."""
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            remove(entry.path)
    os.rmdir(path)


def make(top: str, *names: str, controllers: tuple[str, ...] = ALL) -> Unit:
    """A cgroup below `top` whose parents hand these controllers down."""
    path = top
    for name in names:
        with open(f"{path}/cgroup.subtree_control", "w") as control:
            control.write(" ".join(f"+{each}" for each in controllers))
        path += f"/{name}"
        os.mkdir(path)
    return Unit(path)


def delegate(unit: Unit, *, user: int | None = None) -> Unit:
    """What `Delegate=yes` does (systemd.resource-control(5)): marks the cgroup and, for a user, hands it over."""
    os.setxattr(unit.path, "user.delegate", b"1")
    if user is not None and IS_ROOT:
        for name in ("", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"):
            os.chown(unit.path + name, user, user)
    return unit


@contextmanager
def bystander(unit: Unit) -> Iterator[None]:
    """Another process of the same unit, which nobody may move."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'echo 0 >"$0/cgroup.procs" && echo in && exec sleep 600', unit.path], stdout=subprocess.PIPE
    )
    with ExitStack() as held:
        held.callback(process.wait)
        held.callback(process.kill)
        assert process.stdout is not None
        held.enter_context(process.stdout)
        assert process.stdout.readline() == b"in\n"
        yield


@pytest.mark.skipif(not IS_ROOT, reason="only root stands in the root cgroup")
def test_from_the_root_cgroup_nobody_has_to_move() -> None:
    root = Unit(delegation.topmost(os.environ["STOCKADE_CGROUP"]))
    said = root.supervise()
    assert said["ok"]
    assert (said["before"], said["now"], said["tree"]) == (root.path,) * 3
    assert said["isolation"].items() >= STRONG.items()


@pytest.mark.skipif(not IS_ROOT, reason="needs root: an ordinary user has no other place than what was delegated")
def test_root_in_a_service_that_is_not_delegated_goes_to_the_top_and_leaves_the_service_as_it_was(top: str) -> None:
    service = make(top, "system.slice", "plain.service")
    said = service.supervise()
    assert said["ok"]
    assert (said["before"], said["now"]) == (service.path, service.path)
    assert said["tree"] == delegation.topmost(top)
    assert said["isolation"].items() >= STRONG.items()
    assert [entry.name for entry in os.scandir(service.path) if entry.is_dir()] == []


def test_a_delegated_service_keeps_its_jobs_below_itself_and_its_own_process_moves_aside(top: str) -> None:
    service = delegate(make(top, "system.slice", "agent.service"), user=None if IS_ROOT else USER)
    said = service.supervise()
    assert said["ok"]
    assert (said["before"], said["tree"]) == (service.path, service.path)
    assert said["now"] == f"{service.path}/{delegation.SUPERVISOR}"
    assert said["isolation"].items() >= STRONG.items()
    assert said["peak"] > 0
    again = Unit(said["now"]).supervise()  # who starts from where an earlier one had moved to comes to the same place
    assert (again["now"], again["tree"]) == (said["now"], service.path)
    assert again["isolation"].items() >= STRONG.items()


def test_a_user_s_delegated_scope_has_every_controller(top: str) -> None:
    """user.slice/user-N.slice/user@N.service belongs to the user, whose own manager makes the scope in it."""
    manager = delegate(make(top, "user.slice", f"user-{USER}.slice", f"user@{USER}.service"), user=USER)
    scope = delegate(make(manager.path, "app.slice", "run-1.scope"), user=USER)
    if IS_ROOT:
        os.chown(f"{manager.path}/app.slice", USER, USER)
        os.chown(f"{manager.path}/app.slice/cgroup.procs", USER, USER)
    said = scope.supervise(user=USER)
    assert said["ok"]
    assert (said["before"], said["tree"]) == (scope.path, scope.path)
    assert said["isolation"].items() >= STRONG.items()


@pytest.mark.parametrize("missing", sorted(ALL))
def test_a_controller_that_is_not_handed_down_is_missed_alone_and_named(missing: str, top: str) -> None:
    given = tuple(name for name in ALL if name != missing)
    scope = delegate(make(top, "user.slice", "run-2.scope", controllers=given), user=USER)
    said = scope.supervise(user=USER)
    assert said["ok"]
    assert said["isolation"].items() >= (STRONG | WEAK[missing]).items()
    assert (said["peak"] is None) == (missing == "memory")


def test_the_doctor_names_what_was_not_handed_down_and_by_whom(top: str) -> None:
    scope = delegate(make(top, "user.slice", "run-3.scope", controllers=("memory", "pids")), user=USER)
    checks = scope.doctor(user=USER)
    lacking = {name: check["cause"] for name, check in checks.items() if name.startswith("controller.") and not check["ok"]}
    assert lacking == {f"controller.{name}": f"it is not delegated to {scope.path}" for name in ("cpu", "io", "cpuset")}
    assert "Delegate=" in checks["controller.cpu"]["fix"]
    assert checks["sealed job"]["ok"]


def test_processes_that_sit_where_jobs_go_cost_the_controllers_and_the_doctor_says_so(top: str) -> None:
    """The kernel allows no cgroup but the root processes and controllers at once; what is not ours is not moved."""
    scope = delegate(make(top, "run-4.scope"), user=USER)
    with bystander(scope):
        said = scope.supervise(user=USER)
        checks = scope.doctor(user=USER)
    assert said["ok"]
    weak = {limit: name for rows in WEAK.values() for limit, name in rows.items()}
    assert said["isolation"].items() >= weak.items()
    assert f"{scope.path} has the controller, but 1 processes sit in it" in checks["controller.memory"]["cause"]
    assert cgroup.enable_controllers(scope.path) == set(ALL)  # once it is gone, they can be had
