"""Pid 1 of the virtual machine that scripts/vm boots: mounts what a system has, runs one command, writes its status, powers off.

In Python with ctypes, because every process costs much under emulation. Environment: VM_OUT, the one writable directory, which holds
`command` and gets `status`; VM_KEEP, directories below /tmp that stay visible; VM_USER, the number of an ordinary user who is to run
the command, in a cgroup that has been delegated as systemd does it.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
import time
import traceback

libc = ctypes.CDLL(None, use_errno=True)
NOSUID, NODEV, NOEXEC, BIND, MOVE, REC, PRIVATE = 2, 4, 8, 4096, 8192, 16384, 1 << 18
POWER_OFF = 0x4321FEDC
OUT = os.environ["VM_OUT"]
USER = int(os.environ.get("VM_USER") or 0)
SLOWNESS = "15"  # plain emulation runs Python 10 to 16 times slower
CGROUPS = "/sys/fs/cgroup"


def mount(source, target, fstype=None, flags=0, options=None):
    os.makedirs(target, exist_ok=True)
    encoded = [None if text is None else text.encode() for text in (source, target, fstype, options)]
    if libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), target)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def load(path):
    """Loads a kernel module from a compressed file."""
    with open(path, "rb") as file:
        if libc.syscall(313, file.fileno(), b"", 4):  # finit_module, MODULE_INIT_COMPRESSED_FILE
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)


def mount_all():
    global OUT
    plain = NOSUID | NODEV | NOEXEC
    mount("proc", "/proc", "proc", plain)
    mount("sys", "/sys", "sysfs", plain)
    mount("securityfs", "/sys/kernel/security", "securityfs", plain)
    if not os.path.exists("/dev/full"):
        mount("dev", "/dev", "devtmpfs", NOSUID)
    mount("devpts", "/dev/pts", "devpts", NOSUID | NOEXEC, "mode=620,ptmxmode=666")
    mount("shm", "/dev/shm", "tmpfs", NOSUID | NODEV, "mode=1777")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        if not os.path.lexists(f"/dev/{name}"):
            os.symlink(target, f"/dev/{name}")
    mount(None, "/", None, REC | PRIVATE)
    mount("run", "/run", "tmpfs", NOSUID | NODEV, "mode=755")
    mount(OUT, "/run/out", None, BIND)
    below_tmp = [path for path in dict.fromkeys(os.environ.get("VM_KEEP", "").split(":")) if path.startswith("/tmp/")]
    for number, path in enumerate(below_tmp):
        mount(path, f"/run/keep/{number}", None, BIND | REC)
    mount("tmp", "/tmp", "tmpfs", 0, "mode=1777")  # as on Debian 12, where it is a part of the root
    load("/run/out/driver")
    mount("/dev/vda", "/var/tmp", "ext4")
    os.chmod("/var/tmp", 0o1777)
    for number, path in enumerate(below_tmp):
        mount(f"/run/keep/{number}", path, None, MOVE)
    OUT = "/run/out"
    mount("cgroup2", CGROUPS, "cgroup2", plain, "nsdelegate,memory_recursiveprot")


def loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 0x41))


def delegate(user):
    """What `Delegate=yes` on user@.service gives: every controller, and the directory with three of its files. Returns its path."""
    path = CGROUPS
    for name in ("user.slice", f"user-{user}.slice", f"user@{user}.service"):
        with open(f"{path}/cgroup.controllers") as controllers:
            write(f"{path}/cgroup.subtree_control", " ".join(f"+{each}" for each in controllers.read().split()))
        path += f"/{name}"
        os.mkdir(path)
    for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(f"{path}/{name}", user, user)
    return path


def become(user, home):
    """The command's process enters the delegated cgroup and gives up everything."""
    write(f"{CGROUPS}/user.slice/user-{user}.slice/user@{user}.service/cgroup.procs", "0")
    os.setgroups([user, user + 1])  # a login has its own group among them
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.chdir(home)


def run_command():
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    home = f"/run/user/{USER}" if USER else "/root"
    environment = {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1", "STOCKADE_VM": "1"}
    environment |= {"STOCKADE_TEST_SLOWNESS": SLOWNESS, "TMPDIR": "/var/tmp"}
    if USER:
        os.makedirs(home)
        os.chown(home, USER, USER)
        delegate(USER)
    command = os.fork()
    if command == 0:
        try:
            os.setsid()
            os.chdir("/tmp")
            if USER:
                become(USER, home)
            os.execve("/bin/bash", ["bash", f"{OUT}/command"], environment)
        finally:
            os._exit(126)
    while True:
        pid, status = os.wait()
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


SYSTEMD = "/lib/systemd/systemd"
COMMAND_UNIT = """[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
Environment=PYTHONDONTWRITEBYTECODE=1 STOCKADE_VM=1 STOCKADE_TEST_SLOWNESS={slowness}
StandardOutput=file:/dev/ttyS0
StandardError=inherit
ExecStart=-/bin/bash {out}/command
ExecStopPost=/bin/bash -c 'echo $EXIT_STATUS >{out}/status.new && mv {out}/status.new {out}/status && sync && echo o >/proc/sysrq-trigger'
"""
USER_UNIT = """[Unit]
DefaultDependencies=no
[Service]
Type=notify
User=agent
Slice=user-{user}.slice
Delegate=yes
Environment=XDG_RUNTIME_DIR=/run/user/{user} HOME=/run/user/{user}
ExecStart=/lib/systemd/systemd --user
"""


def become_systemd():
    """The machine's own systemd takes over as pid 1, with the command as a service, and, started on demand, a manager for VM_USER."""
    user = USER or 12345
    os.makedirs(f"/run/user/{user}")
    os.chown(f"/run/user/{user}", user, user)
    for table, line in (("passwd", f"agent:x:{user}:{user}::/run/user/{user}:/bin/sh"), ("group", f"agent:x:{user}:")):
        with open(f"/etc/{table}") as file:
            write(f"/run/{table}", f"{file.read()}{line}\n")  # systemd starts nobody without a name
        libc.mount(f"/run/{table}".encode(), f"/etc/{table}".encode(), None, ctypes.c_ulong(BIND), None)
    os.makedirs("/run/systemd/system")
    write("/run/systemd/system/vm-command.service", COMMAND_UNIT.format(out=OUT, slowness=SLOWNESS))
    write("/run/systemd/system/vm-user.service", USER_UNIT.format(user=user))
    os.execv(SYSTEMD, ["systemd", "--unit=vm-command.service", "--show-status=no", "--log-target=null"])


status = 125
try:
    mount_all()
    socket.sethostname("vm")
    write("/proc/sys/kernel/yama/ptrace_scope", "1")  # Debian leaves it at 0; with 1 it refuses something
    loopback_up()
    if os.environ.get("VM_SYSTEMD"):
        become_systemd()
    status = run_command()
except BaseException:
    traceback.print_exc()
finally:
    with open(f"{OUT}/status.new", "w") as file:
        file.write(str(status))
    os.rename(f"{OUT}/status.new", f"{OUT}/status")
    sys.stdout.flush()
    os.sync()
    libc.reboot(POWER_OFF)
    time.sleep(5)
    os._exit(0)
