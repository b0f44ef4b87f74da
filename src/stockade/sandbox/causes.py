"""Why a kernel primitive failed, and what to do about it: from the failing call, its errno and the facts of this host.

Pure tables and rules; the first rule that fits decides. What no rule explains is called unknown, with the call and the errno.

Man pages: clone(2), errno(3), user_namespaces(7), apparmor(7), cgroups(7). Kernel versions: the man pages' "since".
"""

from __future__ import annotations

import errno as errno_names
import os
import signal
from dataclasses import dataclass
from errno import EACCES, EBUSY, EINVAL, ENOENT, ENOSPC, ENOSYS, EPERM, EROFS

from stockade.errors import HostUnfit
from stockade.sandbox.hostfacts import Facts

# The first Linux version with each call, or with each file of a cgroup.
SINCE = {
    "clone3": "5.3",
    "close_range": "5.9",
    "keyctl": "2.6.10",
    "mount_setattr": "5.12",
    "move_mount": "5.2",
    "open_tree": "5.2",
    "openat2": "5.6",
    "pidfd_open": "5.3",
    "pidfd_send_signal": "5.1",
    "seccomp": "3.17",
    "waitid": "5.4",
    "cgroup.events": "4.5",
    "cgroup.freeze": "5.2",
    "cgroup.kill": "5.14",
    "memory.peak": "5.19",
    "pids.peak": "6.1",
    "smaps_rollup": "4.14",
}
_SHOWN = 4  # mounts that are named one by one
_UNKNOWN_FIX = "report this with the output of `stockade doctor --json`"
DELEGATE = "start under a delegated cgroup: systemd-run --user --scope -p Delegate=yes -- COMMAND"


@dataclass(frozen=True, slots=True)
class Failure:
    """What a probe saw: a call with its errno, or a process that a signal ended, or an effect that did not come."""

    call: str
    path: str | None = None
    errno: int | None = None
    signal: int | None = None
    seen: str | None = None  # what was seen instead of the effect, where no call failed

    def describe(self) -> str:
        if self.seen is not None:
            return self.seen
        if self.signal is not None:
            return f"{self.call} was ended by {_signal_name(self.signal)}"
        where = f" on {self.path}" if self.path else ""
        return f"{self.call}{where} gave {_errno_name(self.errno)}"


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failure in words, and the way out."""

    text: str
    fix: str


def cause_of(failure: Failure, facts: Facts) -> Cause:
    """The cause of a failed probe on a host of which these facts hold."""
    for rule in (_seccomp_killed, _missing_call, _missing_file, _hidden_proc, _read_only, _cgroup, _namespace, _flags, _refused):
        found = rule(failure, facts)
        if found is not None:
            return found
    return Cause(f"unknown: {failure.describe()}", _UNKNOWN_FIX)


def refused_cgroup(error: HostUnfit, facts: Facts) -> Cause:
    """Why no cgroup can be made, from what `cgroup` says of it."""
    if error.feature != "cgroup.delegation":
        return Cause(error.message, error.hint or _UNKNOWN_FIX)
    if facts.cgroup_read_only is not None:
        return _cgroup_read_only(facts.cgroup_read_only)
    return Cause(f"missing delegation: {error.message}", error.hint or DELEGATE)


def missing_controller(controller: str, facts: Facts, *, base: str, top: frozenset[str], available: frozenset[str], busy: int) -> Cause:
    """Why the cgroups of jobs below `base` lack a controller.

    `top` are the controllers of the hierarchy's root in sight, `available` those of `base`; `busy` counts the processes in `base`.
    """
    boot = "boot with systemd.unified_cgroup_hierarchy=1 (cgroup v2 alone)"
    if controller in available:
        if busy:
            return Cause(
                f"{base} has the controller, but {busy} processes sit in it, so it cannot be turned on below",
                "start stockade alone in its cgroup: systemd-run --user --scope -p Delegate=yes -- COMMAND",
            )
        return Cause(f"{base} has the controller, but it cannot be turned on below", _UNKNOWN_FIX)
    if controller in facts.v1_mounts:
        return Cause(f"it is bound to cgroup v1, mounted at {facts.v1_mounts[controller]}", boot)
    if controller in facts.v1_bound:
        return Cause("it is bound to a cgroup v1 hierarchy that is not in sight", boot)
    if controller in top:
        return Cause(
            f"it is not delegated to {base}",
            f"delegate it: systemctl edit user@.service, [Service] Delegate={controller} (or Delegate=yes on the unit)",
        )
    return Cause(
        "no cgroup in sight has it: the kernel lacks it, it is off by cgroup_disable=, or it was not given to this container",
        f"use a kernel with the {controller} controller, and give it to the container's cgroup",
    )


def _seccomp_killed(failure: Failure, facts: Facts) -> Cause | None:
    if failure.signal != signal.SIGSYS:
        return None
    return Cause(f"a seccomp filter around us ends whoever makes a call of {failure.call}", _seccomp_fix(failure.call))


def _missing_call(failure: Failure, facts: Facts) -> Cause | None:
    if failure.errno != ENOSYS:
        return None
    if facts.outer_seccomp:
        return Cause(f"a seccomp filter around us answers {failure.call} with ENOSYS", _seccomp_fix(failure.call))
    if failure.call == "keyctl":
        return Cause(f"the kernel {facts.release} was built without CONFIG_KEYS", "use a kernel with CONFIG_KEYS")
    since = SINCE.get(failure.call)
    if since is None:
        return Cause(f"the kernel {facts.release} lacks {failure.call}", "use a newer kernel")
    return Cause(f"the kernel {facts.release} lacks {failure.call}; Linux {since} has it", f"use Linux {since} or newer")


def _missing_file(failure: Failure, facts: Facts) -> Cause | None:
    name = os.path.basename(failure.path or "")
    if failure.errno != ENOENT or name not in SINCE:
        return None
    return Cause(f"the kernel {facts.release} lacks {name}; Linux {SINCE[name]} has it", f"use Linux {SINCE[name]} or newer")


def _hidden_proc(failure: Failure, facts: Facts) -> Cause | None:
    if failure.call != "mount(proc)" or failure.errno != EPERM:
        return None
    if facts.proc_covers:
        more = len(facts.proc_covers) - _SHOWN
        names = ", ".join(facts.proc_covers[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return Cause(f"/proc is masked: mounts cover parts of it ({names}), so the kernel allows no new one", _proc_fix(facts))
    if facts.proc_read_only == "/proc":
        return Cause("/proc is mounted read-only, so the kernel allows no writable one in a user namespace", _proc_fix(facts))
    return None


def _read_only(failure: Failure, facts: Facts) -> Cause | None:
    if failure.errno != EROFS or failure.path is None:
        return None
    if failure.path.startswith("/proc"):
        return Cause(f"{facts.proc_read_only or '/proc'} is mounted read-only", _proc_fix(facts))
    if facts.cgroup_read_only is not None and failure.path.startswith(facts.cgroup_read_only):
        return _cgroup_read_only(facts.cgroup_read_only)
    return Cause(f"{failure.path} lies on a read-only file system", "make it writable")


def _cgroup(failure: Failure, facts: Facts) -> Cause | None:
    name = os.path.basename(failure.path or "")
    if not name.startswith(("cgroup.", "memory.", "pids.", "cpu.", "io.", "cpuset.")):
        return None
    if failure.errno in (EACCES, EPERM):
        return Cause(f"the cgroup is not delegated to us: {failure.describe()}", DELEGATE)
    if failure.errno == EBUSY:
        return Cause(f"processes sit where only cgroups may be: {failure.describe()}", DELEGATE)
    return None


def _namespace(failure: Failure, facts: Facts) -> Cause | None:
    if failure.call not in ("clone3", "unshare"):
        return None
    if failure.errno == ENOSPC:
        if facts.exhausted:
            settings = ", ".join(f"user.max_{kind}_namespaces" for kind in facts.exhausted)
            return Cause(
                f"{settings} = 0", "allow them: " + "; ".join(f"sysctl user.max_{kind}_namespaces=15000" for kind in facts.exhausted)
            )
        return Cause(
            "no more namespaces are allowed: a limit of user.max_*_namespaces outside of us is reached, or 32 lie in one another",
            "raise the limits where this container or user session is made",
        )
    if failure.errno not in (EPERM, EACCES):
        return None
    if facts.clone_forbidden and not facts.is_admin:
        return Cause("kernel.unprivileged_userns_clone = 0", "sysctl kernel.unprivileged_userns_clone=1")
    if facts.is_chrooted:
        return Cause("this process lives in a chroot, where the kernel makes no user namespace", "start it outside of the chroot")
    return None


def _flags(failure: Failure, facts: Facts) -> Cause | None:
    if failure.errno != EINVAL:
        return None
    if failure.call == "clone3":
        return Cause(
            f"the kernel {facts.release} does not know this flag, or was built without this kind of namespace",
            "use Linux 5.7 or newer with all kinds of namespace (CONFIG_NAMESPACES, CONFIG_USER_NS)",
        )
    if failure.call == "mount_setattr":
        return Cause(
            "its file system, or one that is mounted below it, cannot be mapped to the ids of a job (ext4, xfs, tmpfs since 6.3 can)",
            "take workspaces from another file system",
        )
    return None


def _refused(failure: Failure, facts: Facts) -> Cause | None:
    """EPERM and EACCES that nothing more special explains."""
    if failure.errno not in (EPERM, EACCES):
        return None
    if facts.apparmor_restricts and not facts.is_admin:
        return Cause(
            "AppArmor takes the capabilities of unprivileged user namespaces away (kernel.apparmor_restrict_unprivileged_userns = 1)",
            "give this program an AppArmor profile with `userns,`, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if facts.outer_seccomp:
        return Cause(f"most likely a seccomp filter around us, which refuses {failure.call}", _seccomp_fix(failure.call))
    if failure.call in ("clone3", "unshare"):
        return Cause(
            "most likely a chroot, in which the kernel makes no user namespace; else a rule of a security module",
            "start it outside of the chroot, or let the security module allow user namespaces",
        )
    if facts.is_root and not facts.is_admin:
        return Cause("we are root without CAP_SYS_ADMIN", "start as an ordinary user, or with the capability")
    return None


def _cgroup_read_only(point: str) -> Cause:
    return Cause(
        f"the cgroup2 file system at {point} is mounted read-only",
        "mount it writable; in a container, give it its own cgroup namespace with a writable cgroup file system",
    )


def _seccomp_fix(call: str) -> str:
    name = call.partition("(")[0]
    return f"let the outer filter allow {name}: a profile of its own, or --security-opt seccomp=unconfined for the container"


def _proc_fix(facts: Facts) -> str:
    if facts.container is None and facts.proc_covers:
        return "take them away: " + "; ".join(f"umount {point}" for point in facts.proc_covers[:_SHOWN])
    return (
        "start the container with an unmasked /proc: docker --security-opt systempaths=unconfined, "
        "podman --security-opt unmask=ALL, kubernetes procMount: Unmasked"
    )


def _errno_name(number: int | None) -> str:
    return "an error without a number" if number is None else f"{errno_names.errorcode.get(number, str(number))} ({os.strerror(number)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
