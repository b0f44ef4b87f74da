"""The library's front door: an `Executor` runs commands under a policy and remembers how each of them ended.

    async with Executor(profile("untrusted", workspace="/srv/project")) as executor:
        result = await executor.run(["python3", "-c", "print('hi')"])

One executor owns one state directory, one fork server and one cgroup. It belongs to one event loop; its records may be read from
any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from stockade.bank.account import Account
from stockade.bank.artifacts import ArtifactStore
from stockade.bank.retention import Removal, Retention
from stockade.config import Config, caller_environment, from_environment
from stockade.errors import Closed, InvalidRequest, StockadeError
from stockade.jobs import arguments, purging
from stockade.jobs.controlling import Controlling
from stockade.jobs.engine import Engine
from stockade.jobs.handle import Job
from stockade.jobs.interacting import Interacting
from stockade.jobs.live import LiveJobs
from stockade.jobs.reading import Reading, check_window
from stockade.jobs.recent import EVERY_SESSION, Counters, Session
from stockade.jobs.records import HOST, Caller, JobRecord
from stockade.jobs.results import Result, whole_output
from stockade.jobs.supervisor import LiveJob
from stockade.launcher.input import Input
from stockade.launcher.outcome import signal_name
from stockade.policy.command import Command, command
from stockade.policy.model import Policy
from stockade.sandbox.spec import SandboxSpec

P = ParamSpec("P")
T = TypeVar("T")


class Executor(Reading, Controlling, Interacting):
    """Runs commands under one policy. An async context manager: leaving it means that every job is dead and recorded."""

    def __init__(self, policy: Policy, *, config: Config | None = None, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is what `inherit_env` of a policy draws from; None: the environment of this process.

        Raises: InvalidRequest where the policy or the configuration is none.
        """
        arguments.check_policy(policy)
        if config is not None and not isinstance(config, Config):
            raise InvalidRequest(f"config: {type(config).__name__} is no Config", field="config", hint="give a stockade.config.Config")
        self.policy = policy
        self.config = config if config is not None else from_environment()
        self._engine: Engine | None = None
        self._live = LiveJobs(self.config, dict(environment) if environment is not None else caller_environment())
        self._closed: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Executor:
        """Raises: HostUnfit where this host cannot isolate, StateError where the state directory cannot be used."""
        if self._engine is not None or self._live.is_closing:
            raise Closed("this executor has been opened before", hint="make a new one")
        self._engine = await Engine.open(self.config, self._kill_for_peer)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def start(
        self,
        argv: Sequence[str] | Command,
        *,
        policy: Policy | None = None,
        owner: str | None = None,
        session: str | None = None,
        key: str | None = None,
        owner_limit: int | None = None,
        artifacts: bool = False,
        settle_failures: bool = False,
        abort: asyncio.Event | None = None,
        **parts: Any,
    ) -> Job:
        """Starts a command and returns at once; `parts` are those of `policy.command.command` (cwd, env, stdin, interactive, tty,
        timeout, label).

        `policy` must be no wider than the executor's. With `key`, the same owner's second start gives the first one's job. With
        `artifacts`, each stream is an artifact when the job has settled, and the record's `references` say how to read it.
        With `settle_failures`, a program that is not there makes a job that settles as `failed` instead of an error here. Setting
        `abort` ends the job as `aborted`; where it is set already, the job settles so and nothing is spawned (U-6).

        Raises: InvalidRequest and its kin (nothing has happened), HostUnfit, TooManyJobs, Closed.
        """
        return await self.start_with_policy(
            argv,
            self._narrowed(policy),
            owner=owner,
            session=session,
            key=key,
            owner_limit=owner_limit,
            artifacts=artifacts,
            settle_failures=settle_failures,
            abort=abort,
            **parts,
        )

    async def start_with_policy(self, argv: Sequence[str] | Command, policy: Policy, **options: Any) -> Job:
        """As `start`, under a policy of its own that may be wider than the executor's (N-P5): for the host application only."""
        created = await self._live.enter(self._opened(), argv, policy, **options)
        self._opened().registry.hurry()
        try:
            await created.wait_written()
        except asyncio.CancelledError:
            if created.fresh:
                await self._live.abort(created.record.id)  # nobody will ever know its id
            raise
        return Job(self, created.record.id)

    def _narrowed(self, policy: Policy | None) -> Policy:
        """The policy of a start. Raises: PolicyError, where it is wider than the executor's."""
        if policy is None or policy is self.policy:
            return self.policy
        arguments.check_policy(policy)
        from stockade.policy.narrowing import check_narrower

        check_narrower(policy, self.policy)
        return policy

    async def run(self, argv: Sequence[str] | Command, **options: Any) -> Result:
        """Starts a command, waits for its end and gives its output; options as for `start`.

        When the calling task is cancelled, the job is ended and settled (outcome `aborted`) before the cancellation goes on.

        Raises: as `start`, and LaunchFailed where the command never ran.
        """
        created = await self._live.enter(self._opened(), argv, self._narrowed(options.pop("policy", None)), **options)
        try:
            return await self.result(created.record.id)
        except asyncio.CancelledError:
            if created.fresh:
                await self._live.abort(created.record.id)
            raise

    async def result(self, job_id: str, *, caller: Caller = HOST) -> Result:
        """Waits for the end of a job and gives all of its output. Raises: UnknownJob; the error where it never ran."""
        record = await self.wait(job_id, caller=caller)
        if record.outcome is None:
            assert record.error is not None
            known = self._live.errors.get(job_id)
            raise known if known is not None else StockadeError(record.error.message, hint=record.error.hint)
        if not record.stdout_bytes and not record.stderr_bytes:
            return Result(record, b"", b"")
        engine = self._opened()
        stdout, stderr = await engine.call(lambda: whole_output(engine.bank.account(job_id)))
        return Result(record, stdout, stderr)

    async def get(self, job_id: str, *, caller: Caller = HOST) -> JobRecord:
        """The record of a job as it is now, of this executor's life or an earlier one. Raises: UnknownJob."""
        engine = self._opened()
        arguments.check_job(job_id, caller)
        if (known := engine.registry.peek(job_id, caller)) is not None:
            return known
        return await engine.call(engine.registry.get, job_id, caller)

    async def owner_of(self, job_id: str) -> str | None:
        """The owner token of a job; None where it has none. Raises: UnknownJob."""
        return (await self.get(job_id)).owner

    async def list(self, *, caller: Caller = HOST, limit: int = 100, **filters: Any) -> tuple[JobRecord, ...]:
        """Records, newest first; filters as for `Registry.list` (states, owner, session, before)."""
        arguments.check_list(caller, limit, filters)
        page = await self._opened().call(self._opened().registry.list, caller, limit=limit, **filters)
        return page.records

    async def wait(self, job_id: str, timeout: float | None = None, *, caller: Caller = HOST) -> JobRecord:
        """The settled record, or the record as it is after `timeout` seconds; the bound limits the wait only (U-33).

        Raises: UnknownJob; InvalidRequest where `timeout` is no duration.
        """
        engine = self._opened()
        arguments.check_seconds("timeout", timeout)
        record = await self.get(job_id, caller=caller)
        live = self._live.get(job_id)
        if not record.settled or live is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await (live.is_over.wait() if live else asyncio.wrap_future(engine.registry.settled(job_id, caller)))
            record = await self.get(job_id, caller=caller)
        return engine.registry.acknowledge(record)

    async def kill_all(self, *, caller: Caller = HOST) -> int:
        """Ends every unsettled job that the caller may see; the number of them, after they have settled."""
        arguments.check_job("", caller)
        records = self._opened().registry.unsettled(caller)
        await asyncio.gather(*(self.kill(record.id) for record in records))
        return len(records)

    def counters(self, owner: Caller = HOST, session: Session = EVERY_SESSION) -> Counters:
        """How many jobs of that owner (`HOST`: of all) and session run, and how many ended unseen (1A.8); never blocks."""
        return self._opened().registry.counters(owner, session)

    async def follow(self, job_id: str, stream: str = "stdout") -> AsyncGenerator[bytes, None]:
        """Every byte of a stream, those that are there first and then each as it comes, until the stream has ended."""
        engine = self._opened()
        check_window(stream)
        live = await self._live_job(job_id, HOST)
        reader = (await self._account(job_id)).reader(stream)
        position, grown = 0, asyncio.Event()
        if live is not None:
            live.output.followers.add(grown)
        try:
            while True:
                grown.clear()
                finished = reader.stream.extent().finished
                page = await engine.call(reader.read_bytes, position)
                position = page.next_offset
                if page.data:
                    yield page.data
                elif finished or live is None:
                    return
                else:
                    await grown.wait()
        finally:
            if live is not None:
                live.output.followers.discard(grown)

    async def purge(self, retention: Retention, *, unread: bool = False) -> Removal:
        """Removes what `retention` does not keep: output, artifacts and records of jobs that have settled and been read.

        With `unread` also of those that nobody has read; never of one that runs. Says what was removed and how many bytes that
        freed. Raises: InvalidRequest.
        """
        engine = self._opened()
        arguments.check_retention(retention)
        registry = engine.registry
        done = await engine.call(
            lambda: purging.purge(
                engine.artifacts,
                registry.every,
                registry.forget,
                retention,
                now=time.time(),
                unread=unread,
            )
        )
        for job_id in done.removed:
            self._live.errors.pop(job_id, None)
        return done

    @property
    def artifacts(self) -> ArtifactStore:
        """What jobs and hosts have banked; its methods block."""
        return self._opened().artifacts

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs something that blocks (a read of the bank, say) on a thread of this executor."""
        return await self._opened().call(function, *args, **kwargs)

    def on_done(self, listener: Callable[[JobRecord], object], *, scope: Caller = HOST) -> Callable[[], None]:
        """Calls `listener` once for each job that settles from now on, on a thread of its own; returns what removes it."""
        return self._opened().registry.on_settled(listener, scope=scope)

    async def close(self) -> None:
        """Ends every job, waits until each has settled, and closes everything; once is enough.

        Whoever calls it meanwhile waits for the same end; a caller that is cancelled waits too, and is cancelled then.
        """
        self._live.is_closing = True
        if self._closed is None:
            if self._engine is None:
                return
            self._closed = asyncio.create_task(self._close(self._engine), name="stockade-close")
        try:
            await asyncio.shield(self._closed)
        except asyncio.CancelledError:
            await asyncio.wait({self._closed})
            raise

    async def _close(self, engine: Engine) -> None:
        engine.registry.refuse_starts()
        await self._live.end_all()
        self._engine = None
        await engine.close()

    async def explain(self, argv: Sequence[str] | Command, *, policy: Policy | None = None, **parts: Any) -> SandboxSpec:
        """The compiled plan of a command; nothing is started."""
        wanted = argv if isinstance(argv, Command) else command(argv, **parts)
        return await self._opened().call(self._live.plan, self._opened(), policy or self.policy, wanted)

    async def _read(self, job_id: str, caller: Caller, question: Callable[[Account], T]) -> T:
        record = await self.get(job_id, caller=caller)
        await self._live.wait_entered(record)  # or it may have no account yet
        engine = self._opened()
        answer = await engine.call(lambda: question(engine.bank.account(job_id)))
        engine.registry.acknowledge(record)
        return answer

    async def _live_job(self, job_id: str, caller: Caller) -> LiveJob | None:
        """The job, where it has not settled; one that is just being registered is waited for. Raises: UnknownJob."""
        await self._live.wait_entered(await self.get(job_id, caller=caller))
        return self._live.get(job_id)

    async def _input(self, job_id: str, caller: Caller) -> tuple[JobRecord, Input | None]:
        record = await self.get(job_id, caller=caller)
        await self._live.wait_entered(record)
        live = self._live.get(job_id)
        if live is None:
            return await self.get(job_id, caller=caller), None  # how it has ended is told
        return record, live.input

    async def _account(self, job_id: str) -> Account:
        engine = self._opened()
        return await engine.call(engine.bank.account, job_id)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise Closed("the executor is not open", hint="use it as `async with Executor(policy) as executor`")
        return self._engine

    async def _kill_for_peer(self, job_id: str, signal: int, grace: float | None) -> JobRecord:
        """Another process of the same user asks, through the state directory."""
        name = signal_name(signal) if isinstance(signal, int) else str(signal)
        return await self.kill(job_id, signal=signal, grace=grace, reason=f"{name} through the state directory")


async def run(argv: Sequence[str], policy: Policy, **parts: Any) -> Result:
    """Runs one command in an executor of its own; for scripts."""
    async with Executor(policy) as executor:
        return await executor.run(argv, **parts)


__all__ = ["Executor", "Job", "Result", "run"]
