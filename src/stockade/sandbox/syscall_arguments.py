"""Which syscall arguments the kernel declares as 32-bit types, so that their upper half is thrown away unread.

From the SYSCALL_DEFINE lines of the kernel. clone's flags are an `unsigned long`, but the kernel takes lower_32_bits()
of them. Only calls that a filter has reason to look into are listed; for all others both words are compared.
"""

from __future__ import annotations

LOW_WORD_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "accept4": (0, 3),
    "arch_prctl": (0,),
    "bind": (0, 2),
    "bpf": (0, 2),
    "clone": (0,),
    "connect": (0, 2),
    "epoll_ctl": (0, 1, 2),
    "fallocate": (0, 1),
    "fcntl": (0, 1),
    "flock": (0, 1),
    "futex": (1, 2, 5),
    "getsockopt": (0, 1, 2),
    "inotify_init1": (0,),
    "ioctl": (0, 1),
    "ioprio_set": (0, 1, 2),
    "keyctl": (0,),
    "kill": (0, 1),
    "listen": (0, 1),
    "madvise": (2,),
    "memfd_create": (1,),
    "mknod": (1, 2),
    "mknodat": (0, 2, 3),
    "open": (1, 2),
    "openat": (0, 2, 3),
    "perf_event_open": (1, 2, 3),
    "personality": (0,),
    "pidfd_open": (0, 1),
    "pidfd_send_signal": (0, 1, 3),
    "prctl": (0,),
    "prlimit64": (0, 1),
    "reboot": (0, 1, 2),
    "sched_setscheduler": (0, 1),
    "seccomp": (0, 1),
    "semctl": (0, 1, 2),
    "setns": (0, 1),
    "setpriority": (0, 1, 2),
    "setsockopt": (0, 1, 2, 4),
    "shmctl": (0, 1),
    "socket": (0, 1, 2),
    "socketpair": (0, 1, 2),
    "syslog": (0, 2),
    "tgkill": (0, 1, 2),
    "tkill": (0, 1),
}
