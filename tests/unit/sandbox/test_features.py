"""Causes are made of facts: rules and tables, without a kernel that lacks anything."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import asdict
from errno import EACCES, EBUSY, EINVAL, EIO, ENOENT, ENOSPC, ENOSYS, EPERM, EROFS

import pytest

from stockade.doctor import Check, Report, read_findings
from stockade.errors import HostUnfit
from stockade.sandbox import features, hostfacts
from stockade.sandbox.causes import DELEGATE, Failure, cause_of, missing_controller, refused_cgroup
from stockade.sandbox.features import Finding
from stockade.sandbox.hostfacts import Facts
from stockade.sandbox.syscalls import KernelError
from stockade.sandbox.trial import Died, Explained, NoEffect, NotApplicable, Probe, Setting

HOST = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
35 27 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 27 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
38 27 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
41 27 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
BINFMT = HOST + "50 22 0:40 / /proc/sys/fs/binfmt_misc rw - binfmt_misc binfmt_misc rw\n"
# As Docker mounts them.
DOCKER = """\
600 500 0:55 / / rw,relatime - overlay overlay rw
601 600 0:60 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
610 600 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw
620 601 0:60 /bus /proc/bus ro,nosuid,nodev,noexec,relatime - proc proc rw
621 601 0:60 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
622 601 0:61 / /proc/acpi ro,relatime - tmpfs tmpfs ro
623 601 0:56 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
"""
COVERED_WHOLE = HOST + "60 22 0:50 / /proc rw - proc proc rw\n61 60 0:50 /sys /proc/sys ro - proc proc rw\n"
FRESH_ON_TOP = HOST + "51 22 0:44 / /proc/irq rw - tmpfs none rw\n60 22 0:50 / /proc rw - proc proc rw\n"
SPACE = r"22 27 0:21 / /a\040b rw - proc proc rw" + "\n"

SETTING = Setting(has_range=True, uid_map=(0, 1879048192, 65536), gid_map=(0, 1879048192, 65536), directory="/tmp", cgroup=None)


@pytest.mark.parametrize(
    ("mountinfo", "covers"),
    [
        (HOST, ()),
        (BINFMT, ()),
        (DOCKER, ("/proc/bus", "/proc/sys", "/proc/acpi", "/proc/kcore")),
        (COVERED_WHOLE, ("/proc/sys",)),
        (FRESH_ON_TOP, ()),
        ("", ()),
    ],
    ids=["host", "binfmt_misc", "docker", "proc over proc, covered", "proc over proc, whole", "nothing"],
)
def test_the_mounts_that_mask_proc_are_named(mountinfo: str, covers: tuple[str, ...]) -> None:
    assert hostfacts.proc_covers(hostfacts.parse_mounts(mountinfo)) == covers


def test_mountinfo_is_read_as_the_kernel_writes_it() -> None:
    assert [mount.point for mount in hostfacts.parse_mounts(SPACE + "cut off")] == ["/a b"]


def test_a_read_only_proc_is_found() -> None:
    assert hostfacts.read_only_proc(hostfacts.parse_mounts(HOST)) is None
    assert hostfacts.read_only_proc(hostfacts.parse_mounts(DOCKER)) == "/proc/sys"


def test_controllers_that_version_1_holds_are_found_by_their_name_of_version_2() -> None:
    assert hostfacts.v1_mounts(hostfacts.parse_mounts(HOST)) == {
        "memory": "/sys/fs/cgroup/memory",
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "io": "/sys/fs/cgroup/blkio",
    }
    table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nblkio\t7\t1\t1\npids\t0\t1\t1\n"
    assert hostfacts.v1_bound(table) == {"cpu", "io"}


def test_this_host_can_be_looked_at() -> None:
    facts = hostfacts.collect()
    assert facts.release
    assert facts.machine


UNMASK = (
    "start the container with an unmasked /proc: docker --security-opt systempaths=unconfined, "
    "podman --security-opt unmask=ALL, kubernetes procMount: Unmasked"
)
MASKED = Facts(proc_covers=("/proc/acpi",), container="docker")
RULES: dict[str, tuple[Failure, Facts, str, str]] = {
    "old kernel": (
        Failure("mount_setattr", errno=ENOSYS),
        Facts(release="5.10.0"),
        "the kernel 5.10.0 lacks mount_setattr; Linux 5.12 has it",
        "use Linux 5.12 or newer",
    ),
    "old kernel, a file": (
        Failure("write", "leaf/cgroup.kill", ENOENT),
        Facts(release="5.10.0"),
        "the kernel 5.10.0 lacks cgroup.kill; Linux 5.14 has it",
        "use Linux 5.14 or newer",
    ),
    "no keys": (
        Failure("keyctl", errno=ENOSYS),
        Facts(release="6.1"),
        "the kernel 6.1 was built without CONFIG_KEYS",
        "use a kernel with CONFIG_KEYS",
    ),
    "a call that no table knows": (Failure("spin", errno=ENOSYS), Facts(release="6.1"), "the kernel 6.1 lacks spin", "use a newer kernel"),
    "outer seccomp, ENOSYS": (
        Failure("keyctl", errno=ENOSYS),
        Facts(outer_seccomp=True),
        "a seccomp filter around us answers keyctl with ENOSYS",
        "let the outer filter allow keyctl: a profile of its own, or --security-opt seccomp=unconfined for the container",
    ),
    "outer seccomp, EPERM": (
        Failure("mount(tmpfs)", "/tmp", EPERM),
        Facts(outer_seccomp=True),
        "most likely a seccomp filter around us, which refuses mount(tmpfs)",
        "let the outer filter allow mount: a profile of its own, or --security-opt seccomp=unconfined for the container",
    ),
    "outer seccomp, killed": (
        Failure("keyring", signal=signal.SIGSYS),
        Facts(outer_seccomp=True),
        "a seccomp filter around us ends whoever makes a call of keyring",
        "let the outer filter allow keyring: a profile of its own, or --security-opt seccomp=unconfined for the container",
    ),
    "masked proc": (
        Failure("mount(proc)", "proc", EPERM),
        MASKED,
        "/proc is masked: mounts cover parts of it (/proc/acpi), so the kernel allows no new one",
        UNMASK,
    ),
    "masked proc, many mounts, no container": (
        Failure("mount(proc)", "proc", EPERM),
        Facts(proc_covers=("/proc/1", "/proc/2", "/proc/3", "/proc/4", "/proc/5", "/proc/6")),
        "/proc is masked: mounts cover parts of it (/proc/1, /proc/2, /proc/3, /proc/4 and 2 more), so the kernel allows no new one",
        "take them away: umount /proc/1; umount /proc/2; umount /proc/3; umount /proc/4",
    ),
    "read-only proc": (
        Failure("write", "/proc/77/gid_map", EROFS),
        Facts(proc_read_only="/proc", container="docker"),
        "/proc is mounted read-only",
        UNMASK,
    ),
    "read-only cgroup2": (
        Failure("mkdir", "/sys/fs/cgroup/a", EROFS),
        Facts(cgroup_read_only="/sys/fs/cgroup"),
        "the cgroup2 file system at /sys/fs/cgroup is mounted read-only",
        "mount it writable; in a container, give it its own cgroup namespace with a writable cgroup file system",
    ),
    "no delegation": (
        Failure("write", "leaf/cgroup.procs", EACCES),
        Facts(),
        "the cgroup is not delegated to us: write on leaf/cgroup.procs gave EACCES (Permission denied)",
        DELEGATE,
    ),
    "a busy cgroup": (
        Failure("write", "cgroup.subtree_control", EBUSY),
        Facts(),
        "processes sit where only cgroups may be: write on cgroup.subtree_control gave EBUSY (Device or resource busy)",
        DELEGATE,
    ),
    "AppArmor": (
        Failure("ioctl(SIOCSIFFLAGS)", "lo", EPERM),
        Facts(apparmor_restricts=True),
        "AppArmor takes the capabilities of unprivileged user namespaces away (kernel.apparmor_restrict_unprivileged_userns = 1)",
        "give this program an AppArmor profile with `userns,`, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "Debian's switch": (
        Failure("clone3", errno=EPERM),
        Facts(clone_forbidden=True),
        "kernel.unprivileged_userns_clone = 0",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    "no namespaces allowed": (
        Failure("clone3", errno=ENOSPC),
        Facts(exhausted=("user", "net")),
        "user.max_user_namespaces, user.max_net_namespaces = 0",
        "allow them: sysctl user.max_user_namespaces=15000; sysctl user.max_net_namespaces=15000",
    ),
    "no more namespaces": (
        Failure("clone3", errno=ENOSPC),
        Facts(),
        "no more namespaces are allowed: a limit of user.max_*_namespaces outside of us is reached, or 32 lie in one another",
        "raise the limits where this container or user session is made",
    ),
    "a chroot": (
        Failure("clone3", errno=EPERM),
        Facts(is_chrooted=True),
        "this process lives in a chroot, where the kernel makes no user namespace",
        "start it outside of the chroot",
    ),
    "a kind that was not built": (
        Failure("clone3", errno=EINVAL),
        Facts(release="5.4"),
        "the kernel 5.4 does not know this flag, or was built without this kind of namespace",
        "use Linux 5.7 or newer with all kinds of namespace (CONFIG_NAMESPACES, CONFIG_USER_NS)",
    ),
    "a file system without idmapped mounts": (
        Failure("mount_setattr", "/tmp", EINVAL),
        Facts(),
        "its file system, or one that is mounted below it, cannot be mapped to the ids of a job (ext4, xfs, tmpfs since 6.3 can)",
        "take workspaces from another file system",
    ),
    "a weak root": (
        Failure("mount", "/", EPERM),
        Facts(is_root=True),
        "we are root without CAP_SYS_ADMIN",
        "start as an ordinary user, or with the capability",
    ),
    "nothing known": (
        Failure("mount(tmpfs)", "/tmp", EIO),
        Facts(),
        "unknown: mount(tmpfs) on /tmp gave EIO (Input/output error)",
        "report this with the output of `stockade doctor --json`",
    ),
    "no effect": (
        Failure("pty", seen="the terminal is silent"),
        Facts(),
        "unknown: the terminal is silent",
        "report this with the output of `stockade doctor --json`",
    ),
}


@pytest.mark.parametrize(("failure", "facts", "text", "fix"), RULES.values(), ids=RULES.keys())
def test_a_failure_has_its_cause_and_its_fix(failure: Failure, facts: Facts, text: str, fix: str) -> None:
    cause = cause_of(failure, facts)
    assert (cause.text, cause.fix) == (text, fix)


@pytest.mark.parametrize("facts", [Facts(apparmor_restricts=True, is_admin=True), Facts(clone_forbidden=True, is_admin=True)])
def test_switches_for_ordinary_users_are_no_cause_for_root(facts: Facts) -> None:
    assert "apparmor" not in cause_of(Failure("mount", "/", EPERM), facts).text.lower()
    assert "unprivileged" not in cause_of(Failure("clone3", errno=EPERM), facts).text


CONTROLLERS = {
    "bound to version 1": (Facts(v1_mounts={"memory": "/cg/memory"}), (), (), 0, "it is bound to cgroup v1, mounted at /cg/memory"),
    "bound out of sight": (Facts(v1_bound=frozenset({"memory"})), (), (), 0, "it is bound to a cgroup v1 hierarchy that is not in sight"),
    "not delegated": (Facts(), ("memory",), (), 0, "it is not delegated to /base"),
    "in the way": (
        Facts(),
        ("memory",),
        ("memory",),
        3,
        "/base has the controller, but 3 processes sit in it, so it cannot be turned on below",
    ),
    "refused": (Facts(), ("memory",), ("memory",), 0, "/base has the controller, but it cannot be turned on below"),
    "nowhere": (
        Facts(),
        ("pids",),
        ("pids",),
        0,
        "no cgroup in sight has it: the kernel lacks it, it is off by cgroup_disable=, or it was not given to this container",
    ),
}


@pytest.mark.parametrize(("facts", "top", "available", "busy", "text"), CONTROLLERS.values(), ids=CONTROLLERS.keys())
def test_a_missing_controller_has_its_cause(facts: Facts, top: tuple[str], available: tuple[str], busy: int, text: str) -> None:
    cause = missing_controller("memory", facts, base="/base", top=frozenset(top), available=frozenset(available), busy=busy)
    assert cause.text == text
    assert cause.fix


def test_a_cgroup_that_cannot_be_made_has_its_cause() -> None:
    refused = HostUnfit("no cgroup can be made in '/a': not writable", feature="cgroup.delegation", hint=DELEGATE)
    assert refused_cgroup(refused, Facts()).text == "missing delegation: no cgroup can be made in '/a': not writable"
    assert refused_cgroup(refused, Facts()).fix == DELEGATE
    assert refused_cgroup(refused, Facts(cgroup_read_only="/cg")).text == "the cgroup2 file system at /cg is mounted read-only"
    absent = HostUnfit("no cgroup2 file system is mounted", feature="cgroup2", hint="mount one")
    assert refused_cgroup(absent, Facts(cgroup_read_only="/cg")).fix == "mount one"


def raising(error: Exception) -> Callable[[Setting], str]:
    def run(setting: Setting) -> str:
        raise error

    return run


KILLED = 9  # a wait status
UNKNOWN_FIX = "report this with the output of `stockade doctor --json`"
OUTCOMES: list[tuple[Callable[[Setting], str], Finding]] = [
    (lambda setting: f"in {setting.directory}", Finding("probe", True, "in /tmp")),
    (raising(NotApplicable("only for root")), Finding("probe", None, "only for root")),
    (raising(Explained("missing", "not there", "get it")), Finding("probe", False, "missing", "not there", "get it")),
    (raising(NoEffect("silence")), Finding("probe", False, "silence", "unknown: silence", UNKNOWN_FIX)),
    (raising(Died(KILLED)), Finding("probe", False, "probe was ended by SIGKILL", "unknown: probe was ended by SIGKILL", UNKNOWN_FIX)),
    (
        raising(KernelError("openat2", "/x", ENOSYS)),
        Finding(
            "probe", False, "openat2 on /x gave ENOSYS (Function not implemented)",
            "the kernel 5.4 lacks openat2; Linux 5.6 has it", "use Linux 5.6 or newer",
        ),
    ),
    (
        raising(FileNotFoundError(ENOENT, "No such file", "/x")),
        Finding(
            "probe", False, "a system call on /x gave ENOENT (No such file or directory)",
            "unknown: a system call on /x gave ENOENT (No such file or directory)", UNKNOWN_FIX,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("run", "finding"), OUTCOMES)
def test_whatever_comes_of_a_trial_becomes_a_finding(run: Callable[[Setting], str], finding: Finding) -> None:
    assert features.examine(Probe("probe", run), SETTING, lambda: Facts(release="5.4")) == finding


def test_a_setting_reaches_the_probe_program_whole() -> None:
    assert features.decode_setting(features.encode_setting(SETTING)) == SETTING


def test_names_of_probes_are_told_apart() -> None:
    names = [probe.name for probe in features.PROBES]
    assert len(names) == len(set(names))


def lines(count: int) -> bytes:
    return b"".join(json.dumps(asdict(Finding(probe.name, True, ""))).encode() + b"\n" for probe in features.PROBES[:count])


def test_what_was_found_before_the_probe_program_died_is_told() -> None:
    checks = read_findings(-signal.SIGSYS, lines(2) + b'{"name": "cut', b"", Facts())
    third = features.PROBES[2].name
    assert [check.name for check in checks] == [features.PROBES[0].name, features.PROBES[1].name, "probes"]
    assert checks[-1].detail == f"the probe program ended with signal {signal.SIGSYS:d} at {third}"
    assert checks[-1].cause == f"a seccomp filter around us ends whoever makes a call of {third}"


def test_a_bug_of_the_probe_program_is_told_with_its_last_words() -> None:
    checks = read_findings(1, lines(0), b"Traceback:\nValueError: no\n", Facts())
    assert checks[-1].cause == f"unknown: the probe program ended with status 1 at {features.PROBES[0].name}: ValueError: no"


def test_every_finding_of_a_whole_run_is_a_check() -> None:
    assert len(read_findings(0, lines(len(features.PROBES)), b"", Facts())) == len(features.PROBES)


def report(*checks: Check) -> Report:
    return Report("6.18 x86_64", checks)


RAN = Check("sealed job", True, "true ran")


def test_the_verdict_counts_what_is_required_and_names_what_is_weaker() -> None:
    found = report(
        Check("seccomp", True, ""), Check("mount.idmap", None, ""), Check("controller.io", False, "", "c", "f", required=False), RAN
    )
    assert found.fit
    assert found.verdict == ("fit: 2 required checks passed, and a sealed command ran; lacking, and not required: controller.io")


def test_an_unfit_host_is_told_each_cause_once() -> None:
    failed = [Check(name, False, "", cause, "f") for name, cause in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z"), ("e", "w"))]
    assert not report(*failed, RAN).fit
    assert report(*failed, RAN).verdict == "unfit: 5 required checks failed: x; y; z; and 1 more"


def test_a_host_where_no_sealed_command_was_seen_is_not_fit() -> None:
    assert not report(Check("seccomp", True, "")).fit


def test_a_report_is_plain_values() -> None:
    found = report(RAN).to_json()
    assert json.loads(json.dumps(found)) == found
    assert found["checks"] == [{"name": "sealed job", "ok": True, "detail": "true ran", "cause": None, "fix": None, "required": True}]
