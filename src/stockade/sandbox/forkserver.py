"""The fork server: one exec'd, single-threaded program that clones every init and holds every job's life.

It is started early with an empty environment, imports the standard library and python-prctl only, and works through one socket.
Requests and answers are datagrams of `protocol`, descriptors come by SCM_RIGHTS:

    filter   {"name"} + the program                         keeps a compiled seccomp profile
    probe    + a scratch cgroup                             -> probed {"into_cgroup"}
    join                                                    enter cgroups by cgroup.procs from now on
    launch   {"sandbox", "uid_map", "gid_map"} + request body, report socket, cgroup, cgroup.procs, command, stdin, stdout, stderr
               -> launched {"sandbox", "pid"} + pidfd, or refused {"sandbox", "step", "call", "path", "errno"}

It ends, and every job with it, when the socket reports end of file or the executor's process is gone: each init has SIGKILL as
its parent-death signal and a pidfd of the fork server, and is killed by its pidfd besides.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import sys
import traceback
from errno import EMFILE
from typing import Any, NoReturn

import prctl

from stockade.errors import Protocol
from stockade.sandbox import init, mounts, namespaces, privileges, protocol, rootfs, syscalls
from stockade.sandbox.syscalls import KernelError

# No job ever needs these; as root they are taken out of the fork server's own mount namespace.
UNNEEDED_KINDS = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    ]
)
OOM_SCORE = 500
READY, PROBED, LAUNCHED, REFUSED = "ready", "probed", "launched", "refused"
_PROBE_ALIVE = 42


class ForkServer:
    """The state of the program: which filters it knows and which inits live."""

    def __init__(self, channel: socket.socket, executor: int, *, is_root: bool) -> None:
        self._channel = channel
        self._executor = executor  # pidfd of the executor's process
        self._is_root = is_root
        self._filters: dict[str, bytes] = {}
        self._inits: dict[int, int | None] = {}  # by pidfd; its mount namespace, where that can be held
        self._idmaps: dict[tuple[int, int, int], int] = {}  # (uid outside, gid outside, first id inside) -> user namespace
        self._self = os.pidfd_open(os.getpid())
        self._poll = select.poll()
        self._into_cgroup = True

    def serve(self) -> NoReturn:
        """Answers requests until the executor is gone."""
        for descriptor in (self._channel.fileno(), self._executor):
            self._poll.register(descriptor, select.POLLIN)
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page that it touches
        protocol.send(self._channel, protocol.encode(READY, pid=os.getpid()))
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._inits:
                    self._reap(descriptor)
                elif descriptor == self._executor:
                    self._end()
                else:
                    self._answer()

    def _answer(self) -> None:
        try:
            data, descriptors = protocol.receive(self._channel)
        except ConnectionResetError:  # the executor went away with something of ours unread
            data, descriptors = b"", []
        except protocol.DescriptorsLost as lost:  # one request that finds no descriptor free must not end every other job
            message = protocol.decode(lost.data)
            if message["is"] == "launch":
                self._refuse(message["sandbox"], "request", "recvmsg", None, EMFILE)
            return
        if not data:
            self._end()
        try:
            message = protocol.decode(data)
            if message["is"] == "filter":
                self._filters[message["name"]] = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
            elif message["is"] == "launch":
                self._launch(message, descriptors)
            elif message["is"] == "join":
                self._into_cgroup = False
            elif message["is"] == "probe":
                self._probe(descriptors[0])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _launch(self, message: dict[str, Any], descriptors: list[int]) -> None:
        name, step = message["sandbox"], "request"
        sources: list[int | None] | None = None
        try:
            body, report, cgroup, cgroup_procs, command, stdin, stdout, stderr = descriptors
            spec = protocol.read_body(body)
            step = "mounts"
            if self._is_root:
                first_id = message["uid_map"][1]
                sources = rootfs.open_binds(spec["mounts"], lambda uid, gid: self._idmap(uid, gid, first_id, spec))
            request = init.Request(
                spec=spec,
                filter_program=self._filters[spec["seccomp"]],
                has_range=self._is_root,
                sources=sources,
                body=body,
                report=socket.socket(fileno=os.dup(report)),
                command=command,
                stdio=(stdin, stdout, stderr),
                lifeline=self._self,
                join_cgroup=None if self._into_cgroup else cgroup_procs,
            )
            step = "clone"
            pid, pidfd = self._clone(request, message, cgroup)
            request.report.close()
        except OSError as error:
            path = None if error.filename is None else os.fsdecode(error.filename)
            self._refuse(name, step, getattr(error, "call", "system call"), path, error.errno)
            return
        except (Protocol, LookupError, TypeError, ValueError) as error:  # one bad request must not end every other job
            self._refuse(name, step, f"{type(error).__name__}: {error}"[:200], None, None)
            return
        finally:
            for tree in filter(None, sources or ()):
                os.close(tree)
        self._inits[pidfd] = _hold_mounts(pid)
        self._poll.register(pidfd, select.POLLIN)
        try:
            protocol.send(self._channel, protocol.encode(LAUNCHED, sandbox=name, pid=pid), (pidfd,))
        except BrokenPipeError:
            self._end()
        except OSError as error:  # ETOOMANYREFS: a job of the same user has too many descriptors on the way
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self._refuse(name, "clone", "sendmsg(pidfd)", None, error.errno)

    def _refuse(self, name: str, step: str, call: str, path: str | None, errno: int | None) -> None:
        shown = None if path is None else path.encode("utf-8", "backslashreplace").decode()[:1024]
        protocol.send(self._channel, protocol.encode(REFUSED, sandbox=name, step=step, call=call, path=shown, errno=errno))

    def _clone(self, request: init.Request, message: dict[str, Any], cgroup: int) -> tuple[int, int]:
        """Clones init into its cgroup, gives it its ids, and lets it go."""
        gate_read, gate_write = os.pipe2(os.O_CLOEXEC)
        flags = syscalls.ALL_NAMESPACES | syscalls.CLONE_PIDFD | syscalls.CLONE_CLEAR_SIGHAND
        if not self._into_cgroup:
            flags &= ~syscalls.CLONE_NEWCGROUP  # made by init once it has joined, so that its root is the leaf
        try:
            pid, pidfd = syscalls.clone3(flags, cgroup=cgroup if self._into_cgroup else None)
            if pid == 0:
                self._be_init(request, gate_read, gate_write)
            try:
                namespaces.write_id_maps(pid, message["uid_map"], message["gid_map"], deny_setgroups=not self._is_root)
                namespaces.raise_oom_score(pid, OOM_SCORE)
                os.write(gate_write, b"g")
            except OSError:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
                os.close(pidfd)
                raise
        finally:
            os.close(gate_read)
            os.close(gate_write)
        return pid, pidfd

    @staticmethod
    def _be_init(request: init.Request, gate_read: int, gate_write: int) -> NoReturn:
        try:
            gc.disable()
            os.close(gate_write)  # or the end of the fork server would never be noticed
            init.main(request, gate_read)
        except BaseException:
            traceback.print_exc()  # a bug of ours; standard error is the executor's log
            raise
        finally:
            os._exit(1)  # whatever happens, a child never goes on as a second fork server

    def _probe(self, cgroup: int) -> None:
        """Tries CLONE_INTO_CGROUP: where this process sits in a cgroup that was once killed, the child dies at birth."""
        try:
            pid, pidfd = syscalls.clone3(syscalls.CLONE_PIDFD | syscalls.CLONE_CLEAR_SIGHAND, cgroup=cgroup)
        except KernelError:
            self._into_cgroup = False
        else:
            if pid == 0:
                os._exit(_PROBE_ALIVE)
            ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            os.close(pidfd)
            self._into_cgroup = ended is not None and ended.si_status == _PROBE_ALIVE
        protocol.send(self._channel, protocol.encode(PROBED, into_cgroup=self._into_cgroup))

    def _idmap(self, uid: int, gid: int, first_id: int, spec: dict[str, Any]) -> int:
        """The user namespace in which (uid, gid) outside is the job's own id; kept, since the same few come again."""
        key = (uid, gid, first_id)
        if key not in self._idmaps:
            if len(self._idmaps) >= 64:
                os.close(self._idmaps.pop(next(iter(self._idmaps))))
            to_job = (first_id + spec["uid"], 1), (first_id + spec["gid"], 1)
            self._idmaps[key] = namespaces.make_idmap((uid, *to_job[0]), (gid, *to_job[1]))
        return self._idmaps[key]

    def _reap(self, pidfd: int) -> None:
        held = self._inits.pop(pidfd)
        self._poll.unregister(pidfd)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)
        if held is not None:
            os.close(held)

    def _end(self) -> NoReturn:
        for pidfd in self._inits:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os._exit(0)


def _hold_mounts(pid: int) -> int | None:
    """A descriptor of the mount namespace of a child that we have yet to reap; None where we may not have one (rootless).

    While it is open, the last process of a job can be gone before its forty mounts are, and nobody waits for those.
    """
    try:
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def main() -> NoReturn:
    """Entry point: argv is the channel, the executor's pidfd, cgroup.procs of the server's own leaf, and the identity."""
    channel_number, executor, own_cgroup = (int(text) for text in sys.argv[1:4])
    is_root = sys.argv[4] == "range"
    os.write(own_cgroup, b"0")
    os.close(own_cgroup)
    privileges.default_signals()
    # It holds a pidfd of every init; what jobs get is set by their inits.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if is_root:
        prctl.set_dumpable(0)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        # Slave, not private: a file system that the host unmounts must not be kept busy by us.
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        mounts.detach_unneeded(UNNEEDED_KINDS)
    os.chdir("/")
    channel = socket.socket(fileno=channel_number)
    os.set_inheritable(channel_number, False)
    os.set_inheritable(executor, False)
    ForkServer(channel, executor, is_root=is_root).serve()
