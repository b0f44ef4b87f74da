"""User namespaces: who a job's ids are outside, and the ban on namespaces below ours.

Man pages: user_namespaces(7), namespaces(7), mount_setattr(2) for idmapped mounts (5.12).
"""

from __future__ import annotations

import os
import socket
import struct
from fcntl import ioctl

from stockade.sandbox import syscalls

SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")

# One line of an id map: first id inside, first id outside, how many.
IdMap = tuple[int, int, int]


def write_id_maps(pid: int, uid_map: IdMap, gid_map: IdMap, *, deny_setgroups: bool) -> None:
    """Gives the new user namespace of a waiting child its ids.

    `deny_setgroups` must be true where the writer is not privileged over its own namespace (CVE-2014-8989).
    """
    if deny_setgroups:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/gid_map", "{} {} {}".format(*gid_map))
    _write(f"/proc/{pid}/uid_map", "{} {} {}".format(*uid_map))


def raise_oom_score(pid: int, score: int) -> None:
    """Makes a process the kernel's first choice when the whole host is out of memory (proc_pid_oom_score_adj(5))."""
    _write(f"/proc/{pid}/oom_score_adj", str(score))


def make_idmap(uid_map: IdMap, gid_map: IdMap) -> int:
    """A descriptor of a user namespace with these maps, for an idmapped mount; needs root."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = syscalls.clone3(syscalls.CLONE_NEWUSER | syscalls.CLONE_PIDFD | syscalls.CLONE_CLEAR_SIGHAND)
    if pid == 0:
        os.close(write_end)  # or the end of the parent would never be noticed
        os.read(read_end, 1)
        os._exit(0)
    try:
        write_id_maps(pid, uid_map, gid_map, deny_setgroups=False)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(read_end)
        os.close(write_end)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)


def become_namespace_root(*, has_range: bool) -> None:
    """Takes uid 0 of the new namespace, where it has one, so that what init makes does not belong to the job."""
    if has_range:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def bring_loopback_up() -> None:
    """Sets IFF_UP on lo; the kernel then adds 127.0.0.1/8 and ::1 (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        try:
            _, flags = struct.unpack("16sh14x", ioctl(control, SIOCGIFFLAGS, request))
            ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
        except OSError as error:
            raise syscalls.KernelError("ioctl(SIOCSIFFLAGS)", "lo", error.errno or 0) from None


def forbid_nested_namespaces(proc: int) -> None:
    """Writes 0 to user.max_*_namespaces of our namespace, which needs CAP_SYS_RESOURCE there; `proc` is a fresh procfs.

    The job cannot raise them again: it has no capability.
    """
    for kind in _NAMESPACES:
        path = f"sys/user/max_{kind}_namespaces"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=proc)
            try:
                os.write(descriptor, b"0")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise syscalls.KernelError("write", f"/proc/{path}", error.errno or 0) from None


def bound_watches(proc: int, instances: int, watches: int) -> None:
    """Bounds what inotify(7) may hold in our user namespace: it is charged to whoever made that, and so to the host's own user as well."""
    for name, most in (("instances", instances), ("watches", watches)):
        try:
            descriptor = os.open(f"sys/user/max_inotify_{name}", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=proc)
        except FileNotFoundError:  # a kernel without inotify
            continue
        try:
            os.write(descriptor, str(most).encode())
        finally:
            os.close(descriptor)


def bound_system_v(proc: int, shm_bytes: int | None) -> None:
    """Bounds what System V IPC may hold in our ipc namespace: it is kernel memory, which belongs to no process.

    All shared memory together gets `shm_bytes` (kernel.shmall; None: the kernel's own bound), semaphores and message queues a few MiB.
    Before Linux 5.19 only the host's root may write these; there the kernel's own bounds stay.
    """
    bounds = [("sem", "32000 32000 500 256"), ("msgmni", "256")]  # sem: in an array, in all, in one call, arrays
    if shm_bytes is not None:
        bounds.append(("shmall", str(max(1, shm_bytes // os.sysconf("SC_PAGE_SIZE")))))
    for name, value in bounds:
        try:
            descriptor = os.open(f"sys/kernel/{name}", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=proc)
        except PermissionError:
            continue
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)


def _write(path: str, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise syscalls.KernelError("write", path, error.errno or 0) from None
