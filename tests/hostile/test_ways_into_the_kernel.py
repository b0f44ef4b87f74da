"""System calls that open the kernel: namespaces, mounts, foreign tables, sockets, keys, terminals, and single calls.

Each is tried behind the filter, behind everything but the filter ("unfiltered": a profile that allows every call), and where a
second wall stands in the way there, outside of any sandbox: so each wall is seen to be the one that answered.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stockade import Policy
from support.attacks import BOUND, SOURCE, inside, needs_root, outside, unfiltered
from support.programs import PYTHON

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the payloads know the call numbers of x86-64")

BUILT_IN = pytest.mark.parametrize("seccomp", ["strict", "default", "debug"])


@needs_root
@BUILT_IN
async def test_no_way_leads_into_another_namespace(seccomp: str) -> None:
    answers = await inside(Policy(seccomp=seccomp), "namespaces")
    assert len(answers) == 39
    for name, answer in answers.items():
        assert answer == ("ENOSYS" if name.startswith("clone3 ") else "EPERM"), name


@needs_root
async def test_without_the_filter_namespaces_are_still_forbidden_by_the_kernel(tmp_path: Path) -> None:
    """ENOSPC is user.max_user_namespaces = 0; the other kinds need a capability that no job has. Outside all of them work."""
    answers = await inside(Policy(seccomp=unfiltered(tmp_path)), "namespaces")
    for name, answer in answers.items():
        expected = "EPERM"
        if "user" in name:
            expected = "EINVAL" if name == "setns user" else "ENOSPC"
        elif name == "clone with high bits":
            expected = "ENOSPC"
        assert answer == expected, name
    control = outside("namespaces")
    assert {name for name, answer in control.items() if answer not in ("OK", 0)} == {"setns user"}  # one's own cannot be entered again


async def test_who_a_job_is_cannot_be_rewritten() -> None:
    assert await inside(Policy(), "id_maps") == {"uid_map": "EPERM", "gid_map": "EPERM", "setgroups": "EACCES"}
    # Control: the parent of a fresh namespace may write all three, once.
    script = (
        "import os, ctypes; libc = ctypes.CDLL(None); uid, gid = os.getuid(), os.getgid()\n"
        "assert libc.unshare(0x10000000) == 0\n"
        "for name, text in ('setgroups', 'deny'), ('gid_map', f'0 {gid} 1'), ('uid_map', f'0 {uid} 1'):\n"
        "    open('/proc/self/' + name, 'w').write(text)\n"
        "print(os.getuid())"
    )
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, timeout=BOUND, check=False)
    assert done.stdout == b"0\n", done.stderr


@BUILT_IN
async def test_x32_and_int_0x80_reach_nothing(seccomp: str) -> None:
    """x32 has no control where the kernel is built without it; int 0x80 works outside wherever the kernel emulates i386."""
    answers = await inside(Policy(seccomp=seccomp), "foreign_tables")
    assert {answer for name, answer in answers.items() if name.startswith("x32")} == {"ENOSYS"}
    assert {answer for name, answer in answers.items() if name.startswith("int80")} == {"SIGSYS"}
    assert answers["native getpid"] == "OK"
    control = outside("foreign_tables")
    if control["int80 getpid"] == "OK":
        assert control["int80 unshare"] == "OK"
        assert control["int80 socketcall"] == "EFAULT"


async def test_a_profile_that_allows_everything_still_kills_foreign_tables(tmp_path: Path) -> None:
    answers = await inside(Policy(seccomp=unfiltered(tmp_path)), "foreign_tables")
    assert {answer for name, answer in answers.items() if name.startswith("int80")} == {"SIGSYS"}
    assert {answer for name, answer in answers.items() if name.startswith("x32")} == {"ENOSYS"}
    assert answers["native keyctl"] == "OK"


@needs_root
async def test_no_mount_call_of_either_generation_works(tmp_path: Path) -> None:
    """The filter and the missing capability both say EPERM; outside, in a mount namespace of its own, the same payload mounts."""
    for policy in (Policy(), Policy(seccomp="debug"), Policy(seccomp=unfiltered(tmp_path))):
        answers = await inside(policy, "mounts", "/tmp")
        assert len(answers) == 13
        assert set(answers.values()) == {"EPERM"}
    place = tmp_path / "mount-point"
    place.mkdir()
    control = outside("own_mounts", str(place))
    allowed = {name for name, answer in control.items() if answer in (0, "OK")}
    assert allowed >= {"mount tmpfs", "mount proc", "bind", "umount", "fsopen", "fspick", "open_tree", "mount_setattr", "chroot"}


EXPECTED_CALLS = {
    "ENOSYS": "io_uring_setup io_uring_enter io_uring_register userfaultfd name_to_handle_at keyctl add_key request_key vmsplice "
    "modify_ldt fanotify_init move_pages mq_open memfd_secret io_setup lookup_dcookie statmount listmount process_mrelease",
    "EPERM": "bpf perf_event_open open_by_handle_at syslog reboot swapon init_module delete_module kexec_load iopl ioperm acct quotactl "
    "settimeofday sethostname setdomainname mbind setfsuid",
}


@BUILT_IN
async def test_calls_that_open_the_kernel_answer_with_the_errno_of_the_filter(tmp_path: Path, seccomp: str) -> None:
    """Control: without the filter the kernel gets to see the arguments, and says something else or does it."""
    answers = await inside(Policy(seccomp=seccomp), "calls")
    for expected, names in EXPECTED_CALLS.items():
        assert {name: answers[name] for name in names.split()} == dict.fromkeys(names.split(), expected)
    assert (answers["personality query"], answers["personality query high bits"], answers["not a call"]) == (0, 0, "ENOSYS")
    assert answers["prctl set_mm"] == "EPERM"
    assert answers["personality"] == (0 if seccomp == "debug" else "EPERM")
    control = await inside(Policy(seccomp=unfiltered(tmp_path)), "calls")
    reached = {name for name in EXPECTED_CALLS["ENOSYS"].split() if control[name] != "ENOSYS"}
    assert reached >= {"io_uring_setup", "keyctl", "vmsplice", "name_to_handle_at", "process_mrelease", "move_pages"}
    # Each of these reached the kernel, which refused the arguments or wants a capability of the host.
    assert {control[name] for name in ("setfsuid", "mbind", "personality")} <= {"OK", 0}
    assert {control[name] for name in ("bpf", "syslog", "reboot", "swapon", "acct", "settimeofday", "sethostname")} == {"EPERM"}


@pytest.mark.parametrize("seccomp", ["default", "debug"])
async def test_four_socket_families_can_be_opened_and_one_netlink_protocol(tmp_path: Path, seccomp: str) -> None:
    """Control: without the filter AF_VSOCK (not namespaced, leads to the hypervisor) or other netlink protocols open without power."""
    answers = await inside(Policy(seccomp=seccomp), "sockets")
    opened = {name for name, answer in answers.items() if "OK" in (answer if isinstance(answer, list) else [answer])}
    assert opened == {"family 1", "family 2", "family 10", "family 16"}
    for name, answer in answers.items():
        if name.startswith("family ") and name not in opened and name != "family with high bits":
            assert set(answer) == {"EAFNOSUPPORT"}, name
        elif name.startswith("netlink "):
            assert answer == "EAFNOSUPPORT", name
    assert [answers[name] for name in ("raw icmp", "raw icmp6", "ping")] == ["EPERM", "EPERM", "EACCES"]
    assert {answers[name] for name in ("packet", "vsock", "alg", "rxrpc", "pair of tipc", "family with high bits")} == {"EAFNOSUPPORT"}
    control = await inside(Policy(seccomp=unfiltered(tmp_path)), "sockets")
    assert control["netlink 16"] == "OK"
    assert control["packet"] == "EPERM"  # the capability is a second wall


async def test_strict_opens_no_socket_at_all() -> None:
    answers = await inside(Policy(seccomp="strict"), "sockets")
    flat = {each for answer in answers.values() for each in (answer if isinstance(answer, list) else [answer])}
    assert flat == {"EAFNOSUPPORT"}


@BUILT_IN
async def test_nothing_can_be_typed_pasted_or_loaded_into_a_terminal(tmp_path: Path, seccomp: str) -> None:
    """With bits above 32 set as well, which the kernel throws away (CVE-2019-10063)."""
    answers = await inside(Policy(seccomp=seccomp), "terminals")
    assert {answer for name, answer in answers.items() if not name.startswith("TIOCGWINSZ")} == {"EPERM"}
    assert {answer for name, answer in answers.items() if name.startswith("TIOCGWINSZ")} == {"OK"}
    control = await inside(Policy(seccomp=unfiltered(tmp_path)), "terminals")
    assert control["TIOCSETD 0x0"] == control["TIOCSETD 0x1"] == "OK"
    assert control["TIOCLINUX 0x0"] == "ENOTTY"  # the driver's own answer: the request has reached it
    with open("/proc/sys/dev/tty/legacy_tiocsti") as setting:
        if setting.read().strip() == "1":
            assert control["TIOCSTI 0x0"] == control["TIOCSTI 0xffffffff"] == "OK"


@contextmanager
def _key(description: bytes) -> Iterator[None]:
    """A key in the session keyring of this process, which the fork server inherits."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    serial = libc.syscall(ctypes.c_long(248), b"user", description, b"x", ctypes.c_size_t(1), ctypes.c_long(-3))
    assert serial > 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.syscall(ctypes.c_long(250), ctypes.c_long(9), ctypes.c_long(serial), ctypes.c_long(-3))  # KEYCTL_UNLINK


async def test_keys_of_the_supervisor_are_not_in_reach(tmp_path: Path) -> None:
    """Where the filter lets keyctl through, the session keyring is a new one; a child of ours outside finds the key in its own."""
    with _key(b"stockade-hostile-test"):
        assert await inside(Policy(), "search_key", "stockade-hostile-test") == {"session": "ENOSYS"}
        found = await inside(Policy(seccomp=unfiltered(tmp_path)), "search_key", "stockade-hostile-test")
        assert found == {"session": "ENOKEY"}
        control = subprocess.run(
            [PYTHON, "-c", SOURCE, "search_key", "stockade-hostile-test"], capture_output=True, timeout=BOUND, check=True
        )
        assert isinstance(json.loads(control.stdout)["session"], int | str)
        assert json.loads(control.stdout)["session"] not in ("ENOKEY", "ENOSYS")
