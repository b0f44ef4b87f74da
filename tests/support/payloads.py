"""Attacks as one stand-alone program: each attempt runs in a child of its own and is told by its errno, its signal or its result.

    python3 payloads.py GROUP [ARGUMENT ...]      prints one JSON object: attempt -> "EPERM", "SIGSYS" or what it got

The same file runs inside a sandbox and, as its control, outside or behind a wall fewer. Every attempt ends by itself within
10 s, takes little, opens what it must not have without reading more than a few bytes, and undoes what it could do.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import json
import mmap
import os
import resource
import signal
import socket
import stat
import struct
import sys
import termios
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
BOUND = 10  # seconds for one attempt
COLD = 20  # MADV_COLD: may be asked for another process's memory on every kernel that has process_madvise(2)

NAMESPACES = {
    "user": 0x10000000,
    "mnt": 0x20000,
    "pid": 0x20000000,
    "ipc": 0x8000000,
    "uts": 0x4000000,
    "net": 0x40000000,
    "cgroup": 0x2000000,
    "time": 0x80,
}
# Numbers of x86-64; from 424 on they are those of every architecture.
X86_64 = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "mknod": 133, "clone": 56, "unshare": 272, "setns": 308,
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "keyctl": 250, "add_key": 248, "request_key": 249,
    "userfaultfd": 323, "bpf": 321, "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304, "personality": 135,
    "syslog": 103, "reboot": 169, "swapon": 167, "init_module": 175, "delete_module": 176, "kexec_load": 246, "iopl": 172,
    "ioperm": 173, "acct": 163, "quotactl": 179, "settimeofday": 164, "adjtimex": 159, "sethostname": 170, "setdomainname": 171,
    "vmsplice": 278, "modify_ldt": 154, "fanotify_init": 300, "mbind": 237, "move_pages": 279, "mq_open": 240, "memfd_secret": 447,
    "io_setup": 206, "lookup_dcookie": 212, "prlimit64": 302, "tgkill": 234, "get_robust_list": 274, "setfsuid": 122,
    "ioprio_set": 251, "rt_sigqueueinfo": 129, "process_mrelease": 448,
}  # fmt: skip
COMMON = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "statmount": 457, "listmount": 458,
}  # fmt: skip
NUMBERS = X86_64 | COMMON


def call(name: str | int, *args: object) -> int:
    """A raw system call. Raises: OSError."""
    number = NUMBERS[name] if isinstance(name, str) else name
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in args]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return int(result)


def attempt(function, *args) -> object:
    """The result of a call made in a child process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            signal.alarm(BOUND)
            try:
                answer = function(*args)
                answer = "OK" if answer is None else answer
            except OSError as error:
                answer = errno.errorcode.get(error.errno, str(error))
            except ValueError as error:  # how Python's resource module says EPERM
                answer = str(error)
            os.write(write_end, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    said = b""
    while piece := os.read(read_end, 65536):
        said += piece
    os.close(read_end)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return json.loads(said) if said else "nothing"


# --- namespaces ------------------------------------------------------------------------------------------------------


def namespaces() -> dict:
    """Every way into a new or another namespace."""
    answers = {}
    for name, flag in NAMESPACES.items():
        answers[f"unshare {name}"] = attempt(call, "unshare", flag)
        if name != "time":  # its bit lies in clone(2)'s exit signal
            answers[f"clone {name}"] = attempt(_clone, flag)
        answers[f"clone3 {name}"] = attempt(_clone3, flag)
        answers[f"setns {name}"] = attempt(_setns, name, flag)
        if name != "user":
            answers[f"unshare user+{name}"] = attempt(call, "unshare", NAMESPACES["user"] | flag)
    answers["clone with high bits"] = attempt(_clone, NAMESPACES["user"] | 1 << 32)
    return answers


def _clone(flags: int) -> None:
    pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _clone3(flags: int) -> None:
    arguments = ctypes.create_string_buffer(struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
    pid = call("clone3", ctypes.byref(arguments), 64)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _setns(name: str, flag: int) -> None:
    descriptor = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
    call("setns", descriptor, flag)


def id_maps() -> dict:
    """Rewriting who one is."""
    return {name: attempt(_write, f"/proc/self/{name}", text) for name, text in
            (("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "deny"))}  # fmt: skip


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, text.encode())


# --- other system call tables ----------------------------------------------------------------------------------------


def foreign_tables() -> dict:
    """getpid, unshare, keyctl and socketcall by the native table, by x32 numbers and by int 0x80."""
    answers = {}
    for name, native, i386, arguments in (
        ("getpid", 39, 20, (0, 0, 0)),
        ("unshare", 272, 310, (0, 0, 0)),
        ("keyctl", 250, 288, (0, -3, 0)),
        ("clone3", 435, 435, (0, 0, 0)),
        ("mount", 165, 21, (0, 0, 0)),
    ):
        answers[f"native {name}"] = attempt(_ok, call, native, *arguments)
        answers[f"x32 {name}"] = attempt(_ok, call, native | 0x40000000, *arguments)
        answers[f"int80 {name}"] = attempt(_ok, _int80, i386, *arguments)
    answers["int80 socketcall"] = attempt(_ok, _int80, 102, 1, 0, 0)
    return answers


def _ok(function, *args) -> None:
    function(*args)


def _int80(number: int, first: int, second: int, third: int) -> None:
    # push rbx; mov rax,rdi; mov rbx,rsi; mov rcx,rdx; mov rdx,r8; int 0x80; pop rbx; ret
    code = b"\x53\x48\x89\xf8\x48\x89\xf3\x48\x89\xd1\x4c\x89\xc2\xcd\x80\x5b\xc3"
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_long] * 5)(address)
    result = function(number, first, second, 0, third)
    if result < 0:
        raise OSError(-result, "int 0x80")


# --- another process -------------------------------------------------------------------------------------------------


def intrude(target: str) -> dict:
    """Looking into, tracing and ending another process: pid 1, or ("child") an ordinary one of our own as control."""
    child = 0
    if target == "child":
        ready, begun = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(3 * BOUND)
            # Tracing is tried by a brother of it, which Yama lets do so only where it is permitted (PR_SET_PTRACER, prctl(2)).
            libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
            os.write(begun, b"b")
            while True:
                signal.pause()
        os.read(ready, 1)
    pid = child or int(target)
    answers = {}
    for name in (
        "mem",
        "maps",
        "environ",
        "cmdline",
        "auxv",
        "fd/0",
        "root/.",
        "cwd/.",
        "exe",
        "ns/pid",
        "task/" + str(pid) + "/mem",
        "status",
    ):
        answers[f"open {name}"] = _opened(f"/proc/{pid}/{name}")
    answers["ptrace seize"] = attempt(lambda: call("ptrace", 0x4206, pid, 0, 0) and None)
    answers["ptrace attach"] = attempt(_attach, pid)
    answers["process_vm_readv"] = attempt(_vm, "process_vm_readv", pid)
    answers["process_vm_writev"] = attempt(_vm, "process_vm_writev", pid)
    answers["kcmp"] = attempt(lambda: call("kcmp", pid, pid, 0, 0, 0) and None)
    answers["get_robust_list"] = attempt(_robust_list, pid)
    answers["prlimit"] = attempt(lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE) and None)
    answers["pidfd_getfd"] = attempt(lambda: call("pidfd_getfd", os.pidfd_open(pid), 0, 0) and None)
    answers["process_madvise"] = attempt(lambda: call("process_madvise", os.pidfd_open(pid), 0, 0, COLD, 0) and None)
    answers["process_mrelease"] = attempt(lambda: call("process_mrelease", os.pidfd_open(pid), 0) and None)
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return answers


def _opened(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "OK"


def _attach(pid: int) -> None:
    call("ptrace", 16, pid, 0, 0)
    os.waitpid(pid, 0x40000000)
    call("ptrace", 17, pid, 0, 0)


def _vm(name: str, pid: int) -> None:
    buffer = ctypes.create_string_buffer(8)
    local = ctypes.create_string_buffer(struct.pack("2Q", ctypes.addressof(buffer), 8))
    # A forked child has the buffer at our address; init, which was forked too, has something there or EFAULT.
    call(name, pid, ctypes.byref(local), 1, ctypes.byref(local), 1, 0)


def _robust_list(pid: int) -> None:
    head, length = ctypes.c_void_p(), ctypes.c_size_t()
    call("get_robust_list", pid, ctypes.byref(head), ctypes.byref(length))


def signal_init(rounds: str) -> dict:
    """Every signal to pid 1 by every call, `rounds` times over; what counts is that we are still there to tell."""
    numbers = [number for number in range(1, 65) if number not in (32, 33)]
    refused = set()
    pidfd = os.pidfd_open(1)
    for _ in range(int(rounds)):
        for number in numbers:
            for send in (
                lambda number=number: os.kill(1, number),
                lambda number=number: call("tgkill", 1, 1, number),
                lambda number=number: signal.pidfd_send_signal(pidfd, number),
            ):
                try:
                    send()
                except OSError as error:
                    refused.add(errno.errorcode[error.errno])
    # Made slow and stopped in every other way that the same uid allows.
    ways = {
        "nice": attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)),
        "idle class": attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))),
        "real time": attempt(lambda: os.sched_setscheduler(1, os.SCHED_FIFO, os.sched_param(1))),
    }
    time.sleep(0.1)  # for whatever of that would have ended us
    return {"refused": sorted(refused), "parent": os.getppid(), **ways}


def kill_all(number: str) -> dict:
    """kill(-1): a child of our own must die of it."""
    child = os.fork()
    if child == 0:
        signal.alarm(3 * BOUND)
        while True:
            signal.pause()
    os.kill(-1, int(number))
    return {"child": os.WTERMSIG(os.waitpid(child, 0)[1])}


# --- terminals -------------------------------------------------------------------------------------------------------


def terminals() -> dict:
    """Typing into one's own controlling terminal, pasting, line disciplines; with and without bits above 32."""
    answers = {}
    for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C), ("TIOCSETD", 0x5423), ("TIOCGWINSZ", 0x5413)):
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            answers[f"{name} {high >> 32:#x}"] = attempt(_terminal, request | high)
    return answers


def _terminal(request: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # or the end of our terminal would end us
    master, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    argument = ctypes.create_string_buffer(b"\0" * 16)
    result = libc.syscall(ctypes.c_long(16), ctypes.c_long(slave), ctypes.c_ulong(request), ctypes.byref(argument))
    if result < 0:
        raise OSError(ctypes.get_errno(), "ioctl")
    os.close(master)


def ptys(wanted: str) -> dict:
    """How many terminals can be had at once, over several processes."""
    got, children = 0, []
    for _ in range(4):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(3 * BOUND)
            mine = []
            try:
                while len(mine) < int(wanted) // 4:
                    mine.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
                why = "OK"
            except OSError as error:
                why = errno.errorcode[error.errno]
            os.write(write_end, f"{len(mine)} {why}".encode())
            while True:
                signal.pause()
        os.close(write_end)
        children.append((pid, read_end))
    reasons = set()
    for pid, read_end in children:
        count, why = os.read(read_end, 100).decode().split()
        got += int(count)
        reasons.add(why)
    for pid, _ in children:  # not before all have tried: with each, what it has is given back
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"got": got, "reasons": sorted(reasons)}


# --- sockets ---------------------------------------------------------------------------------------------------------


def sockets() -> dict:
    """Families and netlink protocols that can be opened, and what the rest answers."""
    answers = {}
    for family in range(1, 46):
        for kind in (socket.SOCK_STREAM, socket.SOCK_RAW):
            answers.setdefault(f"family {family}", []).append(attempt(_socket, family, kind, 0))
    for protocol in range(1, 23):
        answers[f"netlink {protocol}"] = attempt(_socket, 16, socket.SOCK_RAW, protocol)
    for name, arguments in (
        ("raw icmp", (2, socket.SOCK_RAW, 1)),
        ("raw icmp6", (10, socket.SOCK_RAW, 58)),
        ("packet", (17, socket.SOCK_RAW, 0x300)),
        ("ping", (2, socket.SOCK_DGRAM, 1)),
        ("vsock", (40, socket.SOCK_STREAM, 0)),
        ("alg", (38, socket.SOCK_SEQPACKET, 0)),
        ("rxrpc", (33, socket.SOCK_DGRAM, 2)),
        ("family with high bits", (2**31 + 40, socket.SOCK_STREAM, 0)),
    ):
        answers[name] = attempt(_socket, *arguments)
    answers["pair of tipc"] = attempt(lambda: call(53, 30, 1, 0, ctypes.byref(ctypes.create_string_buffer(8))) and None)
    return answers


def _socket(family: int, kind: int, protocol: int) -> None:
    call(41, family, kind, protocol)


def connect_abstract(name: str) -> dict:
    return {"abstract": attempt(_connect, "\0" + name), "netns": os.readlink("/proc/self/ns/net")}


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(BOUND)
        client.connect(address)


# --- files of the kernel ---------------------------------------------------------------------------------------------


def sysctls() -> dict:
    """Opens every file below /proc/sys for writing, and writes to none."""
    answers: dict[str, int] = {}
    opened = []
    for top, _, files in os.walk("/proc/sys"):
        for name in files:
            path = os.path.join(top, name)
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                kind = errno.errorcode[error.errno]
            else:
                kind = "OPENED"
                opened.append(path)
            answers[kind] = answers.get(kind, 0) + 1
    read_only = bool(os.statvfs("/proc/sys").f_flag & os.ST_RDONLY)
    return {"counts": answers, "opened": opened[:20], "read only": read_only}


def kernel_files() -> dict:
    """Which files of /proc can be opened for writing at all, and what is under the masked names."""
    writable = []
    for path in glob.glob("/proc/*") + glob.glob("/proc/*/*"):
        if path.split("/")[2].isdigit() or path.startswith(("/proc/self", "/proc/thread-self", "/proc/sys")):
            continue
        try:
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                writable.append(path)
        except OSError:
            continue
    masked = {}
    files = "cmdline interrupts kcore keys key-users kmsg timer_list sched_debug latency_stats locks softirqs"
    for name in (*files.split(), "acpi", "scsi", "asound"):
        path = f"/proc/{name}"
        if os.path.isdir(path):
            masked[name] = os.listdir(path)
        elif os.path.exists(path):
            masked[name] = attempt(lambda path=path: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 16).decode("latin-1"))
    return {"writable": writable, "masked": masked, "oom_score_adj": attempt(_write, "/proc/self/oom_score_adj", "-1")}


def devices() -> dict:
    """What /dev holds, and making more."""
    answers = {}
    for name in sorted(os.listdir("/dev")):
        found = os.lstat(f"/dev/{name}")
        if stat.S_ISCHR(found.st_mode):
            answers[name] = f"char {os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        else:
            answers[name] = {stat.S_IFLNK: "link", stat.S_IFDIR: "dir", stat.S_IFBLK: "block"}.get(stat.S_IFMT(found.st_mode), "other")
    return answers


def nodes(directory: str) -> dict:
    """mknod of devices, by both calls; what could be made is removed."""
    answers = {}
    for name, mode, device in (
        ("memory", stat.S_IFCHR, os.makedev(1, 1)),
        ("disk", stat.S_IFBLK, os.makedev(254, 0)),
        ("null", stat.S_IFCHR, os.makedev(1, 3)),
        ("fifo", stat.S_IFIFO, 0),
    ):
        path = f"{directory}/{name}"
        answers[name] = attempt(os.mknod, path, mode | 0o666, device)
        answers[f"{name} by mknod"] = attempt(
            lambda path=path, mode=mode, device=device: call("mknod", path.encode() + b"2", mode | 0o666, device) and None
        )
        for made in (path, f"{path}2"):
            if os.path.lexists(made):
                os.unlink(made)
    return answers


def privileged_files(directory: str, bit: str) -> dict:
    """Leaving a file with S_ISUID ("4000") or S_ISGID ("2000") behind, by every call that can set it; the modes that came of it."""
    special = int(bit, 8)
    mode = special | 0o755
    ways = {
        "chmod": lambda path: (_touch(path), os.chmod(path, mode)),
        "fchmod": lambda path: os.fchmod(os.open(path, os.O_CREAT | os.O_WRONLY), mode),
        "fchmodat": lambda path: (_touch(path), call(268, -100, path.encode(), mode)),
        "fchmodat2": lambda path: (_touch(path), call(452, -100, path.encode(), mode, 0)),
        "creat": lambda path: call(85, path.encode(), mode),
        "open": lambda path: call(2, path.encode(), os.O_CREAT | os.O_WRONLY, mode),
        "openat": lambda path: os.open(path, os.O_CREAT | os.O_WRONLY, mode),
        "openat high bits": lambda path: call(257, -100, path.encode(), os.O_CREAT | os.O_WRONLY, mode | 1 << 40),
        "openat2": lambda path: call("openat2", -100, path.encode(), ctypes.byref(ctypes.create_string_buffer(struct.pack("3Q", os.O_CREAT | os.O_WRONLY, mode, 0))), 24),
        "tmpfile": lambda path: os.link(f"/proc/self/fd/{os.open(directory, os.O_TMPFILE | os.O_WRONLY, mode)}", path, follow_symlinks=True),
        "mknod": lambda path: call("mknod", path.encode(), stat.S_IFREG | mode, 0),
        "mknodat": lambda path: os.mknod(path, stat.S_IFREG | mode),
    }  # fmt: skip
    answers = {}
    for name, way in ways.items():
        path = f"{directory}/{name.replace(' ', '-')}"
        answers[name] = attempt(lambda way=way, path=path: way(path) and None)
        if os.path.exists(path):
            answers[name] = "left with the bit" if os.stat(path).st_mode & special else "left without the bit"
    ordinary = f"{directory}/ordinary"
    _touch(ordinary)
    answers["chmod 0755"] = attempt(os.chmod, ordinary, 0o755)
    answers["chmod 1777 of a directory"] = attempt(
        lambda: (os.mkdir(f"{directory}/sticky"), os.chmod(f"{directory}/sticky", 0o1777)) and None
    )
    answers["chmod of a directory"] = attempt(lambda: (os.mkdir(f"{directory}/shared"), os.chmod(f"{directory}/shared", mode)) and None)
    # Without O_CREAT the mode is not looked at, and whatever is in the register must do no harm.
    answers["open with a mode that does not count"] = attempt(lambda: call(257, -100, ordinary.encode(), os.O_RDONLY, 0o7777) and None)
    return answers


def _touch(path: str) -> bool:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    return True


# --- mounts ----------------------------------------------------------------------------------------------------------


def mounts(directory: str) -> dict:
    """The mount system calls, old and new, and leaving the root."""
    place = directory.encode()
    made = ctypes.create_string_buffer(struct.pack("4Q", 1, 0, 0, 0))
    return {
        "mount tmpfs": attempt(lambda: call("mount", b"none", place, b"tmpfs", 0, 0) and None),
        "mount proc": attempt(lambda: call("mount", b"none", place, b"proc", 0, 0) and None),
        "bind": attempt(lambda: call("mount", place, place, 0, 0x1000, 0) and None),
        "remount /usr writable": attempt(lambda: call("mount", b"none", b"/usr", 0, 0x1020, 0) and None),
        "make / private": attempt(lambda: call("mount", b"none", b"/", 0, 0x44000, 0) and None),
        "umount": attempt(lambda: call("umount2", b"/proc", 2) and None),
        "fsopen": attempt(lambda: call("fsopen", b"tmpfs", 0) and None),
        "fspick": attempt(lambda: call("fspick", -100, b"/", 0) and None),
        "open_tree": attempt(lambda: call("open_tree", -100, b"/usr", 1) and None),
        "move_mount": attempt(lambda: call("move_mount", -100, b"/proc", -100, place, 0) and None),
        "mount_setattr": attempt(lambda: call("mount_setattr", -100, b"/", 0, ctypes.byref(made), 32) and None),
        "pivot_root": attempt(lambda: call("pivot_root", b"/", b"/") and None),
        "chroot": attempt(lambda: os.chroot("/")),
    }


def own_mounts(directory: str) -> dict:
    """The same calls in a mount namespace of our own, which only root of a namespace may have: the control."""
    if os.fork() == 0:
        call("unshare", NAMESPACES["mnt"])
        call("mount", b"none", b"/", 0, 0x44000, 0)
        print(json.dumps(mounts(directory)), flush=True)
        os._exit(0)
    os.wait()
    sys.exit(0)


# --- single system calls ---------------------------------------------------------------------------------------------


def calls() -> dict:
    """System calls that open the kernel; with arguments that do nothing even where the call is allowed."""
    zero = ctypes.byref(ctypes.create_string_buffer(256))
    wanted: list[tuple[str, tuple[object, ...]]] = [
        ("io_uring_setup", (0, zero)), ("io_uring_enter", (-1, 0, 0, 0, 0, 0)), ("io_uring_register", (-1, 0, 0, 0)),
        ("userfaultfd", (1,)), ("bpf", (5, zero, 0)), ("perf_event_open", (zero, -1, -1, -1, 0)),
        ("name_to_handle_at", (-100, b"/", zero, zero, 0)), ("open_by_handle_at", (-1, zero, 0)),
        ("keyctl", (0, -3, 0)), ("add_key", (b"user", b"stockade-test", b"x", 0, -1)), ("request_key", (b"user", b"stockade-none", 0, 0)),
        ("syslog", (10, 0, 0)), ("reboot", (0, 0, 0, 0)), ("swapon", (0, 0)), ("init_module", (0, 0, 0)), ("delete_module", (0, 0)),
        ("kexec_load", (0, 0, 0, 0)), ("iopl", (0,)), ("ioperm", (0, 0, 0)), ("acct", (b"/none/such",)), ("quotactl", (0, 0, 0, 0)),
        ("settimeofday", (0, 0)), ("sethostname", (b"x", -1)), ("setdomainname", (b"x", -1)), ("vmsplice", (-1, 0, 0, 0)),
        ("modify_ldt", (0, zero, 0)), ("fanotify_init", (0, 0)), ("mbind", (0, 0, 0, 0, 0, 0)), ("move_pages", (0, 0, 0, 0, 0, 0)),
        ("mq_open", (b"stockade", 0, 0, 0)), ("memfd_secret", (-1,)), ("io_setup", (0, zero)), ("lookup_dcookie", (0, 0, 0)),
        ("statmount", (0, 0, 0, 0)), ("listmount", (0, 0, 0, 0)), ("setfsuid", (-1,)), ("process_mrelease", (-1, 0)),
    ]  # fmt: skip
    return {name: attempt(lambda name=name, arguments=arguments: call(name, *arguments) and None) for name, arguments in wanted} | {
        "personality": attempt(lambda: call("personality", 0x0040000) and None),
        "personality query": attempt(lambda: call("personality", 0xFFFFFFFF) and None),
        "personality query high bits": attempt(lambda: call("personality", 0xFFFFFFFF | 1 << 32) and None),
        "prctl set_mm": attempt(lambda: _prctl(35, 0, 0, 0, 0)),
        "prctl set_ptracer": attempt(lambda: _prctl(0x59616D61, -1, 0, 0, 0)),
        "not a call": attempt(lambda: call(9999) and None),
    }


def _prctl(*args: int) -> None:
    if libc.prctl(*(ctypes.c_ulong(each & 2**64 - 1) for each in args)) < 0:
        raise OSError(ctypes.get_errno(), "prctl")


def search_key(description: str) -> dict:
    """A key of that name in the session keyring."""
    return {"session": attempt(lambda: call("keyctl", 10, -3, b"user", description.encode(), 0) and None)}


# --- power -----------------------------------------------------------------------------------------------------------


def power() -> dict:
    """What the kernel says about each thread and each descendant of the command, and attempts to get more."""
    seen: set[tuple[str, ...]] = set()
    fields = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")

    def look(path: str) -> None:
        rows = dict(line.split(":\t", 1) for line in open(path).read().splitlines() if ":\t" in line)
        seen.add(tuple(rows[name].strip() for name in fields))

    gate, ready = threading.Event(), threading.Barrier(9)
    threads = [threading.Thread(target=lambda: (ready.wait(BOUND), gate.wait(BOUND))) for _ in range(8)]
    for thread in threads:
        thread.start()
    ready.wait(BOUND)
    tasks = os.listdir("/proc/self/task")
    for task in tasks:
        look(f"/proc/self/task/{task}/status")
    gate.set()
    for thread in threads:
        thread.join()
    statuses = attempt(lambda: open("/proc/self/status").read())
    rows = dict(line.split(":\t", 1) for line in str(statuses).splitlines() if ":\t" in line)
    seen.add(tuple(rows[name].strip() for name in fields))
    return {
        "threads": len(tasks),
        "states": [dict(zip(fields, state, strict=True)) for state in sorted(seen)],
        "setuid 0": attempt(os.setuid, 0),
        "setuid 1": attempt(os.setuid, 1),
        "setgid 0": attempt(os.setgid, 0),
        "setgroups": attempt(os.setgroups, [0]),
        "chown": attempt(lambda: (_touch("/tmp/mine"), os.chown("/tmp/mine", 0, 0)) and None),
        "raise ambient": attempt(_prctl, 47, 2, 21, 0, 0),
        "securebits": attempt(_prctl, 28, 0, 0, 0, 0),
        "new privs again": attempt(_prctl, 38, 0, 0, 0, 0),
        "seccomp off": attempt(_prctl, 22, 0, 0, 0, 0),
        "capset": attempt(_capset),
    }


def _capset() -> None:
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(struct.pack("6I", 1 << 21, 1 << 21, 0, 0, 0, 0))
    call(126, ctypes.byref(header), ctypes.byref(data))


def limits() -> dict:
    """Each resource limit, and raising what is hard."""
    answers = {}
    for name in ("CORE", "MEMLOCK", "MSGQUEUE", "NICE", "NOFILE", "RTPRIO", "SIGPENDING", "NPROC"):
        number = getattr(resource, f"RLIMIT_{name}")
        soft, hard = resource.getrlimit(number)
        higher = resource.RLIM_INFINITY if hard != resource.RLIM_INFINITY else hard
        answers[name] = [soft, hard, attempt(resource.setrlimit, number, (soft, higher))]
    answers["nice -1"] = attempt(os.nice, -1)
    answers["real time"] = attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    return answers


# --- floods ----------------------------------------------------------------------------------------------------------


def fork_bomb(at_most: str) -> dict:
    """Forks until it is refused, at most so often; each child waits and ends with us."""
    children, why = [], "OK"
    for _ in range(int(at_most)):
        try:
            pid = os.fork()
        except OSError as error:
            why = errno.errorcode[error.errno]
            break
        if pid == 0:
            signal.alarm(3 * BOUND)
            signal.pause()
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"children": len(children), "refused": why}


def children(count: str) -> dict:
    """Orphans one after the other, each of which only init can reap."""
    for _ in range(int(count)):
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(pid, 0)
    deadline = time.monotonic() + BOUND
    while (left := len([name for name in os.listdir("/proc") if name.isdigit()]) - 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    return {"left": left}


# --- leftovers and other jobs ----------------------------------------------------------------------------------------


def leave(mark: str) -> dict:
    """Puts a mark wherever a neighbour might look for it, then waits for the end of standard input's writer: 30 s at most."""
    key = int(mark, 16) & 0x7FFFFFFF
    keep = []
    made = {}
    for path in (f"/tmp/{mark}", f"/dev/shm/{mark}", f"/home/job/{mark}", f"/var/tmp/{mark}"):
        made[path] = attempt(lambda path=path: _touch(path) and None)
    made["sysv shm"] = attempt(lambda: _found(libc.shmget(key, 4096, 0o1666)))
    made["sysv sem"] = attempt(lambda: _found(libc.semget(key, 1, 0o1666)))
    made["sysv msg"] = attempt(lambda: _found(libc.msgget(key, 0o1666)))
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0" + mark)
    server.listen()
    tcp = socket.create_server(("127.0.0.1", 18999))
    keep += [server, tcp]
    os.environ["MARK"] = mark
    made |= {f"seen {name}": value for name, value in look(mark).items()}
    print(json.dumps(made), flush=True)
    signal.alarm(3 * BOUND)
    signal.pause()
    return made


def look(mark: str) -> dict:
    """Looks for the mark in all those places."""
    key = int(mark, 16) & 0x7FFFFFFF
    answers = {}
    for path in (f"/tmp/{mark}", f"/dev/shm/{mark}", f"/home/job/{mark}", f"/var/tmp/{mark}"):
        answers[path] = attempt(lambda path=path: os.stat(path) and None)
    answers["sysv shm"] = attempt(lambda: _found(libc.shmget(key, 0, 0)))
    answers["sysv sem"] = attempt(lambda: _found(libc.semget(key, 0, 0)))
    answers["sysv msg"] = attempt(lambda: _found(libc.msgget(key, 0)))
    answers["abstract"] = attempt(_connect, "\0" + mark)
    answers["tcp"] = attempt(lambda: socket.create_connection(("127.0.0.1", 18999), 3).close())
    return answers


def _found(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "ipc")


def scan(mark: str) -> dict:
    """Everything of other processes that can be read, and what of it holds the mark; our own command line is passed over."""
    found, read = [], 0
    wanted = mark.encode()
    for path in (*glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/tmp/**", recursive=True),
                 *glob.glob("/dev/shm/**", recursive=True), *glob.glob("/home/job/**", recursive=True)):  # fmt: skip
        if path == f"/proc/{os.getpid()}/cmdline":
            continue
        try:
            with open(path, "rb") as file:
                data = file.read(1 << 20)
        except OSError:
            continue
        read += 1
        if wanted in data:
            found.append(path)
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
            found.append(f"/proc/{pid}/mem opens")
        except OSError:
            continue
    return {"found": found, "read": read, "fresh memory": _fresh_memory(wanted)}


def _fresh_memory(wanted: bytes) -> bool:
    memory = mmap.mmap(-1, 32 << 20)
    return wanted in memory or memory.read(32 << 20).strip(b"\0") != b""


def view() -> dict:
    """What can be seen of the host: processes, mounts, interfaces, names."""
    rows = [line.split() for line in open("/proc/self/mountinfo").read().splitlines()]
    return {
        "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()),
        "mounts": [[row[4], row[row.index("-") + 1], row[5], row[3], row[2]] for row in rows],
        "top": sorted(os.listdir("/")),
        "sys": attempt(os.listdir, "/sys"),
        "run": os.listdir("/run"),
        "cgroups": sorted({line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup")}),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "hostname": os.uname().nodename,
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in os.listdir("/proc/self/fd")[:3]),
    }


GROUPS = {
    function.__name__: function
    for function in (
        namespaces, id_maps, foreign_tables, intrude, signal_init, kill_all, terminals, ptys, sockets, connect_abstract, sysctls,
        kernel_files, devices, nodes, privileged_files, mounts, own_mounts, calls, search_key, power, limits, fork_bomb, children, leave,
        look, scan, view,
    )
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(GROUPS[sys.argv[1]](*sys.argv[2:])), flush=True)
