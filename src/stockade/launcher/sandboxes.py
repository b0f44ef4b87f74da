"""Sandboxes: each is a cgroup leaf, a range of host ids, an init that has built its root, and the pipes of the one command to come.

A sandbox serves one command and is then removed, whatever happened. One is built ahead for the shape that was used last, so that
the next command of that shape need not wait: it is as fresh as any other, since nothing has ever run in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Awaitable
from errno import EBUSY
from typing import Final

from stockade.errors import LaunchFailed, StockadeError
from stockade.ids import new_job_id
from stockade.launcher.idslots import IdSlots, caller_map, range_map
from stockade.launcher.process import KILL_BOUND, ProcessTree
from stockade.launcher.scratch import Filling
from stockade.launcher.spawn import LAUNCH_BOUND, ForkServer
from stockade.launcher.waiting import wait_done
from stockade.sandbox import cgroup, protocol
from stockade.sandbox.counters import Usage
from stockade.sandbox.limitfiles import LIMIT_OF_FILE
from stockade.sandbox.spec import JOB_GID, JOB_UID, SandboxSpec

_log = logging.getLogger(__name__)

STANDBY_SECONDS: Final = 30.0  # a sandbox that nobody has wanted for so long is removed; the host may have changed
STANDBY_DELAY: Final = 0.01  # seconds after a start: to build at once would take the processors from the job that is starting
RUSH: Final = 0.005  # seconds between the end of a job and the next start: who starts job after job would only wait for that delay


class Sandbox:
    """One sandbox; made by `Sandboxes.take`, ended by `remove`."""

    def __init__(self, name: str, leaf: cgroup.Leaf, slots: IdSlots | None, spec: SandboxSpec) -> None:
        """Takes a range of ids, makes the pipes and writes the request; blocks."""
        self.name = name
        self.leaf = leaf
        self.notes: list[str] = []
        self.filled: dict[str, Filling] = {}  # how full the job's own places were at its end; filled in by `remove`
        self.stdout_read = self.stdout_write = self.stderr_read = self.stderr_write = self.command = self.stdin = self._body = -1
        self._input = -1  # our end of a standard input that is written while the job runs
        self._has_terminal = spec.terminal is not None
        self._given: list[int] = []
        self._slots = slots
        self._slot: int | None = None
        self._tree: ProcessTree | None = None
        try:
            self._open(spec)
        except BaseException:
            self.remove()
            raise

    def _open(self, spec: SandboxSpec) -> None:
        if self._slots is not None:
            self._slot = self._slots.take()
        self.stdout_read, self.stdout_write = os.pipe2(os.O_CLOEXEC)
        self.stderr_read, self.stderr_write = os.pipe2(os.O_CLOEXEC)
        self.command = os.memfd_create("stockade-command", os.MFD_CLOEXEC)
        self._body = protocol.write_body(spec.wire())
        self._given = [self.leaf.open_procs()]
        pipes = [self.stdout_write, self.stderr_write]
        if spec.interactive:
            stdin, self._input = os.pipe2(os.O_CLOEXEC)
            pipes.append(stdin)
        else:
            self.stdin = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            # What init gets: the job may read its input, not change it.
            stdin = os.open(f"/proc/self/fd/{self.stdin}", os.O_RDONLY | os.O_CLOEXEC)
        self._given.append(stdin)
        if self._slot is not None:  # or /dev/stdout could not be opened by the job
            owner = range_map(self._slot)[1]
            for descriptor in pipes:
                os.fchown(descriptor, owner + JOB_UID, owner + JOB_GID)

    @property
    def tree(self) -> ProcessTree:
        assert self._tree is not None
        return self._tree

    async def build(self, server: ForkServer, *, merge: bool) -> None:
        """Has init build the root; returns when it waits for its command.

        Raises: LaunchFailed, with the step; Closed, where the fork server is gone.
        """
        procs, stdin = self._given
        stderr = self.stdout_write if merge else self.stderr_write
        try:
            pidfd, report = await server.launch(
                self.name,
                (self._body, self.leaf.directory, procs, self.command, stdin, self.stdout_write, stderr),
                uid_map=caller_map(JOB_UID, os.getuid()) if self._slot is None else range_map(self._slot),
                gid_map=caller_map(JOB_GID, os.getgid()) if self._slot is None else range_map(self._slot),
            )
        finally:
            self._close_given()
        self._tree = ProcessTree(pidfd=pidfd, report=report, request=self._body, leaf=self.leaf, has_terminal=self._has_terminal)
        await self._bounded(self._tree.wait_ready())

    def message(self, spec: SandboxSpec, stdin: bytes | None) -> bytes | None:
        """The command as the message that has init start it; None where it has input or is too large, and `write_command` must."""
        if stdin is not None:
            return None
        message = protocol.encode("command", command=spec.wire_command(has_stdin=spec.interactive))
        return message if len(message) <= protocol.MAX_MESSAGE else None

    def write_command(self, spec: SandboxSpec, stdin: bytes | None) -> bytes:
        """Puts the command and its whole input where init will find them, and gives the message that says so; blocks."""
        protocol.fill_body(self.command, spec.wire_command(has_stdin=stdin is not None or spec.interactive))
        if spec.interactive:
            return protocol.encode("command")
        view = memoryview(stdin or b"")
        while view:
            view = view[os.write(self.stdin, view) :]
        # Through /proc/self/fd/0 the job could open it anew for writing.
        fcntl.fcntl(self.stdin, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        return protocol.encode("command")

    async def execute(self, message: bytes) -> None:
        """Starts the command, with the message of `message` or `write_command`; returns once the program has been executed.

        Raises: LaunchFailed, with the step, where it could not be.
        """
        await self._bounded(self.tree.start_command(message))

    def take_pipes(self, *, merge: bool) -> tuple[int, ...]:
        """The read ends of the streams, now the caller's: standard output and error, or one for both.

        With a terminal, all output is the first one's, and the second one ends at once.
        """
        if self._has_terminal:
            os.close(self.stdout_read)
            self.stdout_read = self.tree.take_terminal()
        taken = (self.stdout_read,) if merge else (self.stdout_read, self.stderr_read)
        if merge:
            os.close(self.stderr_read)
        self.stdout_read = self.stderr_read = -1
        return taken

    def open_input(self) -> int:
        """A descriptor to write the job's standard input by, non-blocking and the caller's; before `take_pipes`."""
        descriptor = self.tree.copy_terminal() if self._has_terminal else self._input
        if not self._has_terminal:
            self._input = -1
        os.set_blocking(descriptor, False)
        return descriptor

    async def end(self) -> None:
        """Kills whatever is left in it and waits until no process is; `remove` may follow."""
        if self._tree is not None and not self._tree.is_gone:
            try:
                await self._tree.kill()
            except TimeoutError:
                self.notes.append("init did not end when it was killed")

    def remove(self) -> Usage:
        """Removes what `end` has emptied; what its cgroup counted is read just before that goes. Blocks."""
        self._close_own()
        if not self.leaf.wait_empty(KILL_BOUND):
            self.notes.append(f"processes {self.leaf.processes()} were still there {KILL_BOUND:g} s after they were killed")
        if self._tree is not None:
            self.filled = self._tree.scratch.measure()
            self._tree.scratch.close()
        usage = self.leaf.usage()
        try:
            self.leaf.remove()
        except OSError as error:
            self.leaf.close()
            self.notes.append(f"the cgroup could not be removed: {error.strerror}")
            if error.errno == EBUSY:
                return usage  # its ids are still in use: the slot is never given back
        if self._slot is not None and self._slots is not None:
            self._slots.give_back(self._slot)
            self._slot = None
        return usage

    def close(self) -> None:
        """Closes what watches its processes; on the event loop, after `end`."""
        if self._tree is not None:
            self._tree.close()

    async def abandon(self) -> None:
        """Kills its init in place and closes it, without a thread; its cgroup goes with the executor, its ids are not given back."""
        if self._tree is not None:
            self._tree.kill_init()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_BOUND):
                    await self._tree.wait_gone()
            self._tree.close()
            self._tree.scratch.close()
        self._close_own()
        self.leaf.close()

    async def _bounded(self, waiting: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(LAUNCH_BOUND):
                await waiting
        except TimeoutError:
            raise LaunchFailed(step="start", call="init", path=None, errno=None, hint="the host is overloaded") from None

    def _close_own(self) -> None:
        self._close_given()
        for descriptor in (self.stdout_read, self.stderr_read, self.command, self.stdin, self._input):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout_read = self.stderr_read = self.command = self.stdin = self._input = -1
        if self._tree is None and self._body >= 0:
            os.close(self._body)
            self._body = -1

    def _close_given(self) -> None:
        for descriptor in (self.stdout_write, self.stderr_write, *self._given):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout_write = self.stderr_write = -1
        self._given.clear()


class Sandboxes:
    """Makes sandboxes, and keeps one ready of the shape that was used last."""

    def __init__(self, tree: cgroup.Tree, server: ForkServer, slots: IdSlots | None, *, standby: bool = True) -> None:
        self._tree = tree
        self._server = server
        self._slots = slots
        self._keeps_standby = standby
        self._shape: tuple[object, ...] | None = None
        self._next: asyncio.Task[Sandbox | None] | None = None
        self._wanted: tuple[SandboxSpec, bool] | None = None  # what the next one is to be built from, while it is due
        self._due: asyncio.TimerHandle | None = None
        self._last_end = -RUSH  # of a job, on the clock of the event loop
        self._expiry: asyncio.TimerHandle | None = None
        self._removals: set[asyncio.Task[object]] = set()

    def take_ready(self, spec: SandboxSpec, *, merge: bool) -> Sandbox | None:
        """The sandbox that stands by, where it is one for this spec and waits for its command already."""
        if spec.interactive or self._next is None or not self._next.done() or self._shape != (*spec.shape, merge):
            return None
        task, self._next = self._next, None
        sandbox = self._alive(task)
        if sandbox is not None:
            self._want_next(spec, merge=merge)
        return sandbox

    async def take(self, spec: SandboxSpec, *, merge: bool) -> Sandbox:
        """A sandbox for this spec, ready for its command.

        One whose input is written while it runs is always built anew, and leaves what stands by for other jobs as it is.

        Raises: LaunchFailed, TooManyJobs, Closed; nothing is left of it then.
        """
        if spec.interactive:
            return await self._build(spec, merge=merge)
        sandbox = None
        if self._next is not None and self._shape == (*spec.shape, merge):
            task, self._next = self._next, None
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                task.cancel()
                self._remove_later(task)  # it may have been built by now, and would be nobody's
                raise
            sandbox = self._alive(task)
        if sandbox is None:
            sandbox = await self._build(spec, merge=merge)
        self._want_next(spec, merge=merge)
        return sandbox

    def note_end(self) -> None:
        """Tells that a job has ended just now."""
        self._last_end = asyncio.get_running_loop().time()

    def build_due(self) -> None:
        """Begins to build the next sandbox, where one is due; for a moment at which no job waits for the processors."""
        if self._wanted is None:
            return
        (spec, merge), self._wanted = self._wanted, None
        self._stop_clocks()
        self._next = asyncio.create_task(self._build_quietly(spec, merge=merge), name="stockade-standby")
        self._expiry = asyncio.get_running_loop().call_later(STANDBY_SECONDS, self._discard)

    async def close(self) -> None:
        """Removes what is ready and waits for every removal."""
        self._keeps_standby = False
        if self._next is not None:
            self._next.cancel()
        self._discard()
        while self._removals:
            await asyncio.wait(self._removals)

    def _alive(self, task: asyncio.Task[Sandbox | None]) -> Sandbox | None:
        """What a task has built, where nobody has killed it since."""
        sandbox = task.result()
        if sandbox is not None and sandbox.tree.is_dead:
            self._remove_later(task)
            return None
        return sandbox

    def _want_next(self, spec: SandboxSpec, *, merge: bool) -> None:
        shape = (*spec.shape, merge)
        if self._keeps_standby and (self._next is None or self._shape != shape):
            self._discard()
            self._shape, self._wanted = shape, (spec, merge)
            loop = asyncio.get_running_loop()
            if loop.time() - self._last_end < RUSH:
                self.build_due()
            else:
                self._due = loop.call_later(STANDBY_DELAY, self.build_due)

    def _stop_clocks(self) -> None:
        for clock in (self._due, self._expiry):
            if clock is not None:
                clock.cancel()
        self._due = self._expiry = None

    def _discard(self) -> None:
        self._stop_clocks()
        self._wanted = None
        task, self._next = self._next, None
        if task is not None:
            self._remove_later(task)

    def _remove_later(self, task: asyncio.Task[Sandbox | None]) -> None:
        async def removal() -> None:
            await asyncio.wait({task})
            if not task.cancelled() and (sandbox := task.result()) is not None:
                await _dispose(sandbox)

        removing: asyncio.Task[object] = asyncio.create_task(removal(), name="stockade-standby-removal")
        self._removals.add(removing)
        removing.add_done_callback(self._removals.discard)

    async def _build_quietly(self, spec: SandboxSpec, *, merge: bool) -> Sandbox | None:
        """Whoever needs a sandbox builds one and hears of the failure; this one was only ahead of time."""
        with contextlib.suppress(StockadeError, OSError):
            return await self._build(spec, merge=merge)
        return None

    async def _build(self, spec: SandboxSpec, *, merge: bool) -> Sandbox:
        making = asyncio.get_running_loop().run_in_executor(None, self._make, spec)
        cancelled = await wait_done(making)
        if cancelled is not None and making.exception() is not None:
            raise cancelled
        sandbox = making.result()
        try:
            if cancelled is not None:
                raise cancelled
            await sandbox.build(self._server, merge=merge)
        except BaseException:
            disposing = asyncio.create_task(_dispose(sandbox), name="stockade-disposal")
            if (late := await wait_done(disposing)) is not None:
                raise late from None
            if not disposing.cancelled() and (error := disposing.exception()) is not None:
                _log.error("a sandbox that could not be built is left to the executor's end", exc_info=error)
                await sandbox.abandon()
            raise
        return sandbox

    def _make(self, spec: SandboxSpec) -> Sandbox:
        name = f"job-{new_job_id()}"
        try:
            leaf = self._tree.make_leaf(name, spec.cgroup)
        except OSError as error:
            call = "mkdir" if error.filename == name else "write"
            hint = limit_hint(error.filename, error.strerror)
            raise LaunchFailed(step="cgroup", call=call, path=error.filename, errno=error.errno, hint=hint) from None
        return Sandbox(name, leaf, self._slots, spec)


def limit_hint(file: str | None, why: str | None) -> str | None:
    """What to change where the kernel refused to write a limit to a file of the leaf."""
    limit = LIMIT_OF_FILE.get(file or "")
    return why if limit is None else f"{why}: change limits.{limit}, or leave it out"


async def _dispose(sandbox: Sandbox) -> None:
    """Ends and removes a sandbox that no command will use."""
    await sandbox.end()
    sandbox.close()
    await asyncio.to_thread(sandbox.remove)
