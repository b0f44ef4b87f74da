"""The executor's end of the fork server: starts it, hands it requests, and gets a pidfd of every init.

The fork server is started with `-I -S`, an empty environment and nothing inherited but its socket, a pidfd of this process and the
file by which it enters its own cgroup leaf. It is never restarted behind a running job: when it is gone, so is every job.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket

# The fork server, and the probes of the doctor, are the only programs that we start ourselves.
import subprocess  # noqa: TID251
import sys
from collections.abc import AsyncIterator, Sequence
from errno import EMFILE, ENOBUFS, ENOMEM, ETIMEDOUT, ETOOMANYREFS
from signal import SIGKILL
from typing import Any

from stockade.errors import Closed, HostUnfit, LaunchFailed, Protocol
from stockade.launcher.process import launch_hint
from stockade.launcher.waiting import wait_done
from stockade.sandbox import protocol
from stockade.sandbox.cgroup import Leaf
from stockade.sandbox.namespaces import IdMap
from stockade.sandbox.spec import Identity

_log = logging.getLogger(__name__)

START_BOUND = 20.0  # seconds until the fork server must be ready
LAUNCH_BOUND = 30.0  # seconds until it must have answered a request
END_BOUND = 2.0  # seconds until it must have ended by itself, which takes it no time
_KILLED_BOUND = 5.0  # seconds until the pipes of a program that was killed must have ended
_RETRY = 0.05  # seconds
# Memory for a datagram, or descriptors that one user may have on the way (unix(7)): a job of the same user can hold all of those.
_SHORT_OF = (ENOBUFS, ENOMEM, ETOOMANYREFS)
# argv: how many paths, the paths, then what the module's `main` finds from argv[1] on
_BOOT = "import sys; n = 2 + int(sys.argv[1]); sys.path[:0] = sys.argv[2:n]; del sys.argv[1:n]; from {} import main; main()"


class ForkServer:
    """A running fork server; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._probed: asyncio.Future[bool] | None = None
        self._answers: dict[str, asyncio.Future[int]] = {}
        self._turn = asyncio.Lock()  # one request at a time is written to the socket
        self._room = asyncio.Event()  # the socket takes more, or is gone
        self._filters: set[str] = set()
        self.is_lost = False
        channel.setblocking(False)
        self._loop.add_reader(channel.fileno(), self._on_readable)

    @classmethod
    async def start(cls, *, leaf: Leaf, identity: Identity, log: int, bound: float = START_BOUND) -> ForkServer:
        """Starts the program in its own cgroup leaf; what it prints goes to the descriptor `log`.

        Raises: HostUnfit, where it does not come up.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        # The thread works with our descriptors, and makes a process of ours: it is waited for, whatever happens.
        spawning = asyncio.get_running_loop().run_in_executor(None, _popen, theirs.fileno(), leaf, identity, log)
        cancelled = await wait_done(spawning)
        theirs.close()
        try:
            process = spawning.result()
        except BaseException:
            ours.close()
            if cancelled is not None:
                raise cancelled from None
            raise
        server = cls(process, ours)
        try:
            if cancelled is not None:
                raise cancelled
            async with asyncio.timeout(bound):
                await server._ready
        except BaseException as error:
            process.kill()  # it has no jobs yet
            if (late := await wait_done(asyncio.create_task(server.close()))) is not None:
                raise late from None
            if not isinstance(error, TimeoutError | LaunchFailed):
                raise
            why = f"not ready within {bound:g} s" if isinstance(error, TimeoutError) else "it ended at once"
            raise HostUnfit(f"the fork server did not come up: {why}", feature="fork server", hint="see `stockade doctor`") from None
        return server

    async def probe(self, scratch: Leaf) -> bool:
        """True where CLONE_INTO_CGROUP works here; tried once with an empty scratch leaf."""
        self._probed = self._loop.create_future()
        async with _bounded(START_BOUND):
            await self._send(protocol.encode("probe"), (scratch.directory,))
            await self._probed
        return self._probed.result()

    async def enter_by_procs(self) -> None:
        """Has every init join its cgroup by cgroup.procs, without trying CLONE_INTO_CGROUP."""
        async with _bounded(START_BOUND):
            await self._send(protocol.encode("join"))

    async def add_filter(self, name: str, program: bytes) -> None:
        """Gives the fork server a compiled seccomp profile."""
        if name not in self._filters:
            body = os.memfd_create("stockade-filter", os.MFD_CLOEXEC)  # a program may be larger than a datagram
            try:
                os.pwrite(body, program, 0)
                async with _bounded(LAUNCH_BOUND):
                    await self._send(protocol.encode("filter", name=name), (body,))
            finally:
                os.close(body)
            self._filters.add(name)

    async def launch(self, name: str, descriptors: Sequence[int], *, uid_map: IdMap, gid_map: IdMap) -> tuple[int, socket.socket]:
        """Clones an init; returns its pidfd and our end of its report socket, at once: it has yet to build its sandbox.

        `descriptors` are the request's body, the leaf, its cgroup.procs, the command, and the three streams; the caller's to close.

        Raises: LaunchFailed; Closed, where the fork server is gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        answer: asyncio.Future[int] = self._loop.create_future()
        self._answers[name] = answer
        try:
            message = protocol.encode("launch", sandbox=name, uid_map=uid_map, gid_map=gid_map)
            async with _bounded(LAUNCH_BOUND):
                await self._send(message, (descriptors[0], theirs.fileno(), *descriptors[1:]))
                await answer
            return answer.result(), ours
        except BaseException:
            ours.close()
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                os.close(answer.result())  # cancelled at the very moment at which it came
            raise
        finally:
            self._answers.pop(name, None)
            theirs.close()

    async def close(self) -> None:
        """Ends the fork server, and with it every job that still runs; waits for its end."""
        self._lose()
        try:
            await asyncio.to_thread(self._process.wait, END_BOUND)
        except subprocess.TimeoutExpired:  # stopped, say
            self._process.kill()
            await asyncio.to_thread(self._process.wait, START_BOUND)

    @property
    def has_ended(self) -> bool:
        """True where its process is gone, even before its socket has told so."""
        return self.is_lost or self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Its host pid, for tests and diagnosis."""
        return self._process.pid

    async def _send(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Sends one request, once there is room for it.

        Raises: Closed, where the fork server is gone; LaunchFailed, where this request cannot be sent (EMSGSIZE, EBADF).
        """
        async with self._turn:
            while not self.is_lost:
                try:
                    protocol.send(self._channel, message, descriptors)
                    return
                except BlockingIOError:
                    await self._wait_for_room()
                except (BrokenPipeError, ConnectionError):
                    self._lose()
                except OSError as error:
                    if error.errno not in _SHORT_OF:
                        raise LaunchFailed(step="request", call="sendmsg", path=None, errno=error.errno, hint=error.strerror) from None
                    await asyncio.sleep(_RETRY)  # nothing tells when there is some again; who sends has a bound
        raise Closed("the fork server is gone", hint="make a new executor")

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self._loop.add_writer(self._channel.fileno(), self._room.set)
        try:
            await self._room.wait()
        finally:
            if not self.is_lost:
                self._loop.remove_writer(self._channel.fileno())

    def _on_readable(self) -> None:
        try:
            data, descriptors = protocol.receive(self._channel)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        except protocol.DescriptorsLost as error:
            self._fail_cut(error.data)
            return
        except Protocol:
            _log.exception("the fork server broke its protocol")
            return
        if not data:
            self._lose()
            return
        try:
            self._take(protocol.decode(data), descriptors)
        except (Protocol, LookupError, TypeError, ValueError):  # what it was about has a bound
            _log.exception("the fork server broke its protocol")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fail_cut(self, data: bytes) -> None:
        """A pidfd did not reach us; its init ends when the launch that has failed closes the report socket."""
        _log.warning("the process limit of open files was reached as a sandbox was launched")
        try:
            answer = self._answers.get(protocol.decode(data)["sandbox"])
        except (Protocol, LookupError, TypeError):
            return
        if answer is not None and not answer.done():
            hint = "raise the limit of open files of this process (RLIMIT_NOFILE), or run fewer jobs at once"
            answer.set_exception(LaunchFailed(step="clone", call="recvmsg(pidfd)", path=None, errno=EMFILE, hint=hint))

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message["is"]:
            case "ready":
                if not self._ready.done():
                    self._ready.set_result(None)
            case "probed" if self._probed is not None:
                if not self._probed.done():
                    self._probed.set_result(bool(message["into_cgroup"]))
            case "launched":
                answer = self._answers.get(message["sandbox"])
                if answer is not None and not answer.done():
                    answer.set_result(descriptors.pop())
            case "refused":
                answer = self._answers.get(message["sandbox"])
                if answer is not None and not answer.done():
                    step, call = message["step"], message["call"]
                    hint = launch_hint(step, call)
                    answer.set_exception(LaunchFailed(step=step, call=call, path=message["path"], errno=message["errno"], hint=hint))
            case kind:
                raise Protocol(f"the fork server said {kind!r}")

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._channel.close()
        self._room.set()
        error = LaunchFailed(step="clone", call="fork server", path=None, errno=None, hint="the fork server is gone; make a new executor")
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), self._ready, *([self._probed] if self._probed else [])]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()


@contextlib.asynccontextmanager
async def _bounded(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise LaunchFailed(step="clone", call="fork server", path=None, errno=ETIMEDOUT, hint="the host is overloaded") from None


def run_isolated(module: str, *arguments: str, bound: float) -> subprocess.CompletedProcess[bytes]:
    """Runs the `main` of a module of the kernel layer in a fresh interpreter, and gives what it printed; blocks.

    After `bound` seconds it is killed, which its status tells; what it had printed by then is given all the same.

    Raises: HostUnfit, where it cannot be started.
    """
    process = _popen_isolated(module, arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        stdout, stderr = process.communicate(timeout=bound)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            stdout, stderr = process.communicate(timeout=_KILLED_BOUND)
        except subprocess.TimeoutExpired as late:  # it cannot die, or a child of it holds the pipes
            stdout, stderr = late.output or b"", late.stderr or b""
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.poll()
    return subprocess.CompletedProcess(process.args, -SIGKILL if process.returncode is None else process.returncode, stdout, stderr)


def _popen(channel: int, leaf: Leaf, identity: Identity, log: int) -> subprocess.Popen[bytes]:
    executor = os.pidfd_open(os.getpid())
    try:
        own_cgroup = leaf.open_procs()
        try:
            given = (channel, executor, own_cgroup)
            arguments = (*map(str, given), str(identity))
            return _popen_isolated("stockade.sandbox.forkserver", arguments, stdout=log, stderr=log, pass_fds=given)
        finally:
            os.close(own_cgroup)
    finally:
        os.close(executor)


def _popen_isolated(
    module: str, arguments: Sequence[str], *, stdout: int, stderr: int, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Starts the `main` of a module of the kernel layer in a fresh interpreter, with nothing but what is given here."""
    paths = import_paths()
    # The real interpreter: a pyenv shim costs 100 ms, a virtual environment's link would need site-packages.
    interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    try:
        return subprocess.Popen(
            [interpreter, "-I", "-S", "-c", _BOOT.format(module), str(len(paths)), *paths, *arguments],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is for us to handle, also while it starts
        )
    except OSError as error:
        raise HostUnfit(
            f"the interpreter {interpreter!r} cannot be started: {error.strerror}",
            feature="interpreter",
            hint="use an interpreter that this user can read and execute",
        ) from None


def import_paths() -> list[str]:
    """Where the fork server finds this package and python-prctl, and nothing before the standard library that it can avoid."""
    paths = []
    for name, depth in (("stockade", 2), ("prctl", 1)):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise HostUnfit(f"the module {name!r} cannot be found", feature=name, hint="install the package with its dependencies")
        path = found.origin
        for _ in range(depth):
            path = os.path.dirname(path)
        paths.append(path)
    return paths
