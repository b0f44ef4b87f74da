"""One trial of a kernel primitive: a throw-away child does it for real and says what came of it.

For single-threaded programs only: a child goes on with a copy of this program. The child ends with its trial, when its parent
is gone, or when the bound has passed.

Man pages: fork(2), clone3(2), pidfd_open(2).
"""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOSYS
from typing import Any, NoReturn

from stockade.sandbox import namespaces, syscalls
from stockade.sandbox.namespaces import IdMap

BOUND = 10.0  # seconds for one trial
_STAGES = ("/tmp", "/mnt", "/run")


@dataclass(frozen=True, slots=True)
class Setting:
    """With what the trials are made: the ids that a job would have, and a directory and a cgroup to try things in."""

    has_range: bool
    uid_map: IdMap
    gid_map: IdMap
    directory: str
    cgroup: str | None


@dataclass(frozen=True, slots=True)
class Probe:
    """One primitive: `run` does it for real and says how it went, or raises what `in_child` raises.

    What is not required has a weaker mechanism, or is only wanted by some jobs.
    """

    name: str
    run: Callable[[Setting], str]
    required: bool = True


class NoEffect(Exception):
    """The calls went well, but not what they are for."""


class NotApplicable(Exception):
    """There is nothing to try here; the text says why."""


class Explained(Exception):
    """It failed, and the probe itself knows why."""

    def __init__(self, detail: str, cause: str, fix: str) -> None:
        super().__init__(detail)
        self.detail, self.cause, self.fix = detail, cause, fix


class Died(Exception):
    """A signal ended the child before it could say anything."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a signal ended the child: {os.WTERMSIG(status)}")
        self.number = os.WTERMSIG(status)
        self.dumped_core = os.WCOREDUMP(status)


def in_child(
    work: Callable[[], str],
    *,
    flags: int = 0,
    setting: Setting | None = None,
    cgroup: int | None = None,
    before: Callable[[], None] | None = None,
) -> str:
    """Runs `work` in a child and returns what it says; its failure is raised here as if `work` had been called.

    `flags` and `cgroup` are those of clone3(2); with `setting` the child's new user namespace gets its ids, and the child is root in
    it where it has one. `before` is called in the parent, before the child starts its work.

    Raises: OSError with the failing call; NoEffect, NotApplicable, Died.
    """
    child = Child(work, flags=flags, setting=setting, cgroup=cgroup)
    try:
        if before is not None:
            before()
        child.go()
        return child.answer()
    finally:
        child.end()


class Child:
    """A child that waits for `go`, works, and answers."""

    def __init__(self, work: Callable[[], str], *, flags: int = 0, setting: Setting | None = None, cgroup: int | None = None) -> None:
        self._setting = setting
        gate_read, self._gate = os.pipe2(os.O_CLOEXEC)
        self._answer, answer_write = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid, self._pidfd = _start(flags, cgroup)
            if self.pid == 0:
                os.close(self._gate)  # or the parent's end would never be noticed
                _work(work, setting, gate_read, answer_write)
        except BaseException:
            os.close(self._gate)
            os.close(self._answer)
            raise
        finally:
            os.close(gate_read)
            os.close(answer_write)
        self._is_reaped = False

    def go(self) -> None:
        """Gives the child its ids and lets it work."""
        if self._setting is not None:
            uid_map, gid_map = self._setting.uid_map, self._setting.gid_map
            namespaces.write_id_maps(self.pid, uid_map, gid_map, deny_setgroups=not self._setting.has_range)
        try:
            os.write(self._gate, b"g")
        except BrokenPipeError:
            pass  # it is dead already, which `answer` finds

    def answer(self) -> str:
        """Waits for what the child says."""
        data = _read_line(self._answer)
        if data is None:
            raise NoEffect(f"nothing came of it within {BOUND:g} s")
        if not data:
            status = self.reap()
            if os.WIFSIGNALED(status):
                raise Died(status)
            raise NoEffect(f"the child ended with code {os.WEXITSTATUS(status)} and said nothing")
        said: dict[str, Any] = json.loads(data)
        match said["is"]:
            case "ok":
                return str(said["text"])
            case "no effect":
                raise NoEffect(said["text"])
            case "not applicable":
                raise NotApplicable(said["text"])
        raise syscalls.KernelError(said["call"], said["path"], said["errno"])

    def reap(self) -> int:
        """Waits for its end; its wait status."""
        self._is_reaped = True
        return os.waitpid(self.pid, 0)[1]

    def kill(self) -> None:
        """Kills and reaps the child, whatever it does."""
        if not self._is_reaped:
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self.reap()

    def end(self) -> None:
        """Ends the child and forgets it."""
        os.close(self._gate)
        os.close(self._answer)
        self.kill()
        if self._pidfd >= 0:
            os.close(self._pidfd)


def wait_for_end_of(descriptor: int) -> str:
    """What a child does that is only there to be frozen or killed: waits until the other end of a pipe is closed."""
    os.read(descriptor, 1)
    return ""


def stage() -> str:
    """In a child with a mount namespace of its own: a small tmpfs to make things in, as the working directory; its path."""
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    place = next((path for path in _STAGES if os.path.isdir(path)), "/tmp")
    syscalls.mount("tmpfs", place, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=1048576,nr_inodes=256,mode=0755")
    os.chdir(place)
    return place


def expect_errno(expected: int, what: str, attempt: Callable[[], object]) -> None:
    """Does something that must be refused with this errno.

    Raises: NoEffect, where it is not; OSError, where the kernel has no such call.
    """
    try:
        attempt()
    except OSError as error:
        if error.errno == expected:
            return
        if error.errno == ENOSYS:
            raise
        raise NoEffect(f"{what} was refused with {error.strerror!r}, not with {os.strerror(expected)!r}") from None
    raise NoEffect(f"{what} was not refused")


def _start(flags: int, cgroup: int | None) -> tuple[int, int]:
    if flags or cgroup is not None:
        return syscalls.clone3(flags | syscalls.CLONE_PIDFD, cgroup=cgroup)
    # fork, not clone3: so that one missing call does not fail every probe.
    pid = os.fork()  # noqa: TID251 - a trial must be able to go wrong without us
    if pid == 0:
        return 0, -1
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        return pid, -1  # an old kernel, or a filter: the trial has no bound then


def _work(work: Callable[[], str], setting: Setting | None, gate: int, answer: int) -> NoReturn:
    try:
        if os.read(gate, 1) != b"g":
            os._exit(1)
        said: dict[str, Any]
        try:
            if setting is not None:
                namespaces.become_namespace_root(has_range=setting.has_range)
            said = {"is": "ok", "text": work()}
        except OSError as error:
            path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
            said = {"is": "failed", "call": getattr(error, "call", None) or "system call", "path": path, "errno": error.errno or 0}
        except NoEffect as seen:
            said = {"is": "no effect", "text": str(seen)}
        except NotApplicable as why:
            said = {"is": "not applicable", "text": str(why)}
        os.write(answer, json.dumps(said).encode() + b"\n")
        os._exit(0)
    except BaseException:
        traceback.print_exc()  # a bug of ours; standard error is shown by the doctor
        raise
    finally:
        os._exit(70)  # whatever happens, a child never goes on as a second parent


def _read_line(descriptor: int) -> bytes | None:
    """One line, or less where the child ends before; None where the bound passes first. A grandchild may hold the pipe longer."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    data = b""
    while not data.endswith(b"\n"):
        if not poll.poll(BOUND * 1000):
            return None
        piece = os.read(descriptor, 65536)
        if not piece:
            break
        data += piece
    return data
