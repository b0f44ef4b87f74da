"""Trials of what takes power away: no_new_privs, capabilities, securebits, filters, descriptors, keyrings, core dumps.

Man pages: prctl(2), capabilities(7), seccomp(2), close_range(2), session-keyring(7), core(5), proc_pid_smaps(5).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
from errno import EBADF, EDOM, EINVAL, EPERM
from functools import partial

from stockade.sandbox import syscall_tables, syscalls
from stockade.sandbox.trial import BOUND, Died, NoEffect, Probe, Setting, expect_errno, in_child

_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_LAST_CAPABILITY = 63
_TABLES = {"x86_64": syscall_tables.X86_64, "aarch64": syscall_tables.AARCH64}
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def _prctl(setting: Setting) -> str:
    return in_child(_use_prctl)


def _use_prctl() -> str:
    try:
        import prctl
    except ImportError as error:
        raise NoEffect(f"python-prctl cannot be imported: {error}") from None
    prctl.set_dumpable(0)
    if prctl.get_dumpable():
        raise NoEffect("PR_SET_DUMPABLE does not hold")
    return "python-prctl works"


def _no_new_privs(setting: Setting) -> str:
    return in_child(_set_no_new_privs)


def _set_no_new_privs() -> str:
    import prctl

    prctl.set_no_new_privs(1)
    if _status("NoNewPrivs") != "1":
        raise NoEffect("it does not hold")
    return "set and read back"


def _capabilities(setting: Setting) -> str:
    # Imported here: without its ids, the child may be unable to read the interpreter's own files.
    from stockade.sandbox.privileges import LOCKED_SECUREBITS

    return in_child(partial(_drop_capabilities, LOCKED_SECUREBITS), flags=syscalls.CLONE_NEWUSER, setting=setting)


def _drop_capabilities(locked: int) -> str:
    """The order of `privileges.drop_all`, with every refusal named."""
    syscalls.clear_ambient_capabilities()
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            syscalls.drop_bounding_capability(capability)
        except OSError as error:
            if error.errno == EINVAL and capability > 0:
                break  # past the last one that this kernel knows
            raise
    syscalls.set_securebits(locked)
    syscalls.clear_capabilities()
    left = [name for name in _CAPABILITY_SETS if int(_status(name), 16)]
    if left or syscalls.get_securebits() != locked:
        raise NoEffect(f"not empty or not locked afterwards: {', '.join(left) or 'securebits'}")
    expect_errno(EPERM, "taking a locked securebit back", partial(syscalls.set_securebits, 0))
    return "all five sets empty, securebits locked"


def _seccomp(setting: Setting) -> str:
    in_child(_be_filtered)
    try:
        in_child(_be_killed)
    except Died as death:
        if death.number == signal.SIGSYS:
            return "a filter refuses a call, and one ends the process"
        raise
    raise NoEffect("a filter that kills the process did not")


def _be_filtered() -> str:
    _load(_ERRNO | EDOM)
    expect_errno(EDOM, "a call that the filter refuses", os.sched_yield)
    return ""


def _be_killed() -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _load(_KILL)
    os.sched_yield()
    return ""


def _load(action: int) -> None:
    """A filter with `action` for sched_yield(2), and every other call allowed."""
    import prctl

    machine = os.uname().machine
    if machine not in _TABLES:
        raise NoEffect(f"there are no filters for the architecture {machine}")
    number = _TABLES[machine]["sched_yield"]
    program = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, action), (0x06, 0, 0, _ALLOW)]
    prctl.set_no_new_privs(1)
    syscalls.seccomp_set_filter(b"".join(struct.pack("<HBBI", *instruction) for instruction in program))


def _close_range(setting: Setting) -> str:
    return in_child(_close_descriptors)


def _close_descriptors() -> str:
    first = os.open("/", os.O_PATH | os.O_CLOEXEC)
    second = os.dup(first)
    syscalls.close_range(first, first)
    expect_errno(EBADF, "using a descriptor after its close", partial(os.fstat, first))
    os.fstat(second)
    return "closes what it is given and nothing else"


def _keyring(setting: Setting) -> str:
    return in_child(_join_keyring)


def _join_keyring() -> str:
    syscalls.join_new_session_keyring()
    return "a session keyring of its own"


def _parent_death(setting: Setting) -> str:
    return in_child(_orphan)


def _orphan() -> str:
    """A grandchild asks for SIGKILL on its parent's end; then its parent ends, and the grandchild's pipe must be closed."""
    import prctl

    alive_read, alive_write = os.pipe2(os.O_CLOEXEC)
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    parent = os.fork()  # noqa: TID251 - one trial, in a child of the probe program
    if parent == 0:
        if os.fork() == 0:  # noqa: TID251
            try:
                signal.alarm(int(BOUND))  # it ends in any case
                prctl.set_pdeathsig(signal.SIGKILL)
                os.write(ready_write, b"r")
                while True:
                    signal.pause()
            finally:
                os._exit(0)
        os.read(ready_read, 1)
        os._exit(0)
    os.close(alive_write)
    os.waitpid(parent, 0)
    poll = select.poll()
    poll.register(alive_read, select.POLLIN)
    if not poll.poll(BOUND * 500):
        raise NoEffect("a process that asked for SIGKILL outlived its parent")
    return "a process dies with its parent"


def _core(setting: Setting) -> str:
    with open("/proc/sys/kernel/core_pattern", encoding="utf-8", errors="replace") as file:
        pattern = file.read().strip()
    try:
        in_child(_abort)
    except Died as death:
        if death.dumped_core:
            raise NoEffect(f"a process with RLIMIT_CORE = 1 left a core dump (core_pattern {pattern!r})") from None
        to = "a program of the host" if pattern.startswith("|") else "a file"
        return f"none under RLIMIT_CORE = 1, where core_pattern sends them to {to}"
    raise NoEffect("a process outlived abort")


def _abort() -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()


def _smaps(setting: Setting) -> str:
    path = "/proc/self/smaps_rollup"
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if line.startswith("Pss:"))
    except OSError as error:
        raise syscalls.KernelError("open", path, error.errno or 0) from None
    if "Pss" not in fields:
        raise NoEffect(f"{path} does not tell the proportional size")
    return "the proportional size of a process can be read"


def _status(name: str) -> str:
    with open("/proc/self/status", "rb", buffering=0) as status:  # bytes: text would have the child import its codec
        return next(line.split()[1].decode() for line in status.read().splitlines() if line.startswith(f"{name}:".encode()))


PROBES = (
    Probe("python-prctl", _prctl),
    Probe("no_new_privs", _no_new_privs),
    Probe("capabilities", _capabilities),
    Probe("seccomp", _seccomp),
    Probe("close_range", _close_range),
    Probe("keyring", _keyring),
    Probe("parent_death_signal", _parent_death),
    Probe("core_dumps", _core),
    Probe("smaps_rollup", _smaps, required=False),
)
