"""Giving up power for good, and proof of it: capabilities, securebits, no_new_privs, the filter, descriptors.

Man pages: capabilities(7), prctl(2), seccomp(2), close_range(2).
"""

from __future__ import annotations

import os
import resource
import signal
from errno import EINVAL

import prctl

from stockade.sandbox import syscalls

# NOROOT, NO_SETUID_FIXUP, KEEP_CAPS (off) and NO_CAP_AMBIENT_RAISE, each with its lock bit (linux/securebits.h).
LOCKED_SECUREBITS = 0b11101111
UNMAPPED_ID = 65534
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


class StillPrivileged(OSError):
    """What was dropped is still there: the kernel's own report does not show the state that was asked for."""

    call = "read back"


def die_with_parent() -> None:
    """Asks for SIGKILL when the parent's thread ends; a fork and any change of ids clear this, so it is asked for again."""
    prctl.set_pdeathsig(signal.SIGKILL)


def refuse_inspection() -> None:
    """Makes this process non-dumpable: a job with the same uid can neither trace it nor read its /proc entries."""
    prctl.set_dumpable(0)


def drop_all(uid: int, gid: int, filter_program: bytes) -> None:
    """Becomes the job's user without any capability, under the filter, for good; then reads it all back.

    The bounding set is emptied before capset (it needs CAP_SETPCAP) and the ids change before it, because with NO_SETUID_FIXUP
    locked the kernel drops nothing by itself.

    Raises: KernelError; StillPrivileged, where /proc/self/status disagrees.
    """
    syscalls.clear_ambient_capabilities()
    _empty_bounding_set()
    syscalls.set_securebits(LOCKED_SECUREBITS)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    syscalls.clear_capabilities()
    refuse_inspection()
    die_with_parent()
    prctl.set_no_new_privs(1)
    syscalls.seccomp_set_filter(filter_program)
    _verify(uid, gid)


def _empty_bounding_set() -> None:
    capability = 0
    while True:
        try:
            syscalls.drop_bounding_capability(capability)
        except OSError:  # EINVAL: past the last capability that this kernel knows; anything else is found by _verify
            return
        capability += 1


def _verify(uid: int, gid: int) -> None:
    fields = _own_status()
    wrong = [name for name in _CAPABILITY_SETS if int(fields[name], 16) != 0]
    if fields["NoNewPrivs"] != "1":
        wrong.append("NoNewPrivs")
    if fields["Seccomp"] != "2":
        wrong.append("Seccomp")
    if fields["Uid"].split() != [str(uid)] * 4 or fields["Gid"].split() != [str(gid)] * 4:
        wrong.append("Uid or Gid")
    # Rootless, setgroups(2) is denied: what the caller had is left, and shows as unmapped; its own group, which a login lists among
    # the supplementary ones (initgroups(3)), is the job's.
    if not set(os.getgroups()) <= {UNMAPPED_ID, gid}:
        wrong.append("Groups")
    if syscalls.get_securebits() != LOCKED_SECUREBITS:
        wrong.append("securebits")
    if wrong:
        raise StillPrivileged(1, f"not dropped: {', '.join(wrong)}", "/proc/self/status")


def _own_status() -> dict[str, str]:
    """/proc/self/status by name. Raw reads: a text file object costs a freshly cloned interpreter a millisecond."""
    descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(descriptor, 16384).decode("ascii", "replace")
    finally:
        os.close(descriptor)
    return dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)


def set_limits(limits: list[tuple[str, int]]) -> None:
    """Sets each (name, value) of getrlimit(2), soft and hard alike; a hard limit that is lower already stays."""
    for name, value in limits:
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        try:
            resource.setrlimit(number, (value, value))
        except (OSError, ValueError) as error:
            raise syscalls.KernelError("setrlimit", f"RLIMIT_{name}", getattr(error, "errno", None) or EINVAL) from None


def default_signals() -> None:
    """Nothing ignored and nothing blocked, for this process and all that it starts.

    CLONE_CLEAR_SIGHAND and exec leave ignored signals ignored, and Python ignores SIGPIPE and SIGXFSZ.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
