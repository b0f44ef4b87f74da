"""The seam of contract D (1B.1, 1B.2): what runs a model's shell commands, as a class that anybody may implement.

    class Mine(BashExecutor):
        def resolve(self, request: BashExecRequest) -> BashExecSpec: ...

It must never import what runs processes here (jobs, launcher, sandbox): an implementation for another machine needs none of it.
Durations are milliseconds, as in the contract; an executor belongs to one event loop.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NewType, Protocol

from stockade.errors import Closed, InvalidRequest, UnknownJob

_LOG: Final = logging.getLogger("stockade")

BashTaskId = NewType("BashTaskId", str)
OwnerToken = NewType("OwnerToken", str)  # opaque to the executor; the empty string is one
BashTaskStatus = Literal["running", "completed", "killed"]


class AbortSignal(asyncio.Event):
    """An event that says why it was set. Plain events do as well; their reason is "aborted"."""

    def __init__(self) -> None:
        super().__init__()
        self.reason: str | None = None

    def abort(self, reason: str | None = None) -> None:
        """Sets it; the first reason holds."""
        if not self.is_set():
            self.reason = reason
            self.set()


def abort_reason(signal: asyncio.Event) -> str:
    """Why it was set; "aborted" where nobody said."""
    reason: object = getattr(signal, "reason", None)
    return reason if isinstance(reason, str) and reason else "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class BashExecRequest:
    """What a caller asks for; `resolve` makes it a spec."""

    command: str
    workdir: str | None = None
    timeout_ms: float | None = None
    signal: asyncio.Event | None = None
    stdin: str | None = None  # written, then closed
    env: Mapping[str, str] | None = None  # merged last
    owner: OwnerToken | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BashExecSpec:
    """What will be run. `owner` has no default, so that a forgotten one shows."""

    command: str
    workdir: str
    timeout_ms: float
    owner: OwnerToken | None
    signal: asyncio.Event | None = None
    stdin: str | None = None
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CollectedOutput:
    """One stream: its tail where `truncated`; `spill_path` then names the file with all of it, where there is a safe one."""

    text: str
    truncated: bool = False
    spill_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BashRunResult:
    """How a foreground command ended. `exit_code` is None after a signal, `signal` (such as SIGTERM) is None without one."""

    exit_code: int | None
    signal: str | None
    timed_out: bool
    aborted: bool
    timeout_ms: float  # the one in force
    stdout: CollectedOutput
    stderr: CollectedOutput


@dataclass(slots=True, eq=False)
class BashTask:
    """A background command, live: its executor changes it. `done` is set when it is over, and cannot fail."""

    id: BashTaskId
    command: str
    status: BashTaskStatus = "running"
    exit_code: int | None = None
    signal: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class BashTaskRead:
    """What came since the last read; `lossy` says that some of it is gone from memory, and the paths where all of it is."""

    task: BashTask
    delta: str
    lossy: bool = False
    stdout_spill_path: str | None = None
    stderr_spill_path: str | None = None


Listener = Callable[[BashTask], object]
Disposer = Callable[[], None]


class Scope(Protocol):
    """What may own a listener; `contextlib.ExitStack` and `AsyncExitStack` are such."""

    def callback(self, callback: Callable[[], None], /) -> Any:
        """Calls `callback` when the scope ends."""


class BashExecutor(abc.ABC):
    """Runs shell commands in the foreground and in the background. It holds no access policy: owners are its callers' affair (D-9).

    Implementations call `_announce` once for each task that is over, after they have set its `done`.
    """

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._numbers = itertools.count()
        self._announced: set[BashTaskId] = set()
        self._closing: asyncio.Task[None] | None = None

    @abc.abstractmethod
    def resolve(self, request: BashExecRequest) -> BashExecSpec:
        """The request with every default filled in and every cap applied: nothing else ever does (D-2). Raises: InvalidRequest."""

    @abc.abstractmethod
    async def run(self, spec: BashExecSpec) -> BashRunResult:
        """Runs a command to its end. Failing, being timed out and being aborted are results (D-3).

        Raises: an error only where it could not be run: no such directory, no shell, aborted before.
        """

    @abc.abstractmethod
    async def start(self, spec: BashExecSpec) -> BashTask:
        """Starts a command and returns at once. No timeout applies; `kill` and the spec's signal end it (D-4)."""

    @abc.abstractmethod
    def get(self, task_id: str) -> BashTask | None:
        """The task of that id."""

    @abc.abstractmethod
    def owner_of(self, task_id: str) -> OwnerToken | None:
        """Its owner's token as it was given; None for a task that is unknown or unowned (D-9)."""

    @abc.abstractmethod
    def list(self) -> tuple[BashTask, ...]:
        """Every task, running or over, in the order of their starts."""

    @abc.abstractmethod
    async def read_output(self, task_id: str) -> BashTaskRead:
        """What a task wrote since the last read; never the same twice (D-6). Raises: UnknownJob."""

    @abc.abstractmethod
    async def kill(self, task_id: str) -> bool:
        """Has a task end, without waiting for it; False where it was over or being killed already (D-7). Raises: UnknownJob."""

    @abc.abstractmethod
    async def _close(self) -> None:
        """Ends every running task and waits until each is gone; listeners are silent already (D-8)."""

    def on_task_done(self, listener: Listener, *, scope: Scope | None = None) -> Disposer:
        """Calls `listener` once for each task that is over from now on; returns what removes it, which the end of `scope` does too.

        What a listener raises is logged: it neither harms the task nor keeps the next listener from its turn (D-5).
        """
        number = next(self._numbers)
        self._listeners[number] = listener

        def remove() -> None:
            self._listeners.pop(number, None)

        if scope is not None:
            scope.callback(remove)
        return remove

    async def close(self) -> None:
        """Ends everything and waits for it; silent from the first moment on. Whoever calls it meanwhile waits for the same end (D-8)."""
        self._listeners.clear()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="stockade-bash-close")
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            await asyncio.wait({self._closing})
            raise

    @property
    def is_closed(self) -> bool:
        """True from the first call of `close` on."""
        return self._closing is not None

    def _announce(self, task: BashTask) -> None:
        """Tells the listeners that a task is over; a second time does nothing."""
        if task.id in self._announced or self.is_closed:
            return
        self._announced.add(task.id)
        for number in tuple(self._listeners):
            listener = self._listeners.get(number)
            if listener is None:
                continue
            try:
                listener(task)
            except Exception:  # noqa: BLE001 - whatever it raises is its own affair
                _LOG.exception("a listener failed for bash task %s", task.id)

    def _check_open(self) -> None:
        """Raises: Closed."""
        if self.is_closed:
            raise Closed("this bash executor was closed and starts nothing more", hint="make a new one")


class BashContext:
    """Where the tool layer finds the one executor of its host (D-1)."""

    def __init__(self) -> None:
        self._executor: BashExecutor | None = None

    @property
    def executor(self) -> BashExecutor | None:
        """The executor, where there is one."""
        return self._executor

    def provide(self, executor: BashExecutor) -> Disposer:
        """Makes it the executor of this context; returns what takes it away. Raises: InvalidRequest where there is one."""
        if self._executor is not None:
            raise InvalidRequest(
                "this context has a bash executor already", field="executor", hint="take the first one away, or make a second context"
            )
        self._executor = executor

        def withdraw() -> None:
            if self._executor is executor:
                self._executor = None

        return withdraw


def unknown_task(task_id: str) -> UnknownJob:
    """The error for an id that no task has (1B.3)."""
    return UnknownJob(f'unknown bash task "{task_id!s:.80}"', field="task_id")
