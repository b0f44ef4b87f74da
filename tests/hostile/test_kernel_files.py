"""/proc, /dev, /sys, core dumps: files by which the kernel or the host is steered."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Signaled
from support.attacks import BOUND, inside, needs_root, outside, unfiltered
from support.programs import PYTHON, python

SIGSEGV = 11
CRASH = "import os; os.kill(os.getpid(), 11)"


@needs_root
async def test_no_file_below_proc_sys_opens_for_writing() -> None:
    """Every one is tried. Control: root outside opens more than a thousand of them."""
    answers = await inside(Policy(), "sysctls")
    assert (answers["opened"], answers["read only"]) == ([], True)
    assert answers["counts"].keys() <= {"EACCES", "EPERM", "EROFS"}
    assert sum(answers["counts"].values()) > 300
    assert outside("sysctls")["counts"]["OPENED"] > 300


@needs_root
async def test_no_other_file_of_proc_opens_for_writing_and_masked_ones_are_empty() -> None:
    """/proc/pressure took triggers for the whole host from anybody once. Control: root outside writes and reads them."""
    answers = await inside(Policy(), "kernel_files")
    assert answers["writable"] == []
    assert answers["oom_score_adj"] == "EACCES"
    assert all(content in ("", []) for content in answers["masked"].values()), answers["masked"]
    control = outside("kernel_files")
    assert control["masked"]["timer_list"].startswith("Timer List")
    assert control["writable"]


@needs_root
async def test_the_devices_are_exactly_these_and_no_others_can_be_made(tmp_path: Path) -> None:
    assert await inside(Policy(), "devices") == {
        "fd": "link",
        "full": "char 1:7",
        "null": "char 1:3",
        "ptmx": "link",
        "pts": "dir",
        "random": "char 1:8",
        "shm": "dir",
        "stderr": "link",
        "stdin": "link",
        "stdout": "link",
        "urandom": "char 1:9",
        "zero": "char 1:5",
    }
    # Behind the filter, and behind the missing capability alone.
    for policy in (Policy(), Policy(seccomp=unfiltered(tmp_path))):
        answers = await inside(policy, "nodes", "/tmp")
        made = {name for name, answer in answers.items() if answer in ("OK", 0)}
        assert made == {"fifo", "fifo by mknod"}
        assert {answer for name, answer in answers.items() if name not in made} == {"EPERM"}
    assert set(outside("nodes", str(tmp_path)).values()) <= {"OK", 0}


async def test_a_device_that_the_host_has_in_a_granted_directory_cannot_be_opened(workspace: Path) -> None:
    """nodev: the policy names a directory, and root put a device there. Control: outside it opens."""
    if os.geteuid() != 0:
        pytest.skip("only root can make the device")
    os.mknod(workspace / "zero", 0o020666, os.makedev(1, 5))
    os.chmod(workspace / "zero", 0o666)
    script = "import os\ntry: print(os.read(os.open('zero', os.O_RDONLY), 1))\nexcept OSError as error: print(error.errno)"
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run(python(script))
    assert result.stdout == b"13\n"
    with open(workspace / "zero", "rb", 0) as device:
        assert device.read(1) == b"\0"


async def test_one_job_cannot_take_all_terminals_of_the_host() -> None:
    """kernel.pty.max counts for all. Control: a few can be had, and outside the same payload gets more than the cap."""
    answers = await inside(Policy(), "ptys", "600")
    assert answers == {"got": 64, "reasons": ["ENOSPC"]}
    assert outside("ptys", "200") == {"got": 200, "reasons": ["OK"]}


async def test_a_crash_leaves_no_core_file_and_starts_no_handler(workspace: Path, tmp_path: Path) -> None:
    """A core limit of 1 also stops a piped core_pattern, for which 0 is no limit (core(5)); that the handler is not started can only
    be seen where the host has one, and a test does not set the host's. Control: with the limit lifted the same crash outside dumps.
    """
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run(python(CRASH))
        limit = await executor.run(python("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"))
    assert result.outcome == Signaled(SIGSEGV)
    assert limit.stdout == b"(1, 1)\n"
    assert list(workspace.iterdir()) == []
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if not pattern.startswith(("|", "/")) and hard == resource.RLIM_INFINITY:
        lifted = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); {CRASH}"
        subprocess.run([PYTHON, "-c", lifted], cwd=tmp_path, timeout=BOUND, check=False)
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("core")]


async def test_what_is_mounted_is_what_the_plan_says_and_nothing_of_the_host_is_writable(workspace: Path) -> None:
    """Control: the workspace is a host file system too, and the one that is writable."""
    async with Executor(Policy(workspace=str(workspace))) as executor:
        plan = await executor.explain(["/usr/bin/true"])
    view = await inside(Policy(workspace=str(workspace)), "view")
    own = {"tmpfs", "proc", "devpts"}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
    names = "cmdline interrupts kcore keys key-users kmsg latency_stats locks sched_debug softirqs timer_list"
    covers = {f"/proc/{name}" for name in names.split()}
    planned = {getattr(mount, "target", None) for mount in plan.mounts if type(mount).__name__ == "Bind"}
    made = {point for point, kind, *_ in view["mounts"] if kind in own} - planned  # the host's directories may lie on a tmpfs too
    host = {point: options.split(",") for point, _, options, _, _ in view["mounts"] if point not in made | devices | covers}
    assert host.keys() == planned
    for point, options in host.items():
        assert {"nosuid", "nodev"} <= set(options), point
        assert ("rw" in options) == (point == str(workspace)), point
    for point, kind, options, _, _ in view["mounts"]:
        wanted = {"nosuid"} if point in devices | covers or kind == "devpts" or point == "/dev" else {"nosuid", "nodev"}
        assert wanted <= set(options.split(",")), point
    writable = {point for point, _, options, _, _ in view["mounts"] if options.startswith("rw")}
    places = {mount.target for mount in plan.mounts if type(mount).__name__ == "Tmpfs"}
    assert {"/tmp", "/home/job"} <= places <= {"/tmp", "/home/job", "/var/tmp"}  # the last where the workspace lies below it
    assert writable == {str(workspace), "/dev/shm", "/dev/pts", "/proc", *places, *devices}


async def test_of_the_host_there_is_no_process_no_sysfs_no_cgroup_and_no_interface() -> None:
    view = await inside(Policy(), "view")
    assert (view["pids"], view["sys"], view["run"], view["cgroups"], view["interfaces"]) == ([], "ENOENT", [], ["/"], ["lo"])
    assert view["hostname"] == "stockade"
    assert not any(kind.startswith(("cgroup", "sysfs")) for _, kind, _, _, _ in view["mounts"])
    assert set(view["top"]) <= {
        "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "tmp", "usr", "var",
    }  # fmt: skip
    control = outside("view")
    assert control["pids"]
    assert control["sys"] != "ENOENT"
