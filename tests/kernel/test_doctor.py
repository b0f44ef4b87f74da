"""The doctor on this host as it is, and on this host with something taken away for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from errno import ENOSYS, EPERM
from pathlib import Path
from typing import Any

import pytest

from stockade import doctor
from stockade.config import Config, from_environment
from stockade.sandbox import cgroup, delegation, features, hostfacts, seccomp

EXAMINE = "import asyncio, json; from stockade import doctor, config; "
EXAMINE += "print(json.dumps(asyncio.run(doctor.examine(config.from_environment())).to_json()))"
BOUND = 120
USER = 12345
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes things away from a host, which only root can")


def examined(*before: str, setup: str = "", cgroup: str | None = None) -> dict[str, Any]:
    """The report of a doctor that is started by the command `before`, in a shell that has run `setup`."""
    environment = {"PATH": PATH} | ({} if cgroup is None else {"STOCKADE_CGROUP": cgroup})
    command = [*before, "/bin/sh", "-ec", f'{setup}\nexec "$@"', "sh", sys.executable, "-c", EXAMINE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in report["checks"]}


def failed(report: dict[str, Any]) -> dict[str, str]:
    """The required checks that failed, with their causes."""
    return {check["name"]: check["cause"] for check in report["checks"] if check["required"] and check["ok"] is False}


def as_user() -> tuple[str, ...]:
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


@pytest.fixture
def own_cgroup() -> str:
    return os.environ["STOCKADE_CGROUP"]


@pytest.fixture
def delegated(own_cgroup: str) -> Iterator[str]:
    """A cgroup that belongs to an ordinary user, and goes with everything in it."""
    path = f"{own_cgroup}/delegated"
    os.mkdir(path)
    for name in ("", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"):
        os.chown(path + name, USER, USER)
    yield path
    cgroup.remove_tree(path)


async def test_this_host_is_fit() -> None:
    report = await doctor.examine(from_environment())
    assert report.fit, report.verdict
    assert report.verdict.startswith("fit: ")
    assert report.failed == ()


async def test_every_probe_is_a_check_and_every_failure_has_a_cause_and_a_fix() -> None:
    report = await doctor.examine(from_environment())
    names = [check.name for check in report.checks]
    assert set(names) >= {probe.name for probe in features.PROBES}
    assert len(names) == len(set(names))
    assert [check.name for check in report.checks if (check.ok is False) != bool(check.cause and check.fix)] == []


def test_a_controller_that_version_1_holds_is_named_with_its_mount(own_cgroup: str) -> None:
    held = hostfacts.collect().v1_mounts
    checks = by_name(examined(cgroup=own_cgroup))
    for controller in cgroup.CONTROLLERS:
        check = checks[f"controller.{controller}"]
        assert not check["required"]
        if controller in held:
            assert (check["ok"], check["cause"]) == (False, f"it is bound to cgroup v1, mounted at {held[controller]}")
        else:
            assert check["ok"] or check["cause"]


async def test_the_state_of_the_executor_in_use_is_left_alone(tmp_path: Path) -> None:
    """The doctor looks at a host while an executor works on it."""
    state = tmp_path / "state"
    config = Config(state_dir=str(state), cgroup=from_environment().cgroup)
    assert (await doctor.examine(config)).fit
    assert not state.exists()


@pytest.mark.parametrize("directory", ["/proc/irq", "/proc/sys"])
def test_a_masked_proc_is_told_with_the_mount_that_masks_it(directory: str, own_cgroup: str) -> None:
    cover = f"mount -t tmpfs none {directory}" if directory != "/proc/sys" else "mount --bind /proc/sys /proc/sys"
    report = examined("unshare", "-m", setup=cover, cgroup=own_cgroup)
    assert not report["fit"]
    cause = f"/proc is masked: mounts cover parts of it ({directory}), so the kernel allows no new one"
    assert failed(report) == {"namespaces.nested": cause, "mount.proc": cause, "sealed job": cause}


def test_a_read_only_proc_is_told(own_cgroup: str) -> None:
    report = examined("unshare", "-m", setup="mount -o remount,bind,ro /proc", cgroup=own_cgroup)
    assert not report["fit"]
    assert failed(report)["identity.map"] == "/proc is mounted read-only"
    assert failed(report)["sealed job"] == "/proc is mounted read-only"


def test_a_read_only_cgroup_file_system_is_told(own_cgroup: str) -> None:
    top = delegation.topmost(own_cgroup)
    report = examined("unshare", "-m", setup=f"mount -o remount,bind,ro {top}", cgroup=own_cgroup)
    cause = f"the cgroup2 file system at {top} is mounted read-only"
    assert failed(report) == {"cgroup": cause, "sealed job": cause}
    assert by_name(report)["cgroup.kill"]["ok"] is None
    assert not report["fit"]


def test_an_ordinary_user_without_delegation_is_told_the_way_out() -> None:
    report = examined(*as_user())
    assert not report["fit"]
    assert set(failed(report)) == {"cgroup.base", "sealed job"}
    check = by_name(report)["cgroup.base"]
    assert check["cause"].startswith("missing delegation: ")
    assert check["fix"] == "start under a delegated cgroup: systemd-run --user --scope -p Delegate=yes -- COMMAND"


def test_a_host_is_fit_for_an_ordinary_user_with_a_delegated_cgroup(delegated: str) -> None:
    report = examined("/bin/sh", "-ec", f'echo 0 >{delegated}/cgroup.procs; exec "$@"', "sh", *as_user(), cgroup=delegated)
    assert report["fit"], report["verdict"]
    assert by_name(report)["identity"]["detail"] == f"uid {USER}: jobs have this id outside"
    assert by_name(report)["mount.idmap"]["ok"] is None


def test_a_host_is_fit_from_within_a_cgroup_that_was_killed_once(own_cgroup: str) -> None:
    """What is cloned from such a cgroup dies at birth; the fork server has a fresh one."""
    path = f"{own_cgroup}/killed"
    os.mkdir(path)
    (Path(path) / "cgroup.kill").write_text("1")
    try:
        report = examined(setup=f"echo 0 >{path}/cgroup.procs", cgroup=own_cgroup)
    finally:
        cgroup.remove_tree(path)
    assert report["fit"], report["verdict"]
    assert by_name(report)["cgroup.clone_into"]["ok"]


def test_a_host_without_user_namespaces_is_told(own_cgroup: str) -> None:
    report = examined(
        "unshare", "--user", "--map-root-user", "--mount", setup="echo 0 >/proc/sys/user/max_user_namespaces", cgroup=own_cgroup
    )
    assert not report["fit"]
    assert failed(report)["namespace.user"] == "user.max_user_namespaces = 0"
    assert failed(report)["identity"].startswith("running as root of a user namespace without the ids ")


@pytest.mark.parametrize(
    ("call", "action", "number", "probe", "cause"),
    [
        ("clone3", "SCMP_ACT_ERRNO", ENOSYS, "namespace.user", "a seccomp filter around us answers clone3 with ENOSYS"),
        ("keyctl", "SCMP_ACT_ERRNO", EPERM, "keyring", "most likely a seccomp filter around us, which refuses keyctl"),
        ("keyctl", "SCMP_ACT_KILL_PROCESS", None, "keyring", "a seccomp filter around us ends whoever makes a call of keyring"),
        ("openat2", "SCMP_ACT_ERRNO", ENOSYS, "openat2", "a seccomp filter around us answers openat2 with ENOSYS"),
    ],
)
def test_a_filter_around_us_is_told(
    call: str, action: str, number: int | None, probe: str, cause: str, own_cgroup: str, tmp_path: Path
) -> None:
    rule = {"names": [call], "action": action} | ({} if number is None else {"errnoRet": number})
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}
    program = tmp_path / "filter"
    program.write_bytes(seccomp.compile_profile(seccomp.parse_profile(json.dumps(profile), origin="test"), os.uname().machine))
    load = (
        "import os, sys, prctl; from stockade.sandbox import syscalls; prctl.set_no_new_privs(1); "
        "syscalls.seccomp_set_filter(open(sys.argv[1], 'rb').read()); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    report = examined(sys.executable, "-c", load, str(program), cgroup=own_cgroup)
    assert not report["fit"]
    assert failed(report)[probe] == cause
