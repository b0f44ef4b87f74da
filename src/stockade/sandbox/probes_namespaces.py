"""Trials of what makes a job a world of its own: namespaces, ids, loopback, pidfds.

Man pages: clone3(2), namespaces(7), user_namespaces(7), pidfd_open(2), netdevice(7), session-keyring(7).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from errno import ENOSPC
from functools import partial

from stockade.sandbox import namespaces, rootfs, syscalls
from stockade.sandbox.spec import JOB_GID, JOB_UID
from stockade.sandbox.trial import BOUND, NoEffect, Probe, Setting, expect_errno, in_child, stage

_KINDS = {
    "mount": ("mnt", syscalls.CLONE_NEWNS),
    "pid": ("pid", syscalls.CLONE_NEWPID),
    "ipc": ("ipc", syscalls.CLONE_NEWIPC),
    "uts": ("uts", syscalls.CLONE_NEWUTS),
    "net": ("net", syscalls.CLONE_NEWNET),
    "cgroup": ("cgroup", syscalls.CLONE_NEWCGROUP),
}
_HOSTNAME = "stockade-probe"


def _user(setting: Setting) -> str:
    return in_child(_own("user", os.readlink("/proc/self/ns/user")), flags=syscalls.CLONE_NEWUSER, setting=setting)


def _kind(kind: str, flag: int, setting: Setting) -> str:
    outside = os.readlink(f"/proc/self/ns/{kind}")
    return in_child(_own(kind, outside), flags=syscalls.CLONE_NEWUSER | flag, setting=setting)


def _own(kind: str, outside: str) -> partial[str]:
    return partial(_is_own, kind, outside)


def _is_own(kind: str, outside: str) -> str:
    inside = os.readlink(f"/proc/self/ns/{kind}")
    if inside == outside:
        raise NoEffect(f"the child is in our own {kind} namespace")
    if kind == "pid" and os.getpid() != 1:
        raise NoEffect(f"the first process of the new pid namespace is number {os.getpid()}")
    return "a child got its own"


def _together(setting: Setting) -> str:
    begin = time.monotonic()
    in_child(lambda: "", flags=syscalls.ALL_NAMESPACES | syscalls.CLONE_CLEAR_SIGHAND, setting=setting)
    return f"all seven by one clone3, made and gone in {(time.monotonic() - begin) * 1000:.1f} ms"


def _clear_sighand(setting: Setting) -> str:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        return in_child(_catches_nothing, flags=syscalls.CLONE_CLEAR_SIGHAND)
    finally:
        signal.signal(signal.SIGUSR1, before)


def _catches_nothing() -> str:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    if caught >> (signal.SIGUSR1 - 1) & 1:
        raise NoEffect("a handler of the parent is still set in the child")
    return "a child starts without the parent's handlers"


def _pidfd(setting: Setting) -> str:
    return in_child(_signal_by_pidfd)


def _signal_by_pidfd() -> str:
    pid, pidfd = syscalls.clone3(syscalls.CLONE_PIDFD)
    if pid == 0:
        signal.pause()
        os._exit(0)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(BOUND * 1000):
        raise NoEffect("a pidfd did not tell the end of its process")
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    if ended is None or ended.si_status != signal.SIGKILL:
        raise NoEffect(f"waitid tells another end: {ended}")
    return "a child was killed, watched and reaped by its pidfd"


def _id_maps(setting: Setting) -> str:
    return in_child(partial(_take_job_ids, setting.has_range), flags=syscalls.CLONE_NEWUSER, setting=setting)


def _take_job_ids(has_range: bool) -> str:
    if has_range:
        os.setresgid(JOB_GID, JOB_GID, JOB_GID)
        os.setresuid(JOB_UID, JOB_UID, JOB_UID)
    if (os.getuid(), os.getgid()) != (JOB_UID, JOB_GID):
        raise NoEffect(f"the job's ids are {os.getuid()}:{os.getgid()}, not {JOB_UID}:{JOB_GID}")
    return f"uid {JOB_UID} inside, " + ("from a range of host ids" if has_range else "the caller's own id outside")


def _nested(setting: Setting) -> str:
    flags = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
    return in_child(_forbid_nested, flags=flags, setting=setting)


def _forbid_nested() -> str:
    stage()
    os.mkdir("proc")
    syscalls.mount("proc", "proc", "proc", rootfs.PROC_FLAGS, rootfs.PROC_OPTIONS)
    proc = os.open("proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    namespaces.forbid_nested_namespaces(proc)
    expect_errno(ENOSPC, "a user namespace below ours", partial(syscalls.unshare, syscalls.CLONE_NEWUSER))
    expect_errno(ENOSPC, "a mount namespace below ours", partial(syscalls.unshare, syscalls.CLONE_NEWNS))
    return "user.max_*_namespaces = 0 holds"


def _loopback(setting: Setting) -> str:
    return in_child(_talk_to_ourselves, flags=syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET, setting=setting)


def _talk_to_ourselves() -> str:
    names = [name for _, name in socket.if_nameindex()]
    namespaces.bring_loopback_up()
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.settimeout(BOUND)
        client.connect(server.getsockname())
    return f"a connection over 127.0.0.1; interfaces: {', '.join(names)}"


def _hostname(setting: Setting) -> str:
    return in_child(_set_hostname, flags=syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWUTS, setting=setting)


def _set_hostname() -> str:
    try:
        socket.sethostname(_HOSTNAME)
    except OSError as error:
        raise syscalls.KernelError("sethostname", None, error.errno or 0) from None
    if socket.gethostname() != _HOSTNAME:
        raise NoEffect("the host name is another than the one that was set")
    return "a name of its own"


PROBES = (
    Probe("namespace.user", _user),
    *(Probe(f"namespace.{name}", partial(_kind, kind, flag)) for name, (kind, flag) in _KINDS.items()),
    Probe("namespaces", _together),
    Probe("namespaces.nested", _nested),
    Probe("identity.map", _id_maps),
    Probe("clone.clear_sighand", _clear_sighand),
    Probe("pidfd", _pidfd),
    Probe("hostname", _hostname),
    Probe("loopback", _loopback),
)
