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
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from stockade.bank.account import Account
from stockade.bank.artifacts import ArtifactStore
from stockade.bank.retention import Removal, Retention
from stockade.config import Config, caller_environment, from_environment
from stockade.errors import Closed, ExecutableNotFound, InvalidRequest, StockadeError, TooManyJobs
from stockade.jobs import arguments, purging
from stockade.jobs.controlling import Controlling
from stockade.jobs.engine import Engine
from stockade.jobs.handle import Job
from stockade.jobs.interacting import Interacting
from stockade.jobs.reading import Reading, check_window
from stockade.jobs.recent import EVERY_SESSION, Counters, Session
from stockade.jobs.records import HOST, Caller, JobRecord
from stockade.jobs.requests import job_request
from stockade.jobs.results import Result, whole_output
from stockade.jobs.starts import Created
from stockade.jobs.supervisor import LiveJob, open_account
from stockade.launcher import lookup
from stockade.launcher.input import Input
from stockade.launcher.outcome import Aborted, Killed, signal_name
from stockade.policy.admission import Admitted, admit
from stockade.policy.command import Command, command
from stockade.policy.compile import compile_policy
from stockade.policy.model import Policy
from stockade.sandbox.spec import SandboxSpec

P = ParamSpec("P")
T = TypeVar("T")

_NEVER_STARTED: Final = "cancelled before it was started"
ERRORS_KEPT: Final = 1_024  # of jobs that never ran, with their types; the records have the texts


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
        self._environment = dict(environment) if environment is not None else caller_environment()
        self._engine: Engine | None = None
        self._live: dict[str, LiveJob] = {}
        self._tasks: dict[str, asyncio.Task[JobRecord]] = {}
        self._starts: set[asyncio.Task[Created]] = set()  # jobs that are being registered
        self._errors: OrderedDict[str, StockadeError] = OrderedDict()  # of the latest jobs that never ran
        self._closing = False
        self._closed: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Executor:
        """Raises: HostUnfit where this host cannot isolate, StateError where the state directory cannot be used."""
        if self._engine is not None or self._closing:
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
        created = await self._enter(argv, policy, **options)
        self._opened().registry.hurry()
        try:
            await created.wait_written()
        except asyncio.CancelledError:
            if created.fresh:
                await self._abort(created.record.id)  # nobody will ever know its id
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

    async def _enter(
        self,
        argv: Sequence[str] | Command,
        policy: Policy,
        *,
        owner: str | None = None,
        session: str | None = None,
        key: str | None = None,
        owner_limit: int | None = None,
        artifacts: bool = False,
        settle_failures: bool = False,
        abort: asyncio.Event | None = None,
        **parts: Any,
    ) -> Created:
        """Admits, registers and begins a job, which may not be on disk yet."""
        engine = self._opened()
        if self._closing:
            raise Closed("the executor has been closed and starts nothing more", hint="make a new executor")
        arguments.check_policy(policy)
        arguments.check_start(owner, session, key, owner_limit)
        arguments.check_abort(abort)
        wanted = argv if isinstance(argv, Command) else command(argv, **parts)
        if (busy := len(self._tasks) + len(self._starts)) >= self.config.max_jobs:
            raise TooManyJobs(f"{busy} jobs run and at most {self.config.max_jobs} may", hint="wait until one ends, or kill one")
        admitted = admit(policy, wanted)
        is_aborted = abort is not None and abort.is_set()
        refused = StockadeError(_NEVER_STARTED) if is_aborted else None

        if engine.server.is_lost:
            raise Closed("the fork server is gone and starts nothing more", hint="make a new executor")

        def register() -> tuple[SandboxSpec | StockadeError, Created, Account | None]:
            """Looks the paths up, compiles the plan, admits the job, opens its account; one trip to a thread for all that blocks."""
            plan = refused or self._plan(engine, admitted, settle_failures=settle_failures)
            request = job_request(admitted, plan, owner=owner, session=session, key=key)
            created, account = engine.registry.create(request, limit=owner_limit), None
            if created.fresh and not isinstance(plan, StockadeError):
                try:
                    account = open_account(engine, created.record.id, admitted.policy)
                except StockadeError as error:
                    plan = error
            return plan, created, account

        async def enter() -> Created:
            plan, created, account = await engine.call(register)
            if created.fresh:
                job = LiveJob(engine, created.record, admitted.policy, plan, account, wanted, artifacts=artifacts)
                if is_aborted:
                    job.ending.ask(Aborted(_NEVER_STARTED))
                self._live[job.id] = job
                self._tasks[job.id] = asyncio.create_task(self._live_out(job, abort), name=f"stockade-job-{job.id}")
            return created

        # A task of its own: what has been registered must come to life, or it would stay queued for ever.
        entering = asyncio.create_task(enter(), name="stockade-start")
        self._starts.add(entering)
        entering.add_done_callback(self._starts.discard)
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            await asyncio.wait({entering})
            if not entering.cancelled() and entering.exception() is None and entering.result().fresh:
                await self._abort(entering.result().record.id)  # nobody will ever know its id
            raise

    async def run(self, argv: Sequence[str] | Command, **options: Any) -> Result:
        """Starts a command, waits for its end and gives its output; options as for `start`.

        When the calling task is cancelled, the job is ended and settled (outcome `aborted`) before the cancellation goes on.

        Raises: as `start`, and LaunchFailed where the command never ran.
        """
        created = await self._enter(argv, self._narrowed(options.pop("policy", None)), **options)
        try:
            return await self.result(created.record.id)
        except asyncio.CancelledError:
            await self._abort(created.record.id)
            raise

    async def result(self, job_id: str, *, caller: Caller = HOST) -> Result:
        """Waits for the end of a job and gives all of its output. Raises: UnknownJob; the error where it never ran."""
        record = await self.wait(job_id, caller=caller)
        if record.outcome is None:
            assert record.error is not None
            known = self._errors.get(job_id)
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
        task = self._tasks.get(job_id)  # outlives the record's commit by the moment in which the job is put away
        if not record.settled or task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await (asyncio.shield(task) if task else asyncio.wrap_future(engine.registry.settled(job_id, caller)))
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
            live.followers.add(grown)
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
                live.followers.discard(grown)

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
            self._errors.pop(job_id, None)
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
        self._closing = True
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
        if self._starts:
            await asyncio.wait(set(self._starts))
        for job in self._live.values():
            job.ending.ask(Killed(by="shutdown", detail="the executor was closed"))
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()))
        self._engine = None
        await engine.close()

    async def explain(self, argv: Sequence[str] | Command, *, policy: Policy | None = None, **parts: Any) -> SandboxSpec:
        """The compiled plan of a command; nothing is started."""
        wanted = argv if isinstance(argv, Command) else command(argv, **parts)
        plan = await self._opened().call(self._plan, self._opened(), admit(policy or self.policy, wanted))
        assert isinstance(plan, SandboxSpec)
        return plan

    def _plan(self, engine: Engine, admitted: Admitted, *, settle_failures: bool = False) -> SandboxSpec | StockadeError:
        policy = admitted.policy
        host = engine.host(policy.root)
        try:
            resolution = lookup.resolve(
                argv0=admitted.command.argv[0],
                cwd=admitted.cwd,
                path=policy.path,
                workspace=policy.workspace,
                ro=policy.ro,
                rw=policy.rw,
                host=host,
                host_path=self.config.host_path,
                private=engine.state_root,
                granted=engine.writable,
                io=policy.limits.io,
            )
        except ExecutableNotFound as error:
            if settle_failures:
                return error
            raise
        places = (*resolution.rw, *((resolution.workspace,) if resolution.workspace is not None else ()))
        engine.grant(place.real for place in places)
        engine.check_filter(policy.seccomp)
        return compile_policy(policy, admitted.command, host, resolution, inherited=self._environment)

    async def _abort(self, job_id: str) -> None:
        """Ends a job whose caller was cancelled, and waits until it has settled."""
        live = self._live.get(job_id)
        if live is not None:
            live.ending.ask(Aborted())
            await asyncio.shield(self._tasks[job_id])

    async def _live_out(self, job: LiveJob, abort: asyncio.Event | None) -> JobRecord:
        watching = None if abort is None else asyncio.create_task(_ask_when_set(abort, job), name=f"stockade-abort-{job.id}")
        try:
            return await job.run()
        finally:
            if watching is not None:
                watching.cancel()
            if job.error is not None:
                self._errors[job.id] = job.error
                while len(self._errors) > ERRORS_KEPT:
                    self._errors.popitem(last=False)
            del self._live[job.id], self._tasks[job.id]
            job.has_begun.set()  # or nobody may wait for it any more
            job.wake_followers()

    async def _read(self, job_id: str, caller: Caller, question: Callable[[Account], T]) -> T:
        record = await self.get(job_id, caller=caller)
        await self._wait_entered(record)  # or it may have no account yet
        engine = self._opened()
        answer = await engine.call(lambda: question(engine.bank.account(job_id)))
        engine.registry.acknowledge(record)
        return answer

    async def _live_job(self, job_id: str, caller: Caller) -> LiveJob | None:
        """The job, where it has not settled; one that is just being registered is waited for. Raises: UnknownJob."""
        await self._wait_entered(await self.get(job_id, caller=caller))
        return self._live.get(job_id)

    async def _wait_entered(self, record: JobRecord) -> None:
        if not record.settled and record.id not in self._live and self._starts:
            await asyncio.wait(self._starts)

    async def _input(self, job_id: str, caller: Caller) -> tuple[JobRecord, Input | None]:
        record = await self.get(job_id, caller=caller)
        await self._wait_entered(record)
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


async def _ask_when_set(abort: asyncio.Event, job: LiveJob) -> None:
    await abort.wait()
    job.ending.ask(Aborted("the caller's abort signal was set"))


async def run(argv: Sequence[str], policy: Policy, **parts: Any) -> Result:
    """Runs one command in an executor of its own; for scripts."""
    async with Executor(policy) as executor:
        return await executor.run(argv, **parts)


__all__ = ["Executor", "Job", "Result", "run"]
