"""One sandboxed process tree: its pidfd, its cgroup leaf and init's report channel; the one place where trees are ended.

A tree is gone when its init is: the kernel ends every process of a pid namespace before its init can be reaped. Killing is by
cgroup.kill, again and again until then, so it reaches what was forked meanwhile; never by process group, never by pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import stat
from typing import Any

from stockade.errors import LaunchFailed, Protocol
from stockade.launcher.outcome import Status
from stockade.launcher.scratch import ScratchPlaces
from stockade.launcher.waiting import Milestone
from stockade.sandbox import protocol
from stockade.sandbox.cgroup import Leaf
from stockade.sandbox.terminals import PTMX

KILL_BOUND = 30.0  # seconds until a killed tree must be empty
_RETRY = 0.5  # seconds between two writes to cgroup.kill
_HINTS = {
    ("mounts", "mount(proc)"): "the host's /proc is over-mounted, as in a container; `stockade doctor` names the mount",
    ("mounts", "mount_setattr"): "the file system of this path has no idmapped mounts (overlayfs, NFS and most FUSE have none): use a "
    "workspace on ext4, xfs, btrfs or tmpfs, or run Stockade as the ordinary user who owns the path",
    ("mounts", "openat2"): "a path of the policy was replaced or removed after it was looked up",
    ("names", "ioctl(SIOCSIFFLAGS)"): "AppArmor may restrict unprivileged user namespaces; see `stockade doctor`",
}


class ProcessTree:
    """The init of one job and all that descends from it, from clone to the last process's end."""

    def __init__(self, *, pidfd: int, report: socket.socket, request: int, leaf: Leaf, has_terminal: bool = False) -> None:
        self.leaf = leaf
        self.scratch = ScratchPlaces()  # closed by whoever removes the sandbox
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._pidfd = pidfd
        self._report = report
        self.ended = Milestone()  # the command, as init has reported; or init is gone without a report
        self._ready = Milestone()
        self._started = Milestone()
        self._gone = Milestone()
        self._status: Status | None = None
        self._lacks_terminal = has_terminal  # init has yet to give us its master
        self._terminal = -1
        self._sent = 0  # signals that init was asked to send
        self._relayed = 0  # and those that it has sent
        self._was_fatal = False  # the last of them could only end the command
        self._refused: LaunchFailed | None = None
        report.setblocking(False)
        self._loop.add_reader(report.fileno(), self._read_message)
        self._loop.add_reader(pidfd, self._on_gone)

    @property
    def status(self) -> Status | None:
        """The command's wait status as init reported it; None before its end, or where init was killed first."""
        return self._status

    @property
    def ended_unsignalled(self) -> bool:
        """True where the command ended before the last signal that init was asked for could reach it.

        Init had reported the end by then, or the signal could only end the command, and it exited.
        """
        if self._status is None:
            return False
        return self._relayed < self._sent or not self._sent or (self._was_fatal and self._status.exit_code is not None)

    @property
    def is_dead(self) -> bool:
        """True where init has ended, even where the event loop has not heard of it yet."""
        if self._gone.is_reached:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def is_gone(self) -> bool:
        """True where no process of it is left."""
        return self._gone.is_reached

    async def wait_ready(self) -> None:
        """Waits until the sandbox stands and waits for its command.

        Raises: LaunchFailed, with the step, where it could not be built; the tree is gone then.
        """
        await self._ready.wait()

    async def start_command(self, message: bytes) -> None:
        """Sends init the message that has it start its command, and waits until the program has been executed.

        Raises: LaunchFailed, with the step, where it never was; the tree is gone then.
        """
        with contextlib.suppress(OSError):  # init is gone: the milestone below says so
            self._report.send(message)
        await self._started.wait()

    async def wait_gone(self) -> None:
        """Waits until init, and with it every process of its pid namespace, is gone."""
        await self._gone.wait()

    def take_terminal(self) -> int:
        """The master of the job's terminal, now the caller's; there is one where it was asked for, once the sandbox is ready."""
        taken, self._terminal = self._terminal, -1
        assert taken >= 0
        return taken

    def copy_terminal(self) -> int:
        """A second descriptor of that master, the caller's; before `take_terminal`."""
        return os.dup(self._terminal)

    def signal(self, number: int) -> bool:
        """Has init send a signal to every process of the job (its `kill(-1)`, then SIGCONT); False where init is gone."""
        try:
            self._report.send(protocol.encode("signal", signal=number))
        except OSError:
            return False
        self._sent += 1
        return True

    async def kill(self) -> None:
        """Kills every process of the tree, whatever it does, and waits until none is left.

        Raises: TimeoutError, where the kernel has not emptied the cgroup within 30 s.
        """
        async with asyncio.timeout(KILL_BOUND):
            while True:
                try:
                    async with asyncio.timeout(_RETRY):
                        await asyncio.to_thread(self.leaf.kill)
                except (OSError, RuntimeError):  # no descriptor or thread was free, say, or none within the time
                    self.kill_init()
                try:
                    async with asyncio.timeout(_RETRY):
                        await self.wait_gone()
                        return
                except TimeoutError:
                    continue  # a process that forked during the kill (before Linux 6.14), or one in the D state

    def kill_init(self) -> None:
        """Kills init, which takes all of its namespace with it; needs no thread, no descriptor and no time."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Closes the descriptors; the tree must be gone."""
        for descriptor in (self._report.fileno(), self._pidfd):
            if descriptor >= 0:
                self._loop.remove_reader(descriptor)
        self._report.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            os.close(self._request)
            self._pidfd = self._request = -1
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def _step(self) -> str:
        return protocol.read_step(self._request)

    def _died(self) -> LaunchFailed:
        hint = "init was killed before the program could start"
        return LaunchFailed(step=self._step(), call="init", path=None, errno=None, hint=hint)

    def _read_message(self) -> bool:
        """Takes one message of init's, if there is one; False where there is none."""
        if self._report.fileno() < 0:
            return False
        try:
            data, descriptors = protocol.receive(self._report)
            if data:
                with contextlib.ExitStack() as unused:
                    for descriptor in descriptors:
                        unused.callback(os.close, descriptor)
                    if self._take(protocol.decode(data), descriptors):
                        unused.pop_all()
                return True
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # init ended with a signal of ours unread; its last words can be read all the same
        except (Protocol, KeyError, TypeError, ValueError, OSError) as error:
            # Init is the job's neighbour: nonsense from it ends the job, never us.
            hint = f"init broke its protocol: {error}"
            if isinstance(error, protocol.DescriptorsLost):
                hint = "no descriptor was free for what init passes on; raise the limit of open files, or run fewer jobs at once"
            self._refused = LaunchFailed(step=self._step(), call="report", path=None, errno=None, hint=hint)
        self._loop.remove_reader(self._report.fileno())
        self._report.close()  # which ends init, if it has not ended
        return False

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> bool:
        """Acts on a message of init's; True where its descriptors are now ours."""
        match message["is"]:
            case protocol.PLACES if not self._ready.is_reached:  # later a command may have run
                self.scratch.take(_paths(message, len(descriptors)), descriptors)
                return True
            case protocol.TERMINAL if self._lacks_terminal and len(descriptors) == 1:
                if not _is_master(descriptors[0]):
                    raise Protocol("the terminal is none")
                self._terminal = descriptors[0]
                self._lacks_terminal = False
                return True
            case protocol.READY if self._lacks_terminal:
                raise Protocol("ready without a terminal")
            case protocol.READY | protocol.STARTED as kind:
                (self._ready if kind == protocol.READY else self._started).reach()
            case protocol.FAILED:
                self._refused = _launch_failed(message)
            case protocol.ENDED if self._status is None:
                self._status = _status(message)
                self.ended.reach()
            case protocol.SIGNALLED:
                self._relayed += 1
                self._was_fatal = message.get("fatal") is True
            case protocol.ENDED:
                pass
            case kind:
                raise Protocol(f"unknown message {kind[:40]!r}")
        return False

    def _on_gone(self) -> None:
        self._loop.remove_reader(self._pidfd)
        while self._read_message():  # init's last words are in the socket even though it is gone
            pass
        self.ended.reach()
        if self._status is not None:
            self._started.reach()
        for milestone in (self._ready, self._started):
            if not milestone.is_reached:
                milestone.reach(self._refused or self._died())
        self._gone.reach()


def _paths(message: dict[str, Any], count: int) -> list[str]:
    paths = message.get("paths")
    if not isinstance(paths, list) or len(paths) != count or not all(isinstance(path, str) for path in paths):
        raise Protocol(f"not the paths of {count} places")
    return paths


def _is_master(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    return stat.S_ISCHR(found.st_mode) and (os.major(found.st_rdev), os.minor(found.st_rdev)) == PTMX


def _status(message: dict[str, Any]) -> Status:
    code, signal = message.get("code"), message.get("signal")
    if type(code) is int and 0 <= code <= 255 and signal is None:
        return Status(exit_code=code)
    if type(signal) is int and 1 <= signal <= 64 and code is None:
        return Status(signal=signal)
    raise Protocol(f"not a wait status: code {code!r}, signal {signal!r}")


def _launch_failed(message: dict[str, Any]) -> LaunchFailed:
    step, call, path, errno = message["step"], message["call"], message["path"], message["errno"]
    if not isinstance(step, str) or not isinstance(call, str) or not isinstance(path, str | None) or not isinstance(errno, int | None):
        raise Protocol("not a report of a failed step")
    return LaunchFailed(step=step[:64], call=call[:64], path=path, errno=errno, hint=launch_hint(step, call))


def launch_hint(step: str, call: str) -> str | None:
    """The way out of a step that failed, where one is known."""
    return _HINTS.get((step, call))
