"""The bash executor of contract D on sealed jobs: `bash -c <command>` in a sandbox, its whole output in the bank (1B.3, U-34).

What a result shows of a stream is its tail; what a read shows of a background task is what came since the last read. Both are
bounded by `max_output_bytes`, and the bank's file is the spill: always written, and named where it holds the whole stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stockade.bank.windows import held_back
from stockade.config import Config
from stockade.errors import Closed, InvalidRequest, StateError, StockadeError, UnknownJob
from stockade.executor import Executor
from stockade.policy.checks import text
from stockade.policy.model import Overflow, Policy
from stockade.seam import (
    BashExecRequest,
    BashExecSpec,
    BashExecutor,
    BashRunResult,
    BashTask,
    BashTaskId,
    BashTaskRead,
    CollectedOutput,
    OwnerToken,
    abort_reason,
    unknown_task,
)
from stockade.tools.bash_policy import MAX_MS, QUIET, check_directory, checked_ms, shell_policy, signal_of

TIMEOUT_MS: Final = 120_000
MAX_TIMEOUT_MS: Final = 600_000
MAX_OUTPUT_BYTES: Final = 64_000  # of each stream, in a result or in one read
MAX_SPILL_BYTES: Final = 64 << 20  # up to this length a stream is whole in one file
GRACE_MS: Final = 3_000
SHELL: Final = "bash"
_WHO: Final = "bash-local"
_CLOSED: Final = "its bash executor was closed"
# The bank cuts a stream that is kept as a tail into quarters of its cap.
_FILES: Final = 4


@dataclass(slots=True)
class _Stream:
    """How far a task's stream has been delivered."""

    position: int = 0
    total: int = 0
    spill_path: str | None = None
    is_lost: bool = False  # purged before it was read, which has been said


@dataclass(slots=True)
class _Entry:
    task: BashTask
    owner: OwnerToken | None
    job_id: str | None = None
    note: str | None = None  # why it could not be started; delivered once
    streams: dict[str, _Stream] = field(default_factory=lambda: {"stdout": _Stream(), "stderr": _Stream()})
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class SandboxedBash(BashExecutor):
    """Shell commands in sandboxes below one directory; `open` makes one with an executor of its own."""

    def __init__(
        self,
        executor: Executor,
        *,
        cwd: str | os.PathLike[str],
        policy: Policy | None = None,
        timeout_ms: float = TIMEOUT_MS,
        max_timeout_ms: float = MAX_TIMEOUT_MS,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        max_spill_bytes: int = MAX_SPILL_BYTES,
        grace_ms: float = GRACE_MS,
    ) -> None:
        """On an open executor, which stays the caller's to close. `cwd` is the directory that commands see and may write to.

        `policy` says what else they see, and how much they may use. Raises: InvalidRequest naming the field; PolicyError.
        """
        super().__init__()
        self._executor = executor
        self._owns_executor = False
        self.cwd = os.fspath(cwd)
        self._timeout_ms = checked_ms("timeout_ms", timeout_ms, what=_WHO)
        self._max_timeout_ms = checked_ms("max_timeout_ms", max_timeout_ms, what=_WHO)
        self._window = int(checked_ms("max_output_bytes", max_output_bytes, what=_WHO))
        self._max_spill = int(checked_ms("max_spill_bytes", max_spill_bytes, what=_WHO))
        if checked_ms("grace_ms", grace_ms, what=_WHO) > MAX_MS:
            raise InvalidRequest(f"{_WHO}: grace_ms is longer than a timer can be", field="grace_ms", hint=f"give at most {MAX_MS}")
        self._policy = shell_policy(policy, self.cwd).replace(
            overflow=Overflow.KEEP_TAIL,
            merge_streams=False,
            limits={"grace": min(grace_ms / 1_000, 3_600.0), "output": max(_FILES * self._max_spill, self._window)},
        )
        self._job_owner = f"bash-{secrets.token_hex(8)}"
        self._entries: dict[BashTaskId, _Entry] = {}
        self._running: set[str] = set()  # jobs, of tasks and of foreground commands
        self._work: set[asyncio.Task[None]] = set()
        self._started = 0

    @classmethod
    async def open(
        cls,
        *,
        cwd: str | os.PathLike[str] | None = None,
        config: Config | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> SandboxedBash:
        """With an executor of its own, which `close` closes; `cwd` is that of this process where none is given.

        Raises: HostUnfit, StateError, and what the constructor raises.
        """
        executor = Executor(Policy(), config=config, environment=environment)
        await executor.__aenter__()
        try:
            bash = cls(executor, cwd=cwd if cwd is not None else await executor.call(os.getcwd), **options)
        except BaseException:
            await executor.close()
            raise
        bash._owns_executor = True
        return bash

    async def __aenter__(self) -> SandboxedBash:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def resolve(self, request: BashExecRequest) -> BashExecSpec:
        """See `BashExecutor.resolve`; a relative workdir is one below `cwd`."""
        try:
            if not text(request.command).strip():
                raise ValueError("is blank: give a shell command")
        except ValueError as error:
            raise InvalidRequest(f"{_WHO}: command: {error}", field="command") from None
        wanted = self._timeout_ms if request.timeout_ms is None else checked_ms("timeout_ms", request.timeout_ms, what=_WHO)
        return BashExecSpec(
            command=request.command,
            workdir=posixpath.join(self.cwd, request.workdir) if request.workdir else self.cwd,
            timeout_ms=min(wanted, self._max_timeout_ms),
            signal=request.signal,
            stdin=request.stdin,
            env=request.env,
            owner=request.owner,
        )

    async def run(self, spec: BashExecSpec) -> BashRunResult:
        """See `BashExecutor.run`. When the calling task is cancelled, the command is ended first."""
        self._check_open()
        _refuse_aborted(spec)
        job_id = await self._launch(spec, timeout_ms=spec.timeout_ms, settle_failures=False)
        try:
            record = await self._executor.wait(job_id)
        except asyncio.CancelledError:
            await asyncio.shield(self._executor.kill(job_id, reason="the caller's task was cancelled"))
            raise
        finally:
            self._running.discard(job_id)
        if record.outcome is None:
            await self._executor.result(job_id)  # raises the reason
        assert record.outcome is not None
        return BashRunResult(
            exit_code=record.outcome.exit_code,
            signal=signal_of(record),
            timed_out=record.outcome.kind == "timed_out",
            aborted=record.outcome.kind == "aborted",
            timeout_ms=spec.timeout_ms,
            stdout=await self._collected(job_id, "stdout"),
            stderr=await self._collected(job_id, "stderr"),
        )

    async def start(self, spec: BashExecSpec) -> BashTask:
        """See `BashExecutor.start`. What cannot be started is a task that was killed, and its reason is read as its stderr."""
        self._check_open()
        _refuse_aborted(spec)
        self._started += 1
        task = BashTask(BashTaskId(f"bash-{self._started}"), spec.command)
        entry = self._entries[task.id] = _Entry(task, spec.owner)
        try:
            entry.job_id = await self._launch(spec, timeout_ms=None, settle_failures=True)
        except InvalidRequest as error:
            entry.note = f"spawn failed: {error}"
            self._over(entry, "killed")
            return task
        except BaseException:
            self._entries.pop(task.id, None)
            raise
        self._keep(self._see_through(entry, entry.job_id))
        if task.status == "killed":  # meanwhile, by who found it in the list
            self._keep(self._executor.kill(entry.job_id))
        return task

    def get(self, task_id: str) -> BashTask | None:
        entry = self._entries.get(BashTaskId(task_id))
        return None if entry is None else entry.task

    def owner_of(self, task_id: str) -> OwnerToken | None:
        entry = self._entries.get(BashTaskId(task_id))
        return None if entry is None else entry.owner

    def list(self) -> tuple[BashTask, ...]:
        return tuple(entry.task for entry in self._entries.values())

    async def read_output(self, task_id: str) -> BashTaskRead:
        """See `BashExecutor.read_output`; one read is at most `max_output_bytes` of each stream, and never half a character (U-19)."""
        entry = self._entry(task_id)
        async with entry.reading:
            finished = entry.task.done.is_set()
            stdout, lossy_out = await self._delta(entry, "stdout", finished=finished)
            stderr, lossy_err = await self._delta(entry, "stderr", finished=finished)
            if entry.note is not None:
                stderr, entry.note = stderr + entry.note, None
            paths = {name: each.spill_path for name, each in entry.streams.items()}
        return BashTaskRead(
            task=entry.task,
            delta=sections(stdout, stderr),
            lossy=lossy_out or lossy_err,
            stdout_spill_path=paths["stdout"],
            stderr_spill_path=paths["stderr"],
        )

    async def kill(self, task_id: str) -> bool:
        """See `BashExecutor.kill`. A task that had ended by itself turns out as completed, whenever the kill came (U-25)."""
        entry = self._entry(task_id)
        if entry.task.status != "running":
            return False
        entry.task.status = "killed"
        if entry.job_id is not None:
            self._keep(self._executor.kill(entry.job_id))
            await asyncio.sleep(0)
        return True

    async def _close(self) -> None:
        await asyncio.gather(*(self._executor.kill(job_id, reason=_CLOSED) for job_id in self._running), return_exceptions=True)
        while self._work:
            await asyncio.wait(set(self._work))
        self._entries.clear()
        if self._owns_executor:
            await self._executor.close()

    async def _launch(self, spec: BashExecSpec, *, timeout_ms: float | None, settle_failures: bool) -> str:
        await self._executor.call(check_directory, "workdir", spec.workdir, self._policy)
        policy = self._policy.replace(limits={"wall_time": None if timeout_ms is None else timeout_ms / 1_000})
        job = await self._executor.start_with_policy(
            [SHELL, "-c", spec.command],
            policy,
            owner=self._job_owner,
            settle_failures=settle_failures,
            abort=spec.signal,
            cwd=spec.workdir,
            env={**QUIET, **(spec.env or {})},
            stdin=None if spec.stdin is None else spec.stdin.encode(errors="replace"),
            label=spec.command[:200],
        )
        if self.is_closed:  # meanwhile
            await self._executor.kill(job.id, reason=_CLOSED)
            self._check_open()
        self._running.add(job.id)
        return job.id

    async def _see_through(self, entry: _Entry, job_id: str) -> None:
        try:
            record = await self._executor.wait(job_id)
        except Closed:  # the executor has ended it, and can no longer be asked how
            self._over(entry, "killed")
            return
        finally:
            self._running.discard(job_id)
        if record.outcome is None:
            entry.note = f"spawn failed: {record.error.message if record.error is not None else record.state}"
            self._over(entry, "killed")
            return
        entry.task.exit_code, entry.task.signal = record.outcome.exit_code, signal_of(record)
        self._over(entry, "completed" if record.outcome.kind == "exited" else "killed")

    def _over(self, entry: _Entry, status: str) -> None:
        entry.task.status = "completed" if status == "completed" else "killed"
        entry.task.done.set()
        self._announce(entry.task)

    def _keep(self, work: Coroutine[Any, Any, object]) -> None:
        async def done() -> None:
            with contextlib.suppress(Closed):  # whatever was still to be ended is
                await work

        task = asyncio.create_task(done())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _entry(self, task_id: str) -> _Entry:
        entry = self._entries.get(BashTaskId(task_id))
        if entry is None:
            raise unknown_task(task_id)
        return entry

    async def _collected(self, job_id: str, stream: str) -> CollectedOutput:
        try:
            total = (await self._executor.read_bytes(job_id, stream, limit=1)).total_bytes
        except (UnknownJob, StateError):  # called off before it ran
            return CollectedOutput("")
        start = max(0, total - self._window)
        data = await self._bytes(job_id, stream, start, total)
        path = None if start == 0 else await self._spill_path(job_id, stream)
        return CollectedOutput(_from_boundary(data, cut=start > 0).decode("utf-8", "replace"), start > 0, path)

    async def _delta(self, entry: _Entry, stream: str, *, finished: bool) -> tuple[str, bool]:
        """The next text of a stream, or the tail of it where it is longer than a read may be."""
        if entry.job_id is None:
            return "", False
        state = entry.streams[stream]
        try:
            total = (await self._executor.read_bytes(entry.job_id, stream, offset=state.position, limit=1)).total_bytes
        except (UnknownJob, StateError):
            return "", await self._is_lost(entry.job_id, state)
        lossy = total - state.position > self._window
        begin = total - self._window if lossy else state.position
        data = await self._bytes(entry.job_id, stream, begin, total)
        if total > self._window:
            state.spill_path = await self._spill_path(entry.job_id, stream)
        if lossy:
            whole = _from_boundary(data, cut=True)
            begin, data = begin + len(data) - len(whole), whole
        shown, used = (data.decode("utf-8", "replace"), len(data)) if finished else held_back(data)
        state.position = begin + used
        return shown, lossy

    async def _is_lost(self, job_id: str, state: _Stream) -> bool:
        """True, once, where a job has been purged; one that never ran has written nothing."""
        if state.is_lost:
            return False
        try:
            await self._executor.get(job_id)
        except UnknownJob:
            state.is_lost = True
        return state.is_lost

    async def _bytes(self, job_id: str, stream: str, start: int, end: int) -> bytes:
        data = b""
        while len(data) < end - start:
            page = await self._executor.read_bytes(job_id, stream, offset=start + len(data), limit=end - start - len(data))
            if not page.data:
                break
            data += page.data
        return data

    async def _spill_path(self, job_id: str, stream: str) -> str | None:
        """The bank's file, where it is one and holds the stream from its beginning."""
        paths = await self._executor.files(job_id, stream)
        return paths[0] if len(paths) == 1 and await self._executor.call(os.path.exists, paths[0]) else None


def sections(stdout: str, stderr: str) -> str:
    """Both streams as one text: stderr below a header, with a line break between them only where one is missing (1B.3)."""
    if not stderr:
        return stdout
    between = "\n" if stdout and not stdout.endswith("\n") else ""
    return f"{stdout}{between}[stderr]\n{stderr}"


def _from_boundary(data: bytes, *, cut: bool) -> bytes:
    """Without the rest of a character that was cut off at the head."""
    skip = 0
    while cut and skip < min(3, len(data)) and 0x80 <= data[skip] < 0xC0:
        skip += 1
    return data[skip:]


def _refuse_aborted(spec: BashExecSpec) -> None:
    if spec.signal is not None and spec.signal.is_set():
        raise StockadeError(f"aborted before spawn: {abort_reason(spec.signal)}")
