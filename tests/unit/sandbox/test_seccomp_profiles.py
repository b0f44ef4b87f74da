"""The three built-in profiles: what they must deny, what they must allow, and that libseccomp reads them alike."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import subprocess
import sys
from functools import cache

import pytest

from stockade.sandbox import syscall_tables
from stockade.sandbox.seccomp import BUILT_IN, Action, Compare, Profile, compile_profile, load_profile, profile_directories
from support import bpf

TABLES = {"x86_64": (bpf.X86_64, syscall_tables.X86_64), "aarch64": (bpf.AARCH64, syscall_tables.AARCH64)}
HIGH = 1 << 32
EPERM, EINVAL, ENOSYS, EAFNOSUPPORT, ENOTSOCK, ENOMEM, ENOPROTOOPT = (
    bpf.errno_value(number)
    for number in (errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EAFNOSUPPORT, errno.ENOTSOCK, errno.ENOMEM, errno.ENOPROTOOPT)
)


@cache
def code_of(profile: str, arch: str) -> list[tuple[int, int, int, int]]:
    return bpf.decode(compile_profile(load_profile(profile), arch))


def answer(profile: str, call: str, *args: int, arch: str = "x86_64") -> int:
    audit_arch, table = TABLES[arch]
    return bpf.run_decoded(code_of(profile, arch), bpf.seccomp_data(table[call], audit_arch, args))


def allowed(profile: str, arch: str) -> set[str]:
    """Calls that at least one set of arguments gets through."""
    loaded = load_profile(profile)
    return {name for rule in loaded.rules for name in rule.names if rule.verdict.action is Action.ALLOW and name in TABLES[arch][1]}


SOCKET_CALLS = set(
    "accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg "
    "sendto setsockopt shutdown socket socketpair".split()
)

# --- the files -------------------------------------------------------------------------------------------------------


def document(name: str) -> dict[str, object]:
    for directory in profile_directories():
        path = os.path.join(directory, f"{name}.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                loaded: dict[str, object] = json.load(file)
                return loaded
    raise AssertionError(f"no file for {name}")


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_rule_has_its_reason(name: str) -> None:
    reasons = [rule.comment for rule in load_profile(name).rules]
    assert all(len(reason) > 10 for reason in reasons)


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_call_is_named_twice_but_with_different_args(name: str) -> None:
    seen: set[object] = set()
    for rule in load_profile(name).rules:
        for call in rule.names:
            assert (call, rule.conditions) not in seen, call
            seen.add((call, rule.conditions))


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_files_hold_only_what_the_oci_runtime_spec_knows(name: str) -> None:
    """`comment` is moby's addition, which every OCI runtime passes over."""
    top = document(name)
    assert top.keys() == {"defaultAction", "defaultErrnoRet", "architectures", "syscalls"}
    rules = top["syscalls"]
    assert isinstance(rules, list)
    for rule in rules:
        assert rule.keys() <= {"names", "action", "errnoRet", "args", "comment"}
        # runc takes several comparisons of one argument as alternatives (opencontainers/runc#2735), we as one demand.
        indexes = [arg["index"] for arg in rule.get("args", [])]
        assert len(indexes) == len(set(indexes))


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_not_listed_is_not_there(name: str) -> None:
    profile = load_profile(name)
    assert (profile.default.action, profile.default.errno) == (Action.ERRNO, errno.ENOSYS)
    for arch, (audit_arch, table) in TABLES.items():
        unknown = set(range(1000)) - set(table.values())
        results = {bpf.run_decoded(code_of(name, arch), bpf.seccomp_data(nr, audit_arch)) for nr in unknown}
        assert results == {ENOSYS}


@pytest.mark.parametrize("arch", TABLES)
def test_debug_allows_more_than_default_and_default_more_than_strict(arch: str) -> None:
    assert allowed("debug", arch) - allowed("default", arch) == {"ptrace", "process_vm_readv", "process_vm_writev"}
    assert allowed("default", arch) - allowed("strict", arch) == SOCKET_CALLS
    assert allowed("strict", arch) <= allowed("default", arch) <= allowed("debug", arch)


def test_the_three_files_differ_where_they_mean_to_and_nowhere_else() -> None:
    default, debug, strict = (set(load_profile(name).rules) for name in ("default", "debug", "strict"))
    assert {call for rule in default ^ strict for call in rule.names} == SOCKET_CALLS
    assert {call for rule in default ^ debug for call in rule.names} == {
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "prctl",
        "personality",
    }


# --- what is answered ------------------------------------------------------------------------------------------------

MUST_DENY = {
    EPERM: (
        "ptrace process_vm_readv process_vm_writev process_madvise mount umount2 move_mount open_tree open_tree_attr "
        "fsopen fsconfig fsmount fspick mount_setattr pivot_root chroot unshare setns setfsuid setfsgid quotactl "
        "quotactl_fd bpf perf_event_open syslog adjtimex clock_adjtime settimeofday clock_settime swapon swapoff reboot "
        "kexec_load kexec_file_load init_module finit_module delete_module iopl ioperm open_by_handle_at acct "
        "sethostname setdomainname mbind set_mempolicy migrate_pages"
    ),
    ENOSYS: (
        "clone3 io_setup io_submit io_destroy io_getevents io_cancel io_pgetevents io_uring_setup io_uring_enter "
        "io_uring_register memfd_secret vmsplice remap_file_pages uretprobe name_to_handle_at fanotify_init fanotify_mark "
        "modify_ldt statmount listmount pidfd_getfd process_mrelease mq_open mq_unlink mq_timedsend mq_timedreceive "
        "mq_notify mq_getsetattr epoll_ctl_old epoll_wait_old keyctl add_key request_key userfaultfd kcmp move_pages "
        "lookup_dcookie openat2 uselib ustat sysfs vhangup _sysctl create_module nfsservctl"
    ),
}
MUST_ALLOW = (
    "read write openat close close_range mmap mprotect brk rseq membarrier statx faccessat2 fchmodat2 "
    "copy_file_range memfd_create getrandom sched_setaffinity futex futex_waitv futex_wake futex_wait futex_requeue "
    "pidfd_open pidfd_send_signal pkey_alloc pkey_free pkey_mprotect clock_nanosleep mseal cachestat map_shadow_stack "
    "kill tgkill tkill seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self flock fcntl execve "
    "execveat wait4 waitid setsid inotify_init1 epoll_create1 epoll_pwait2 sysinfo prctl setpriority shmget semget "
    "set_robust_list rt_sigreturn exit exit_group getxattrat"
)
ON_BOTH = pytest.mark.parametrize("arch", TABLES)


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_what_must_be_denied_is_denied_with_the_errno_that_programs_expect(name: str, arch: str) -> None:
    lifted = {"ptrace", "process_vm_readv", "process_vm_writev"} if name == "debug" else set()
    for expected, calls in MUST_DENY.items():
        for call in set(calls.split()) & TABLES[arch][1].keys() - lifted:
            for args in ([0] * 6, [2**64 - 1] * 6):
                assert answer(name, call, *args, arch=arch) == expected, call


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_what_runtimes_need_is_allowed(name: str, arch: str) -> None:
    for call in set(MUST_ALLOW.split()) & TABLES[arch][1].keys():
        assert answer(name, call, arch=arch) == bpf.ALLOW, call


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("high", [0, HIGH, 0xFFFF_FFFF << 32], ids=["plain", "bit 32", "all high bits"])
def test_terminal_tricks_are_denied_whatever_the_high_bits(name: str, arch: str, high: int) -> None:
    """The kernel takes the request as 32 bits, so 0x100005412 is TIOCSTI too (CVE-2019-10063)."""
    for request in (0x5412, 0x541C, 0x5423):
        assert answer(name, "ioctl", 0, high | request, arch=arch) == EPERM
    for request in (0x5401, 0x5411, 0x5413, 0x541B, 0x541D, 0x5424, 0x5413 << 16):
        assert answer(name, "ioctl", 0, high | request, arch=arch) == bpf.ALLOW


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_clone_makes_processes_and_threads_but_no_namespace(name: str, arch: str) -> None:
    fork, thread = 0x0120_0011, 0x003D_0F00
    for flags in (0x11, fork, thread, 0x4111, 0x80 | 0x11):
        assert answer(name, "clone", flags, arch=arch) == bpf.ALLOW
        for bit in (17, 25, 26, 27, 28, 29, 30):
            assert answer(name, "clone", flags | 1 << bit, arch=arch) == EPERM
            assert answer(name, "clone", flags | 1 << bit | HIGH, arch=arch) == EPERM
        # The kernel drops the upper half, so this is a plain fork.
        assert answer(name, "clone", flags | HIGH, arch=arch) == bpf.ALLOW
    assert answer(name, "clone", 0x7E02_0000, arch=arch) == EPERM


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("high", [0, HIGH], ids=["plain", "bit 32"])
def test_no_thread_has_descriptors_of_its_own(name: str, arch: str, high: int) -> None:
    """Those of a process are looked at from outside where memory is sampled; CLONE_THREAD, CLONE_FILES, CLOSE_RANGE_UNSHARE."""
    thread, files = 0x10000, 0x400
    assert answer(name, "clone", high | thread | 0x900, arch=arch) == EPERM
    assert answer(name, "clone", high | thread | files | 0x900, arch=arch) == bpf.ALLOW
    assert answer(name, "clone", high | files | 0x11, arch=arch) == bpf.ALLOW
    assert answer(name, "close_range", 3, 9, high | 4, arch=arch) == bpf.ALLOW
    for flags in (2, 6):
        assert answer(name, "close_range", 3, 9, high | flags, arch=arch) == EINVAL


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_huge_pages_of_the_host_are_out_of_reach(name: str, arch: str) -> None:
    assert answer(name, "mmap", 0, 4096, 3, 0x22, arch=arch) == bpf.ALLOW
    assert answer(name, "mmap", 0, 4096, 3, 0x22 | 0x40000, arch=arch) == ENOMEM
    assert answer(name, "memfd_create", 0, 4, arch=arch) == ENOSYS
    assert answer(name, "shmget", 0, 4096, 0o1600, arch=arch) == bpf.ALLOW
    assert answer(name, "shmget", 0, 4096, 0o5600, arch=arch) == EPERM


@ON_BOTH
@pytest.mark.parametrize("name", ["default", "debug"])
def test_no_filter_is_attached_to_a_socket(name: str, arch: str) -> None:
    """SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF; other options, and the same numbers of other levels, are."""
    attach = {option for option in range(100) if answer(name, "setsockopt", 3, 1, option, arch=arch) == ENOPROTOOPT}
    assert attach == {26, 50, 51, 52}
    assert answer(name, "setsockopt", 3, 6, 26, arch=arch) == bpf.ALLOW


@ON_BOTH
@pytest.mark.parametrize("name", ["default", "debug"])
@pytest.mark.parametrize("high", [0, HIGH], ids=["plain", "bit 32"])
def test_only_four_socket_families_exist(name: str, arch: str, high: int) -> None:
    """AF_ALG (38), AF_VSOCK (40), AF_RXRPC (33) and AF_PACKET (17) are ways into the kernel or out to the hypervisor."""
    families = {family for family in range(200) if answer(name, "socket", high | family, 1, 0, arch=arch) == bpf.ALLOW}
    assert families == {1, 2, 10, 16}
    others = {answer(name, "socket", high | family, 1, 0, arch=arch) for family in range(200)} - {bpf.ALLOW}
    assert others == {EAFNOSUPPORT}
    assert answer(name, "socket", 0xFFFF_FFFF, 1, 0, arch=arch) == EAFNOSUPPORT


@ON_BOTH
@pytest.mark.parametrize("name", ["default", "debug"])
def test_netlink_speaks_of_routes_only_and_pairs_are_local(name: str, arch: str) -> None:
    for protocol in range(1, 30):
        assert answer(name, "socket", 16, 3, protocol, arch=arch) == EAFNOSUPPORT
        assert answer(name, "socket", HIGH | 16, 3, HIGH | protocol, arch=arch) == EAFNOSUPPORT
    assert answer(name, "socket", 16, 0x80003, HIGH, arch=arch) == bpf.ALLOW
    pairs = {family for family in range(50) if answer(name, "socketpair", family, 1, arch=arch) == bpf.ALLOW}
    assert pairs == {1}
    assert answer(name, "socketpair", 30, 1, arch=arch) == EAFNOSUPPORT


@ON_BOTH
def test_strict_has_no_sockets_and_says_what_the_kernel_would_say_without_any(arch: str) -> None:
    """bash takes any errno but ENOTSOCK or EINVAL of getpeername(0) to mean that rshd started it."""
    for call in SOCKET_CALLS:
        expected = EAFNOSUPPORT if call in ("socket", "socketpair") else ENOTSOCK
        assert answer("strict", call, 1, arch=arch) == expected


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_five_personalities_and_one_more_for_debuggers(name: str, arch: str) -> None:
    wanted = {0, 8, 0x20000, 0x20008, 0xFFFF_FFFF} | ({0x40000} if name == "debug" else set())
    tried = {base | bit for base in wanted for bit in (0, *(1 << shift for shift in range(32)))} | {0xFFFF_FFFE, 0x60000}
    assert {value for value in tried if answer(name, "personality", value, arch=arch) == bpf.ALLOW} == wanted
    assert {answer(name, "personality", value, arch=arch) for value in tried - wanted} == {EPERM}
    assert answer(name, "personality", HIGH | 0x400000, arch=arch) == EPERM


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_prctl_cannot_forge_a_memory_map_and_only_debug_names_a_tracer(name: str, arch: str) -> None:
    assert answer(name, "prctl", 35, arch=arch) == EPERM
    assert answer(name, "prctl", HIGH | 35, arch=arch) == EPERM
    assert answer(name, "prctl", 0x5961_6D61, arch=arch) == (bpf.ALLOW if name == "debug" else EPERM)
    assert {answer(name, "prctl", option, arch=arch) for option in (1, 4, 15, 22, 34, 36, 38)} == {bpf.ALLOW}


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_limits_are_the_callers_own(name: str, arch: str) -> None:
    assert answer(name, "prlimit64", 0, 7, arch=arch) == bpf.ALLOW
    assert answer(name, "prlimit64", HIGH, 7, arch=arch) == bpf.ALLOW
    assert {answer(name, "prlimit64", pid, 7, arch=arch) for pid in (1, 2, 1000, 0xFFFF_FFFF, HIGH | 1)} == {EPERM}


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("high", [0, HIGH], ids=["plain", "bit 32"])
def test_no_lease_holds_up_those_who_open_a_file(name: str, arch: str, high: int) -> None:
    """F_SETLEASE (1024), F_NOTIFY (1026) and, from Linux 6.19 on, F_SETDELEG (1040)."""
    known = {command for command in range(1100) if answer(name, "fcntl", 3, high | command, arch=arch) == bpf.ALLOW}
    assert known == {*range(1024), 1025, *range(1027, 1039)}
    assert [answer(name, "fcntl", 3, high | command, arch=arch) for command in (1024, 1026)] == [EPERM] * 2
    assert {answer(name, "fcntl", 3, high | command, arch=arch) for command in (1039, 1040, 0xFFFF_FFFF)} == {EINVAL}


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_device_nodes_cannot_be_made(name: str, arch: str) -> None:
    calls = [("mknodat", (0, 0))] + ([("mknod", (0,))] if arch == "x86_64" else [])
    for call, before in calls:
        for kind in range(16):
            for permissions in (0, 0o644, 0o1777, 0o3777, 0o7777):
                plain = kind << 12 in (0, 0o100000, 0o010000, 0o140000) and not permissions & 0o6000
                for high in (0, 1 << 16, HIGH):  # mode is a 16-bit umode_t
                    expected = bpf.ALLOW if plain else EPERM
                    assert answer(name, call, *before, high | kind << 12 | permissions, arch=arch) == expected, oct(kind)


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("high", [0, 1 << 16, HIGH], ids=["plain", "bit 16", "bit 32"])
def test_no_call_leaves_a_set_id_file_behind(name: str, arch: str, high: int) -> None:
    """In a workspace it would belong to the workspace's owner, and run as that owner or group for anybody on the host."""
    modes = [("fchmod", (0,)), ("fchmodat", (0, 0)), ("fchmodat2", (0, 0))]
    opens = [("openat", (0, 0))]
    if arch == "x86_64":
        modes += [("chmod", (0,)), ("creat", (0,))]
        opens += [("open", (0,))]
    for call, before in modes:
        for mode in (0, 0o644, 0o1777, 0o170777):
            assert answer(name, call, *before, high | mode, arch=arch) == bpf.ALLOW
            for special in (0o4000, 0o2000, 0o6000):
                assert answer(name, call, *before, high | mode | special, arch=arch) == EPERM
    for call, before in opens:
        for flags in (os.O_CREAT, os.O_CREAT | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, os.O_TMPFILE | os.O_RDWR, 0o20000000):
            assert answer(name, call, *before, flags, high | 0o1777, arch=arch) == bpf.ALLOW
            for special in (0o4000, 0o2000, 0o6000):
                assert answer(name, call, *before, flags, high | special | 0o755, arch=arch) == EPERM
        for flags in (0, os.O_RDWR | os.O_TRUNC, os.O_DIRECTORY | os.O_CLOEXEC):
            assert answer(name, call, *before, flags, 2**64 - 1, arch=arch) == bpf.ALLOW


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_other_ways_into_the_kernel_are_shut(name: str) -> None:
    """int 0x80 shows as AUDIT_ARCH_I386 and kills; x32 calls look missing, as on kernels built without x32."""
    code = code_of(name, "x86_64")
    for nr in range(600):
        assert bpf.run_decoded(code, bpf.seccomp_data(nr, bpf.I386)) == bpf.KILL_PROCESS
        assert bpf.run_decoded(code, bpf.seccomp_data(0x4000_0000 | nr, bpf.X86_64)) == ENOSYS


# --- libseccomp ------------------------------------------------------------------------------------------------------


class ScmpArg(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


SCMP_OPS = {"NE": 1, "LT": 2, "LE": 3, "EQ": 4, "GE": 5, "GT": 6, "MASKED_EQ": 7}
SCMP_ARCHES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
NR_SCMP_ERROR = -1
# libseccomp lets a rule without args win over all rules with args of the same call, whatever their order.
ORDER_MATTERS = {"ioctl", "prctl", "personality", "setsockopt"}


def libseccomp() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        pytest.skip("libseccomp.so.2 is not installed")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_arch_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.seccomp_arch_remove.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.seccomp_arch_native.restype = ctypes.c_uint32
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(ScmpArg),
    ]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def reference_program(profile: Profile, arch: str) -> tuple[bytes, set[str]]:
    """The profile as libseccomp compiles it, and the names that are too new for it."""
    library = libseccomp()
    context = library.seccomp_init(profile.default.return_value)
    too_new: set[str] = set()
    try:
        assert library.seccomp_attr_set(context, 2, bpf.KILL_PROCESS) == 0  # SCMP_FLTATR_ACT_BADARCH
        native = library.seccomp_arch_native()
        if native != SCMP_ARCHES[arch]:
            assert library.seccomp_arch_add(context, SCMP_ARCHES[arch]) == 0
            assert library.seccomp_arch_remove(context, native) == 0
        for rule in profile.rules:
            if rule.verdict == profile.default:
                continue  # libseccomp refuses such rules; to leave them out changes nothing
            args = (ScmpArg * 6)(
                *(
                    ScmpArg(index, SCMP_OPS[compare.removeprefix("SCMP_CMP_")], value, masked)
                    for index, compare, value, masked in rule.conditions
                )
            )
            for name in rule.names:
                number = library.seccomp_syscall_resolve_name(name.encode())
                if number == NR_SCMP_ERROR:
                    too_new.add(name)
                elif name in TABLES[arch][1]:
                    added = library.seccomp_rule_add_array(context, rule.verdict.return_value, number, len(rule.conditions), args)
                    assert added == 0, (name, added)
        memory = os.memfd_create("filter")
        try:
            assert library.seccomp_export_bpf(context, memory) == 0
            return os.pread(memory, 1 << 20, 0), too_new
        finally:
            os.close(memory)
    finally:
        library.seccomp_release(context)


def boundary_arguments(profile: Profile, name: str) -> list[list[int]]:
    """All pairs of the values in a call's rules and their neighbours, in 32 bits: beyond, libseccomp compares otherwise."""
    conditions = [condition for rule in profile.rules if name in rule.names for condition in rule.conditions]
    if not conditions:
        return [[0] * 6, [0xFFFF_FFFF] * 6]
    known = {0, 1, 16, 0xFFFF_FFFF}
    for _, compare, value, masked in conditions:
        known |= {value, masked if compare is Compare.MASKED_EQ else value}
    values = sorted({near & 0xFFFF_FFFF for value in known for near in (value - 1, value, value + 1)})
    return [[value if place == index else other for place in range(6)] for index in range(3) for value in values for other in (0, 1, 16)]


@ON_BOTH
@pytest.mark.parametrize("name", BUILT_IN)
def test_libseccomp_makes_the_same_decisions(name: str, arch: str) -> None:
    if platform.machine() not in TABLES:
        pytest.skip("libseccomp resolves names by the native table")
    profile = load_profile(name)
    audit_arch, table = TABLES[arch]
    exported, too_new = reference_program(profile, arch)
    reference, ours = bpf.decode(exported), code_of(name, arch)
    names = {number: call for call, number in table.items()}
    assert len(too_new) <= 20, sorted(too_new)
    compared = 0
    for nr in range(1200):
        call = names.get(nr, "")
        if call in too_new | ORDER_MATTERS:
            continue
        for args in boundary_arguments(profile, call):
            data = bpf.seccomp_data(nr, audit_arch, args)
            assert bpf.run_decoded(ours, data) == bpf.run_decoded(reference, data), (call, nr, args)
            compared += 1
    assert compared > 2000
    data = bpf.seccomp_data(0, bpf.I386)
    assert bpf.run_decoded(reference, data) == bpf.KILL_PROCESS


# --- the kernel ------------------------------------------------------------------------------------------------------

# Loads the filter that it reads from its standard input, and says what the kernel then answers.
PROBE = """
import ctypes, errno, os, sys
program = sys.stdin.buffer.read()
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
libc.syscall.restype = ctypes.c_long
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
prepared = Program(len(program) // 8, program)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(SECCOMP, 1, 0, ctypes.addressof(prepared), 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
def tried(number, *args):
    result = libc.syscall(number, *args, *[0] * (6 - len(args)))
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "ok"
print(os.getpid() > 0, *(tried(*call) for call in CALLS))
"""


@pytest.mark.skipif(platform.machine() not in TABLES, reason="no filter is made for this machine")
def test_the_kernel_takes_the_filter_and_answers_as_it_says() -> None:
    machine = platform.machine()
    table = TABLES[machine][1]
    calls = [
        (table["unshare"], 0x1000_0000),
        (table["keyctl"], 0),
        (table["clone3"], 0, 0),
        (table["clone"], 0x1000_0011),
        (table["ioctl"], 0, HIGH | 0x5412),
        (table["socket"], 38, 5, 0),
        (table["socket"], 16, 3, 0),
        (table["getppid"],),
        (0x4000_0000 | table["getppid"],),
    ]
    script = PROBE.replace("SECCOMP", str(table["seccomp"])).replace("CALLS", repr(calls))
    program = compile_profile(load_profile("default"), machine)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], input=program, capture_output=True, timeout=60)
    assert done.stderr == b""
    assert done.stdout.split() == b"True EPERM ENOSYS ENOSYS EPERM EPERM EAFNOSUPPORT ok ok ENOSYS".split()
