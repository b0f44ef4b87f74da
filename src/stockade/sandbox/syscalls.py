"""The one door to the kernel: every call that Python's own modules do not offer, under the name of its man page.

Each function raises `KernelError` (an OSError that also knows the call and the path). No other module uses ctypes.

Man pages: clone3(2) 5.3, pidfd_open(2) 5.3, openat2(2) 5.6, open_tree(2) and move_mount(2) 5.2, mount_setattr(2) 5.12,
pivot_root(2), keyctl(2), capset(2), kcmp(2), prctl(2), seccomp(2), close_range(2) 5.9, signalfd(2), posix_spawn(3).
"""

from __future__ import annotations

# Declared here and nowhere else: argument types of every variadic call, or pointers would be cut to 32 bits.
import ctypes  # noqa: TID251 - this module is the door
import os
import struct
from errno import ENOENT, ENOSYS
from typing import Any

_ARCHES = {
    "x86_64": {"pivot_root": 155, "keyctl": 250, "seccomp": 317, "capget": 125, "capset": 126, "kcmp": 312},
    "aarch64": {"pivot_root": 41, "keyctl": 219, "seccomp": 277, "capget": 90, "capset": 91, "kcmp": 272},
}
# From 424 on the numbers are the same on every architecture.
_COMMON = {
    "open_tree": 428,
    "move_mount": 429,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "mount_setattr": 442,
}

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

CLONE_NEWNS = 0x20000
CLONE_NEWCGROUP = 0x2000000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x1000
CLONE_CLEAR_SIGHAND = 0x100000000
CLONE_INTO_CGROUP = 0x200000000
ALL_NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP

MNT_DETACH = 2
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x100000
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
OPEN_TREE_CLONE = 1

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

KCMP_VM = 1
KEYCTL_JOIN_SESSION_KEYRING = 1
POSIX_SPAWN_SETSIGDEF = 0x04
POSIX_SPAWN_SETSIGMASK = 0x08
POSIX_SPAWN_SETSID = 0x80
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
SECCOMP_SET_MODE_FILTER = 1
SFD_CLOEXEC = 0x80000
SFD_NONBLOCK = 0x800
_LINUX_CAPABILITY_VERSION_3 = 0x20080522


class KernelError(OSError):
    """A system call failed: which call, on which path, with which errno."""

    def __init__(self, call: str, path: str | None, errno: int) -> None:
        super().__init__(errno, os.strerror(errno), path)
        self.call = call


class NoSuchFile(KernelError, FileNotFoundError):
    """ENOENT, so that callers can tell it apart in the usual way."""


_libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the interpreter lock during the call: a child of clone3 must wake up holding it.
_locked_libc = ctypes.PyDLL(None, use_errno=True)
_MACHINE = os.uname().machine


def _number(call: str) -> int:
    if call in _COMMON:
        return _COMMON[call]
    if _MACHINE not in _ARCHES:
        raise KernelError(call, None, ENOSYS)  # no table for this architecture
    return _ARCHES[_MACHINE][call]


def _function(name: str, *argtypes: Any, library: ctypes.CDLL = _libc) -> Any:
    function = library[name]  # a new object each time: "syscall" has a prototype for each number
    function.argtypes = argtypes
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    return function


_long, _int, _str, _ptr = ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
_ulong, _uint, _size = ctypes.c_ulong, ctypes.c_uint, ctypes.c_size_t

_sys_clone3 = _function("syscall", _long, _ptr, _size, library=_locked_libc)
_sys_close_range = _function("syscall", _long, _uint, _uint, _uint)
_sys_openat2 = _function("syscall", _long, _int, _str, _str, _size)
_sys_open_tree = _function("syscall", _long, _int, _str, _uint)
_sys_move_mount = _function("syscall", _long, _int, _str, _int, _str, _uint)
_sys_mount_setattr = _function("syscall", _long, _int, _str, _uint, _str, _size)
_sys_pivot_root = _function("syscall", _long, _str, _str)
_sys_keyctl = _function("syscall", _long, _long, _ptr)
_sys_seccomp = _function("syscall", _long, _uint, _uint, _ptr)
_sys_cap = _function("syscall", _long, _str, _ptr)
_sys_kcmp = _function("syscall", _long, _int, _int, _int, _ulong, _ulong)
_mount = _function("mount", _str, _str, _str, _ulong, _str)
_umount2 = _function("umount2", _str, _int)
_unshare = _function("unshare", _int)
_setns = _function("setns", _int, _int)
_prctl = _function("prctl", _int, _ulong, _ulong, _ulong, _ulong)
_signalfd = _function("signalfd", _int, _str, _int)
_spawn = _function("posix_spawn", _ptr, _str, _ptr, _ptr, _ptr, _ptr)
_spawn_actions_init = _function("posix_spawn_file_actions_init", _ptr)
_spawn_actions_dup2 = _function("posix_spawn_file_actions_adddup2", _ptr, _int, _int)
_spawn_actions_open = _function("posix_spawn_file_actions_addopen", _ptr, _int, _str, _int, _uint)
_spawn_attributes_init = _function("posix_spawnattr_init", _ptr)
_spawn_attributes_flags = _function("posix_spawnattr_setflags", _ptr, ctypes.c_short)
_spawn_attributes_default = _function("posix_spawnattr_setsigdefault", _ptr, _str)
_spawn_attributes_mask = _function("posix_spawnattr_setsigmask", _ptr, _str)


def _check(result: Any, call: str, path: str | None = None) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise (NoSuchFile if errno == ENOENT else KernelError)(call, path, errno)
    return int(result)


def share_memory(pid: int, other: int) -> bool:
    """True where two processes have one address space (kcmp(2), KCMP_VM); False too where nobody may compare them."""
    return int(_sys_kcmp(_number("kcmp"), pid, other, KCMP_VM, 0, 0)) == 0


def clone3(flags: int, *, cgroup: int | None = None, exit_signal: int = 17) -> tuple[int, int]:
    """clone3(2): (pid, pidfd) in the parent, (0, -1) in the child, which goes on with a copy of this thread's stack.

    `cgroup` is a descriptor of the target's directory; CLONE_INTO_CGROUP is then added. Single-threaded programs only.
    """
    pidfd = ctypes.c_int(-1)
    if cgroup is not None:
        flags |= CLONE_INTO_CGROUP
    # struct clone_args: flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup
    arguments = ctypes.create_string_buffer(
        struct.pack("11Q", flags, ctypes.addressof(pidfd), 0, 0, exit_signal, 0, 0, 0, 0, 0, cgroup or 0), 88
    )
    pid = _check(_sys_clone3(_number("clone3"), ctypes.addressof(arguments), 88), "clone3")
    return pid, pidfd.value if pid else -1


def close_range(first: int, last: int = 0xFFFFFFFF, flags: int = 0) -> None:
    """close_range(2): closes, or marks close-on-exec, every descriptor from `first` to `last`."""
    _check(_sys_close_range(_number("close_range"), first, last, flags), "close_range")


def openat2(directory: int, path: str, flags: int, *, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2): a descriptor; `resolve` bounds how the path may be walked. O_CLOEXEC is always added."""
    how = struct.pack("3Q", flags | os.O_CLOEXEC, mode, resolve)
    return _check(_sys_openat2(_number("openat2"), directory, os.fsencode(path), how, len(how)), "openat2", path)


def open_tree(directory: int, path: str, flags: int) -> int:
    """open_tree(2): a descriptor of a mount, or of a detached copy of it with OPEN_TREE_CLONE."""
    flags |= os.O_CLOEXEC
    return _check(_sys_open_tree(_number("open_tree"), directory, os.fsencode(path), flags), "open_tree", path)


def move_mount(source: int, directory: int, path: str) -> None:
    """move_mount(2): attaches the mount behind the descriptor `source` at `path` below `directory` ("": at it)."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0x40 if not path else 0)  # MOVE_MOUNT_T_EMPTY_PATH
    _check(_sys_move_mount(_number("move_mount"), source, b"", directory, os.fsencode(path), flags), "move_mount", path)


def mount_setattr(directory: int, path: str, flags: int, *, add: int = 0, propagation: int = 0, userns: int | None = None) -> None:
    """mount_setattr(2): adds attributes to the mount at `path` below `directory` ("" with AT_EMPTY_PATH: at it)."""
    attributes = struct.pack("4Q", add, 0, propagation, userns or 0)
    _check(
        _sys_mount_setattr(_number("mount_setattr"), directory, os.fsencode(path), flags, attributes, len(attributes)),
        "mount_setattr",
        path,
    )


def mount(source: str | None, target: str, fstype: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    result = _mount(
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None if fstype is None else fstype.encode(),
        flags,
        None if data is None else data.encode(),
    )
    _check(result, f"mount({fstype})" if fstype else "mount", target)


def umount2(target: str, flags: int) -> None:
    """umount2(2)."""
    _check(_umount2(os.fsencode(target), flags), "umount2", target)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    _check(_sys_pivot_root(_number("pivot_root"), os.fsencode(new_root), os.fsencode(put_old)), "pivot_root", new_root)


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """setns(2)."""
    _check(_setns(descriptor, flags), "setns")


def join_new_session_keyring() -> None:
    """keyctl(KEYCTL_JOIN_SESSION_KEYRING): an empty session keyring of our own (session-keyring(7))."""
    _check(_sys_keyctl(_number("keyctl"), KEYCTL_JOIN_SESSION_KEYRING, None), "keyctl")


def clear_ambient_capabilities() -> None:
    """prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL) (capabilities(7))."""
    _check(_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")


def drop_bounding_capability(capability: int) -> None:
    """prctl(PR_CAPBSET_DROP); EINVAL past the last capability that the kernel knows."""
    _check(_prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl(PR_CAPBSET_DROP)")


def get_securebits() -> int:
    """prctl(PR_GET_SECUREBITS)."""
    return _check(_prctl(PR_GET_SECUREBITS, 0, 0, 0, 0), "prctl(PR_GET_SECUREBITS)")


def set_securebits(bits: int) -> None:
    """prctl(PR_SET_SECUREBITS)."""
    _check(_prctl(PR_SET_SECUREBITS, bits, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")


def clear_capabilities() -> None:
    """capset(2): effective, permitted and inheritable become empty."""
    header = struct.pack("Ii", _LINUX_CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(_sys_cap(_number("capset"), header, ctypes.addressof(data)), "capset")


def seccomp_set_filter(program: bytes) -> None:
    """seccomp(SECCOMP_SET_MODE_FILTER): installs classic BPF for this thread; needs no_new_privs."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)), 16)
    _check(_sys_seccomp(_number("seccomp"), SECCOMP_SET_MODE_FILTER, 0, ctypes.addressof(fprog)), "seccomp")


def signalfd(signals: set[int]) -> int:
    """signalfd(2): a non-blocking descriptor, readable when one of `signals` (blocked beforehand) is pending."""
    mask = sum(1 << (number - 1) for number in signals).to_bytes(128, "little")
    return _check(_signalfd(-1, mask, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd")


def posix_spawn(path: bytes, argv: list[bytes], environment: list[bytes], *, stdin: int | None, stdout: int, stderr: int) -> int:
    """posix_spawn(3): starts a program in a new session with these three descriptors (stdin None: /dev/null); returns its pid.

    No signal is blocked or ignored in it. os.posix_spawn cannot say so: it leaves out the C library's own signals 32 and 33, which
    glibc then has ignored in the program.
    """
    actions = _SpawnActions()
    if stdin is None:
        actions.open(0, b"/dev/null", os.O_RDONLY)
    else:
        actions.dup2(stdin, 0)
    actions.dup2(stdout, 1)
    actions.dup2(stderr, 2)
    return _posix_spawn(path, argv, environment, actions)


def posix_spawn_on_terminal(path: bytes, argv: list[bytes], environment: list[bytes], terminal: bytes) -> int:
    """As `posix_spawn`, with the three descriptors on the terminal of this name, which becomes the controlling one.

    The C library makes the session before it opens anything, and the terminal that a session leader opens is its own (tty(4)).
    """
    actions = _SpawnActions()
    actions.open(0, terminal, os.O_RDWR)
    actions.dup2(0, 1)
    actions.dup2(0, 2)
    return _posix_spawn(path, argv, environment, actions)


class _SpawnActions:
    """posix_spawn_file_actions_t; what fails to be added is told when the program is started."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(1024)
        self.address = ctypes.addressof(self._buffer)
        self.errno = int(_spawn_actions_init(self.address))

    def open(self, descriptor: int, path: bytes, flags: int) -> None:
        self.errno = self.errno or _spawn_actions_open(self.address, descriptor, path, flags, 0)

    def dup2(self, source: int, target: int) -> None:
        self.errno = self.errno or _spawn_actions_dup2(self.address, source, target)


def _posix_spawn(path: bytes, argv: list[bytes], environment: list[bytes], actions: _SpawnActions) -> int:
    attributes, pid = ctypes.create_string_buffer(1024), ctypes.c_int(0)
    at_attributes = ctypes.addressof(attributes)
    flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID
    failed = actions.errno or _spawn_attributes_init(at_attributes) or _spawn_attributes_flags(at_attributes, flags)
    failed = failed or _spawn_attributes_default(at_attributes, b"\xff" * 128) or _spawn_attributes_mask(at_attributes, bytes(128))
    arguments = (_str * (len(argv) + 1))(*argv, None)
    variables = (_str * (len(environment) + 1))(*environment, None)
    failed = failed or _spawn(
        ctypes.addressof(pid), path, actions.address, at_attributes, ctypes.addressof(arguments), ctypes.addressof(variables)
    )
    if failed:
        raise (NoSuchFile if failed == ENOENT else KernelError)("execve", os.fsdecode(path), failed)
    return pid.value
