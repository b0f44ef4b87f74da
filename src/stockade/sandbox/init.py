"""Pid 1 of a job: builds the root, gives up all power, starts the command, reaps, relays signals, reports how it ended.

`main` is the order of isolation, read from top to bottom. Each step is announced on the channel before it is tried; a step that
fails is reported with the call, the path and the errno, and init goes away with everything it made.

When the command ends, its wait status is reported before anything else, and then init exits: the kernel kills every process that
is left in the pid namespace (pid_namespaces(7)). Init goes the same way when the fork server is gone, which a pidfd of it tells
even where the parent-death signal was missed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from errno import ESTALE
from types import TracebackType
from typing import Any, NoReturn

from stockade.errors import Protocol
from stockade.sandbox import namespaces, privileges, protocol, rootfs, syscalls, terminals

# Their default action does not end a process (signal(7)).
_HARMLESS = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGWINCH,
    }
)


class Channel:
    """Init's end of the report socket; also marks the step that is under way where the executor can read it."""

    def __init__(self, connection: socket.socket, marker: int) -> None:
        self.connection = connection
        self._marker = marker
        self._step = "start"

    def say(self, kind: str, **fields: Any) -> None:
        # By write(2): a filter may forbid every call that is made for sockets.
        os.write(self.connection.fileno(), protocol.encode(kind, **fields))

    def give(self, kind: str, descriptors: list[int], **fields: Any) -> None:
        """Says it with descriptors, which are closed here; before the filter, which may forbid sendmsg(2)."""
        protocol.send(self.connection, protocol.encode(kind, **fields), tuple(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def step(self, name: str) -> Channel:
        self._step = name
        protocol.mark_step(self._marker, name)
        return self

    def fail(self, error: OSError) -> None:
        call = getattr(error, "call", "system call")
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
        shown = path.encode("utf-8", "backslashreplace").decode()[:1024] if path is not None else None
        self.say(protocol.FAILED, step=self._step, call=call, path=shown, errno=error.errno)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError):
            self.fail(error)
            os._exit(1)


class Request:
    """What the fork server hands over: the plan, and the descriptors that belong to this sandbox."""

    def __init__(
        self,
        *,
        spec: dict[str, Any],
        filter_program: bytes,
        has_range: bool,
        sources: list[int | None] | None,
        body: int,
        report: socket.socket,
        command: int,
        stdio: tuple[int, int, int],
        lifeline: int,
        join_cgroup: int | None,
    ) -> None:
        self.spec = spec
        self.filter_program = filter_program
        self.has_range = has_range  # the job has host ids of its own (root), or only the caller's (rootless)
        self.sources = sources  # detached binds, where the fork server could make them
        self.body = body  # the memfd of the request; its head says which step is under way
        self.report = report
        self.command = command  # a memfd that holds a command which is too large for a message, once the executor says so
        self.stdio = stdio  # standard input (a memfd or a pipe, used where the command has input), output and error
        self.lifeline = lifeline  # a pidfd of the fork server
        self.join_cgroup = join_cgroup  # cgroup.procs, where CLONE_INTO_CGROUP does not work on this host


def main(request: Request, gate: int) -> NoReturn:
    """Runs as the child of clone3 and never returns."""
    spec, channel = request.spec, Channel(request.report, request.body)
    with channel.step("gate"):
        _wait_for_id_maps(gate)
    with channel.step("cgroup"):
        if request.join_cgroup is not None:
            _join_cgroup(request.join_cgroup)
    with channel.step("identity"):
        namespaces.become_namespace_root(has_range=request.has_range)
        privileges.die_with_parent()
        _check_lifeline(request.lifeline)
    with channel.step("session"):
        os.setsid()
        syscalls.join_new_session_keyring()
    with channel.step("names"):
        socket.sethostname(spec["hostname"])
        if spec["loopback"]:
            namespaces.bring_loopback_up()
    with channel.step("mounts"):
        os.umask(0)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        sources = request.sources
        if sources is None:
            sources = rootfs.open_binds(spec["mounts"], None)
        root = rootfs.build(spec["mounts"], sources, inotify=spec["inotify"], shm_bytes=spec["shm_bytes"])
        os.umask(0o022)
    with channel.step("pivot"):
        rootfs.enter(root)
        os.close(root)
        paths, places = rootfs.open_scratch(spec["mounts"])
        channel.give(protocol.PLACES, places, paths=paths)
    with channel.step("terminal"):
        terminal = _open_terminal(channel, spec, has_range=request.has_range)
    with channel.step("signals"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        children = syscalls.signalfd({signal.SIGCHLD})
    with channel.step("privileges"):
        privileges.drop_all(spec["uid"], spec["gid"], request.filter_program)
    with channel.step("limits"):
        privileges.set_limits(spec["rlimits"])
    channel.say(protocol.READY)
    with channel.step("ready"):
        command = _await_command(request)
    with channel.step("cwd"):
        _enter_directory(command["cwd"])
    with channel.step("exec"):
        pid = _start_command(command, request.stdio, terminal)
    channel.say(protocol.STARTED)
    _close_all_but(request.report.fileno(), request.lifeline, children, *(() if terminal is None else (terminal.slave,)))
    _supervise(channel, pid, children, request.lifeline)


def _open_terminal(channel: Channel, spec: dict[str, Any], *, has_range: bool) -> terminals.Pseudoterminal | None:
    """The job's terminal, where it is to have one; the executor gets the master, and no copy stays here.

    Before the filter, which may forbid sendmsg(2).
    """
    if spec["terminal"] is None:
        return None
    rows, columns = spec["terminal"]
    terminal = terminals.open_pseudoterminal(rows, columns, (spec["uid"], spec["gid"]) if has_range else None)
    protocol.send(channel.connection, protocol.encode(protocol.TERMINAL), (terminal.master,))
    os.close(terminal.master)
    return terminal


def _wait_for_id_maps(gate: int) -> None:
    if os.read(gate, 1) != b"g":
        os._exit(1)  # the fork server is gone
    os.close(gate)


def _join_cgroup(descriptor: int) -> None:
    os.write(descriptor, b"0")
    os.close(descriptor)
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)


def _check_lifeline(lifeline: int) -> None:
    """The parent may have died before the parent-death signal was set; getppid() is 0 in a new pid namespace and says nothing."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(0):
        os._exit(1)


def _await_command(request: Request) -> dict[str, Any]:
    """Waits until the executor sends the command, or says that it has been written; one that is never used waits until it is killed."""
    poll = select.poll()
    poll.register(request.lifeline, select.POLLIN)
    poll.register(request.report.fileno(), select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
    if request.lifeline in ready or not (message := os.read(request.report.fileno(), protocol.MAX_MESSAGE)):
        os._exit(1)  # the fork server or the executor is gone
    command: dict[str, Any] | None = protocol.decode(message).get("command")
    return command if command is not None else protocol.read_body(request.command)


def _enter_directory(path: str) -> None:
    """The working directory, and proof that it is the one inside: a link planted on the way must not lead elsewhere."""
    try:
        os.chdir(os.fsencode(path))
    except OSError as error:
        raise syscalls.KernelError("chdir", path, error.errno or 0) from None
    if os.getcwdb() != os.fsencode(path):
        raise syscalls.KernelError("chdir", path, ESTALE)


def _start_command(command: dict[str, Any], stdio: tuple[int, int, int], terminal: terminals.Pseudoterminal | None) -> int:
    """Starts the program in a session of its own, with three descriptors and a clean signal state; returns its pid.

    A terminal is all three of them, and controls the session.

    By posix_spawn(3): the child borrows our memory until it executes, so no page table is copied, and a failed exec is our own
    OSError. Every descriptor of ours is close-on-exec; those that init itself no longer needs are closed below.
    """
    argv = [os.fsencode(argument) for argument in command["argv"]]
    environment = [os.fsencode(entry) for entry in command["env"]]
    executable = os.fsencode(command["executable"])
    if terminal is not None:
        return syscalls.posix_spawn_on_terminal(executable, argv, environment, terminal.path.encode())
    for standard, descriptor in enumerate(stdio):  # posix_spawn takes none beyond the limit of open files, which holds already
        os.dup2(descriptor, standard)
    given = 0 if command["has_stdin"] else None
    return syscalls.posix_spawn(executable, argv, environment, stdin=given, stdout=1, stderr=2)


def _close_all_but(*kept: int) -> None:
    """Init keeps its channels and nothing else; a copy of the command's pipes would keep them open after its end."""
    first = 0
    for descriptor in sorted(kept):
        if descriptor > first:
            syscalls.close_range(first, descriptor - 1)
        first = descriptor + 1
    syscalls.close_range(first)


def _supervise(channel: Channel, command: int, children: int, lifeline: int) -> NoReturn:
    """Reaps, relays and waits for the end of the command or of the fork server; every wait is a poll over descriptors."""
    poll = select.poll()
    for descriptor in (children, lifeline, channel.connection.fileno()):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if children in ready:
            _drain(children)
            _reap(channel, command)
        if lifeline in ready:
            os._exit(1)
        if channel.connection.fileno() in ready:
            _reap(channel, command)  # a command that has ended by itself was not ended by this signal
            _relay(channel, command)


def _drain(children: int) -> None:
    try:
        while os.read(children, 4096):
            pass
    except BlockingIOError:
        pass


def _reap(channel: Channel, command: int) -> None:
    """Collects every dead child; the command's own status is reported at once, and then init goes and takes all with it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == command:
            if os.WIFSIGNALED(status):
                channel.say(protocol.ENDED, signal=os.WTERMSIG(status))
            else:
                channel.say(protocol.ENDED, code=os.WEXITSTATUS(status))
            os._exit(0)


def _relay(channel: Channel, command: int) -> None:
    """Sends the wanted signal to every process of the job; a stopped one is woken up to see it."""
    data = os.read(channel.connection.fileno(), protocol.MAX_MESSAGE)
    if not data:
        os._exit(1)  # the executor is gone
    try:
        number = int(protocol.decode(data)["signal"])
    except (Protocol, KeyError, ValueError, TypeError):
        return
    is_fatal = _is_fatal(command, number)
    for each in (number, signal.SIGCONT) if number not in (signal.SIGSTOP, signal.SIGTSTP) else (number,):
        try:
            os.kill(-1, each)  # noqa: TID251 - -1 is the whole pid namespace, init excepted
        except OSError:  # nobody is left, or it is no signal: never a reason for init to go
            pass
    channel.say(protocol.SIGNALLED, signal=number, fatal=is_fatal)


def _is_fatal(command: int, number: int) -> bool:
    """True where the signal can only end the command, which neither catches, ignores nor blocks it (proc_pid_status(5)).

    The kernel drops it where the command is ending already, and then its exit code tells that it has ended by itself.
    """
    if number in _HARMLESS:
        return False
    try:
        status = os.open(f"/proc/{command}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # it has made itself invisible
    try:
        lines = os.read(status, 16384).split(b"\n")  # all that the kernel escapes in the command's name
    except OSError:
        return False
    finally:
        os.close(status)
    masks = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigBlk:", b"SigIgn:", b"SigCgt:"))]
    return len(masks) == 3 and not any(mask >> (number - 1) & 1 for mask in masks)
