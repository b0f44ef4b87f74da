"""Background commands for agents (contract N): started at once, looked at later, owned by the host object that started them.

    async with await BackgroundCommands.open() as commands:
        commands.register_background_command_tools(BackgroundCommandPolicy(allowed_executables=["git"], cwd_root="/srv/project"))
        await commands.tools.call("run_command_bg", {"argv": ["git", "status"]})

The methods raise typed errors; the tools refuse in band. Everything else is the executor's: this module says who may see what, and
in which words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal as signal_names
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from stockade.bank.artifacts import ArtifactStore
from stockade.bank.references import PREVIEW_CHARS, ArtifactKind, ContentType, Reference
from stockade.bank.windows import DEFAULT_CHARS, MAX_CHARS, Page, Tail, clamp
from stockade.config import Config
from stockade.errors import Closed, InvalidRequest, StateError, UnknownJob
from stockade.executor import Executor
from stockade.jobs.records import JobRecord
from stockade.jobs.starts import named
from stockade.policy.model import Policy
from stockade.tools import command_checks, command_policy, wire
from stockade.tools.checklist import SHARED, Checklists
from stockade.tools.command_checks import checked
from stockade.tools.command_policy import BackgroundCommandPolicy
from stockade.tools.command_tools import command_tools
from stockade.tools.retrieval import HostArtifacts
from stockade.tools.schemas import CallContext
from stockade.tools.sessions import HostSession
from stockade.tools.toolset import Toolset
from stockade.tools.wire import STREAMS, CommandHandle, CommandStatus, Counts, OutputPage, StreamName

DISPOSED: Final = "its host instance was disposed"


class BackgroundCommands:
    """One host of background commands: it sees the commands that it started, and no others (N-I1).

    `tools` is what it has on offer; hosts may register more there. `session` says whose conversation a call belongs to.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        tools: Toolset | None = None,
        session: HostSession | None = None,
        artifact_store: ArtifactStore | None = None,
        checklists: Checklists = SHARED,
        strict_states: bool = False,
    ) -> None:
        """On an open executor, which stays the caller's to close. `checklists` get the counters of this host's commands.

        `strict_states` shows `failed` for what could not be started, where N says `exited`.
        """
        self.tools = tools if tools is not None else Toolset()
        self.session = session if session is not None else HostSession()
        self._executor = executor
        self._owns_executor = False
        self._owner = f"host-{secrets.token_hex(8)}"
        self._strict = strict_states
        self._checklists = checklists
        self._removals: list[Callable[[], None]] = []
        self._policy: BackgroundCommandPolicy | None = None
        self._started: dict[str, None] = {}  # every id, in order; ids are small, and a command is forgotten only once it was purged
        self._unsettled: set[str] = set()
        self._disposed = False
        self._artifacts = HostArtifacts(executor, self.session, self.tools, self._started.__contains__)
        if artifact_store is not None:
            self._artifacts.set_store(artifact_store)

    @classmethod
    async def open(
        cls, policy: Policy | None = None, *, config: Config | None = None, environment: Mapping[str, str] | None = None, **options: Any
    ) -> BackgroundCommands:
        """A host with an executor of its own, which `dispose` closes; `policy` is what its commands' own policies start from.

        Raises: HostUnfit, StateError.
        """
        executor = Executor(policy or Policy(), config=config, environment=environment)
        host = cls(executor, **options)
        host._owns_executor = True
        await executor.__aenter__()
        return host

    async def __aenter__(self) -> BackgroundCommands:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.dispose()

    # Policy

    def set_policy(self, policy: BackgroundCommandPolicy) -> None:
        """What commands may do from now on; replaces what was set before, and has checklists count the commands (N-P3)."""
        if not self._removals:
            self._removals.append(self._checklists.add_source("commands", self.counts))
        self._policy = policy

    def get_policy(self) -> BackgroundCommandPolicy | None:
        """What was set last."""
        return self._policy

    def register_background_command_tools(self, policy: BackgroundCommandPolicy) -> None:
        """Sets the policy and puts the four tools on offer; a second call replaces the policy and adds nothing (1A.12)."""
        self.set_policy(policy)
        self.tools.register(*command_tools(self))

    # Commands

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | os.PathLike[str],
        timeout_ms: float | None = None,
        max_output_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
        label: str | None = None,
        session_id: str | None = None,
        abort_signal: asyncio.Event | None = None,
    ) -> CommandHandle:
        """Starts a command under the host's policy and returns before it has begun (N-S6).

        Raises: NotAllowed, InvalidRequest, each with its way out, in the order of N-V1 to N-V8; Closed; TooManyJobs.
        """
        if self._policy is None:
            raise command_checks.no_policy()
        return await self.start_with_policy(
            argv,
            self._policy,
            cwd=cwd,
            timeout_ms=timeout_ms,
            max_output_bytes=max_output_bytes,
            env=env,
            label=label,
            session_id=session_id,
            abort_signal=abort_signal,
        )

    async def start_with_policy(
        self,
        argv: Sequence[str],
        policy: BackgroundCommandPolicy,
        *,
        cwd: str | os.PathLike[str],
        timeout_ms: float | None = None,
        max_output_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
        label: str | None = None,
        session_id: str | None = None,
        abort_signal: asyncio.Event | None = None,
    ) -> CommandHandle:
        """As `start`, under a policy that neither needs nor changes the host's (N-P5). `env` is the whole environment (N-S3)."""
        if self._disposed:
            raise _disposed()
        command = command_checks.check_argv(argv, policy)
        budget = checked("timeout_ms", command_policy.timeout_ms, policy.default_timeout_ms if timeout_ms is None else timeout_ms)
        cap = checked(
            "max_output_bytes", command_policy.output_bytes, policy.max_output_bytes if max_output_bytes is None else max_output_bytes
        )

        # The executor is given the root as the host names it, and so sees each link on the way: one that a job could plant is refused.
        def look() -> tuple[str, str]:
            root = os.path.abspath(policy.cwd_root)
            return command_checks.resolve_within_root(cwd, root)[0], root

        real, root = await self._executor.call(look)
        command_checks.check_allowlist(policy, command, real)
        job = await self._executor.start_with_policy(
            command,
            policy.compile(self._executor.policy, root, timeout_ms=budget, max_output_bytes=cap),
            owner=self._owner,
            session=self.session.resolve(CallContext(session_id)),
            artifacts=True,
            settle_failures=True,
            abort=abort_signal,
            cwd=real,
            env=env,
            replace_env=env is not None,
            label=label,
        )
        self._started[job.id] = None
        self._unsettled.add(job.id)
        if self._disposed:  # meanwhile
            await self._executor.kill(job.id, reason=DISPOSED)
            raise _disposed()
        record = await self._executor.get(job.id)
        return CommandHandle(job.id, command, int(record.created_at * 1_000))

    async def status(self, task_id: str) -> CommandStatus:
        """How a command stands now; counts as having looked where it has settled (N-R1). Raises: UnknownJob."""
        self._check_known(task_id)
        record, tails = await self._seen(task_id)
        if record.settled:
            self._unsettled.discard(task_id)
            await self._executor.wait(task_id, 0)  # which says that it has been seen
            self._artifacts.offer()
        return wire.status_of(record, tails, strict_states=self._strict)

    async def wait(self, task_id: str, timeout_ms: float | None = None) -> CommandStatus:
        """Its status once it has settled, or after `timeout_ms`; the bound limits the wait only (N-R2). Raises: UnknownJob."""
        self._check_known(task_id)
        seconds = None if timeout_ms is None else max(0.0, checked("timeout_ms", _bound_ms, timeout_ms) / 1_000)
        await self._record(task_id)
        await self._executor.wait(task_id, seconds, caller=self._owner)
        return await self.status(task_id)

    async def kill(self, task_id: str, signal: str | int = "SIGTERM") -> CommandStatus:
        """Ends a command and gives its settled status; one that has settled is left as it is (N-K6).

        Raises: UnknownJob; InvalidRequest for a signal that is none.
        """
        self._check_known(task_id)
        number = _signal_number(signal)
        await self._record(task_id)
        await self._executor.kill(task_id, signal=number, caller=self._owner)
        return await self.status(task_id)

    async def kill_all(self) -> int:
        """Ends every command of this host and gives their number; never raises (N-K7)."""
        alive = []
        for task_id in tuple(self._unsettled):
            try:
                if not (await self._record(task_id)).settled:
                    alive.append(task_id)
            except UnknownJob:
                continue  # it has ended, and was purged
            except Closed:
                return 0  # the executor has ended them all
        ended = await asyncio.gather(*(self._executor.kill(each, reason=DISPOSED) for each in alive), return_exceptions=True)
        self._unsettled.difference_update(each for each, end in zip(alive, ended, strict=True) if isinstance(end, JobRecord))
        return len(alive)

    async def read_output(self, task_id: str, stream: str = "stdout", offset: int = 0, limit: int = DEFAULT_CHARS) -> OutputPage:
        """A window of a stream's text, also while it grows; a stream that is none is taken for stdout (N-R4).

        Raises: UnknownJob; InvalidRequest for an offset or a limit that is no whole number.
        """
        self._check_known(task_id)
        name: StreamName = next((known for known in STREAMS if known == stream), "stdout")
        offset = max(checked("offset", _whole, offset), 0)
        limit = clamp(checked("limit", _whole, limit), 1, MAX_CHARS)
        page: Page | None = None
        if not wire.is_waiting(await self._record(task_id)):
            with contextlib.suppress(UnknownJob, StateError, OSError):  # its files are gone: an empty page
                page = await self._executor.read(task_id, name, offset=offset, limit=limit)
        return wire.output_page(task_id, name, page, offset=offset, limit=limit)

    def counts(self, session_id: str | None = None) -> Counts:
        """How many of this host's commands run, and how many have ended unseen, in one session (1A.8)."""
        session = self.session.resolve(CallContext(session_id))
        counters = self._executor.counters(self._owner, session)
        return Counts(counters.running, counters.finished)

    async def dispose(self) -> tuple[Exception, ...]:
        """Ends every command, then the executor where it is this host's own; what went wrong is returned, not raised (1A.12)."""
        self._disposed = True
        errors: list[Exception] = []
        for step in (self.kill_all, *((self._executor.close,) if self._owns_executor else ())):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - none of the steps may prevent the next
                errors.append(error)
        while self._removals:
            self._removals.pop()()
        return tuple(errors)

    # Artifacts

    def offer_retrieval(self) -> None:
        """Puts `retrieve_context` on offer, before the first artifact does."""
        self._artifacts.offer()

    def get_artifact_store(self) -> ArtifactStore:
        """See `HostArtifacts.get_store`."""
        return self._artifacts.get_store()

    def set_artifact_store(self, store: ArtifactStore) -> None:
        """See `HostArtifacts.set_store`."""
        self._artifacts.set_store(store)

    async def bank_artifact(
        self,
        payload: bytes | str,
        *,
        kind: ArtifactKind,
        label: str = "",
        session_id: str | None = None,
        content_type: ContentType = "text",
        preview_chars: int = PREVIEW_CHARS,
    ) -> Reference:
        """See `HostArtifacts.bank`."""
        return await self._artifacts.bank(
            payload, kind=kind, label=label, session_id=session_id, content_type=content_type, preview_chars=preview_chars
        )

    async def read_artifact(self, artifact_id: str, offset: int = 0, limit: int | None = None) -> Page | None:
        """See `HostArtifacts.read`."""
        return await self._artifacts.read(artifact_id, offset, limit)

    # What the above is made of

    def _check_known(self, task_id: str) -> None:
        if task_id in self._started:
            return
        if self._started:
            known = named(tuple(reversed(self._started)))
            raise UnknownJob(f'No background command "{task_id!s:.80}". Known ids: {known}; use one of those.', field="task_id")
        raise UnknownJob(
            f'No background command "{task_id!s:.80}": this instance has not started any. Start one with run_command_bg.', field="task_id"
        )

    async def _record(self, task_id: str) -> JobRecord:
        """The record of a known id. Raises: UnknownJob, where the command has been purged; its id is forgotten then."""
        try:
            return await self._executor.get(task_id, caller=self._owner)
        except UnknownJob:
            self._started.pop(task_id, None)
            self._unsettled.discard(task_id)
            self._check_known(task_id)
            raise

    async def _seen(self, task_id: str) -> tuple[JobRecord, dict[str, Tail]]:
        """A record with tails that belong to it: to a settled one, what was read after it had settled (U-23, U-26)."""
        await asyncio.sleep(0)  # or who asks again and again would leave the command no chance to go on
        record = await self._record(task_id)
        while True:
            tails = {} if wire.is_waiting(record) else await self._tails(task_id)
            later = await self._record(task_id)
            if record.settled or not later.settled:
                return later, tails
            record = later

    async def _tails(self, task_id: str) -> dict[str, Tail]:
        tails: dict[str, Tail] = {}
        for stream in STREAMS:
            with contextlib.suppress(UnknownJob, StateError, OSError):  # its files are gone, which its status says in other ways
                tails[stream] = await self._executor.tail(task_id, stream, chars=wire.TAIL_CHARS)
        return tails


def _disposed() -> Closed:
    return Closed("this host of background commands was disposed", hint="make a new one")


def _whole(value: object) -> int:
    limit = 2.0**53
    return int(command_policy.checked_number(value, low=-limit, high=limit, unit="characters", whole=True))


def _bound_ms(value: object) -> float:
    return command_policy.checked_number(value, low=-command_policy.MAX_MS, high=command_policy.MAX_MS, unit="milliseconds")


def _signal_number(signal: object) -> int:
    if isinstance(signal, int) and not isinstance(signal, bool):
        return int(signal)
    name = signal.upper() if isinstance(signal, str) else ""
    with contextlib.suppress(KeyError):
        return int(signal_names.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    raise InvalidRequest(
        f"signal: {signal!r:.80} is no signal", field="signal", hint="give a name such as SIGTERM, or a number from 1 to 64"
    )
