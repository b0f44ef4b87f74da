"""Background shells of contract T: a registry that the host owns, and closes (1D.1).

    shells = BackgroundShells()
    tools = await create_builtin_tools(executor, background=shells)
    …
    await shells.close_all()

A shell's stdout and stderr are one stream, in order. What is kept of it is its last part, as long as the policy's output cap.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import Final, Literal

from stockade.bank.windows import MAX_CHARS
from stockade.errors import Closed, StateError, UnknownJob
from stockade.executor import Executor
from stockade.jobs.records import JobRecord

STREAM: Final = "output"
KILLED_BY_SIGNAL: Final = -1  # the exit code of a shell that a signal ended

ShellStatus = Literal["running", "killed", "exited"]


@dataclass(frozen=True, slots=True)
class BackgroundShellInfo:
    """One shell at one moment (T-1). `started` in seconds since the epoch; `exit_code` is None while it runs, -1 for a signal."""

    id: str
    command: str
    started: float
    running: bool
    exit_code: int | None = None
    killed: bool = False

    @property
    def status(self) -> ShellStatus:
        """In the words of `bash_output` (T-4)."""
        return "running" if self.running else "killed" if self.killed else "exited"

    @property
    def status_line(self) -> str:
        """The last line of what `bash_output` shows."""
        return f"[status: exited with code {self.exit_code}]" if self.status == "exited" else f"[status: {self.status}]"


@dataclass(frozen=True, slots=True)
class ShellOutput:
    """What came since the last read. `has_more`: there is more already, for the next one; `lost_bytes` are gone from what is kept."""

    content: str
    info: BackgroundShellInfo
    has_more: bool = False
    lost_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Shell:
    info: BackgroundShellInfo
    executor: Executor
    job_id: str
    error: str | None = None  # why it could not be run; read once
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class BackgroundShells:
    """The shells that the tools of one host have started, oldest first. Whoever holds the registry may do all of it."""

    def __init__(self) -> None:
        self._shells: dict[str, _Shell] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._count = 0
        self._closed = False

    def list(self) -> tuple[BackgroundShellInfo, ...]:
        """Every shell, running or over, oldest first."""
        return tuple(shell.info for shell in self._shells.values())

    async def read(self, shell_id: str) -> ShellOutput:
        """What a shell wrote since the last read. Raises: UnknownJob."""
        shell = self._known(shell_id)
        async with shell.reading:
            info = shell.info  # before the output: what is said to be over has nothing more to say
            try:
                new = await shell.executor.read_new(shell.job_id, STREAM, limit=MAX_CHARS)
            except (UnknownJob, StateError):  # it could not be run, and has written nothing
                error, shell.error = shell.error, None
                return ShellOutput(error or "", info)
        return ShellOutput(new.content, info, new.has_more, new.lost_bytes)

    async def kill_shell(self, shell_id: str) -> BackgroundShellInfo:
        """Ends a shell with everything it has started, and returns when it is gone (T-5, T-7). Raises: UnknownJob."""
        shell = self._known(shell_id)
        if shell.info.running:
            self._note(shell, await shell.executor.kill(shell.job_id, reason="kill_shell"))
        return shell.info

    async def close_all(self) -> None:
        """Ends every shell at once and waits for all of them; nothing more is started (T-7). The host calls it at its shutdown."""
        self._closed = True
        running = [shell.info.id for shell in self._shells.values() if shell.info.running]
        await asyncio.gather(*(self.kill_shell(shell_id) for shell_id in running), return_exceptions=True)
        if self._watching:
            await asyncio.wait(set(self._watching))

    killShell = kill_shell  # noqa: N815 - the contract's names (U-34)
    closeAll = close_all  # noqa: N815

    def check_open(self) -> None:
        """Raises: Closed."""
        if self._closed:
            raise Closed("these background shells were closed and start nothing more", hint="make a new BackgroundShells")

    async def add(self, executor: Executor, job_id: str, command: str) -> BackgroundShellInfo:
        """Takes in a job that has just been started for one of the tools, merged into one stream."""
        record = await executor.get(job_id)
        self._count += 1
        info = BackgroundShellInfo(f"shell-{self._count}", command, record.created_at, running=True)
        shell = self._shells[info.id] = _Shell(info, executor, job_id)
        watching = asyncio.create_task(self._watch(shell), name=f"stockade-{info.id}")
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        if self._closed:  # meanwhile
            await self.kill_shell(info.id)
            self.check_open()
        return info

    async def _watch(self, shell: _Shell) -> None:
        try:
            self._note(shell, await shell.executor.wait(shell.job_id))
        except Closed:  # the executor has ended it, and can no longer be asked how
            shell.info = dataclasses.replace(shell.info, running=False, exit_code=KILLED_BY_SIGNAL, killed=True)

    def _note(self, shell: _Shell, record: JobRecord) -> None:
        if record.settled and shell.info.running:
            killed = record.outcome is not None and record.outcome.kind == "killed" and record.outcome.by in ("caller", "shutdown")
            shell.info = dataclasses.replace(shell.info, running=False, exit_code=exit_code(record), killed=killed)
            shell.error = None if record.error is None else f"it could not be run: {record.error.message}\n"

    def _known(self, shell_id: str) -> _Shell:
        shell = self._shells.get(shell_id)
        if shell is None:
            known = ", ".join(self._shells) or "(none)"
            raise UnknownJob(f"unknown background shell {shell_id!s:.80}; the shells are {known}", field="id")
        return shell


def exit_code(record: JobRecord) -> int:
    """The exit code as contract T has it: -1 for whatever ended without one (T-6, conflict table 4.1)."""
    code = None if record.outcome is None else record.outcome.exit_code
    return KILLED_BY_SIGNAL if code is None else code
