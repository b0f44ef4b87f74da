"""The jobs of one executor that have not settled: how a command becomes one of them, and how each leaves."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stockade.bank.account import Account
from stockade.config import Config
from stockade.errors import Closed, ExecutableNotFound, StockadeError, TooManyJobs
from stockade.jobs import arguments
from stockade.jobs.engine import Engine
from stockade.jobs.records import JobRecord
from stockade.jobs.requests import job_request
from stockade.jobs.starts import Created
from stockade.jobs.supervisor import LiveJob, open_account
from stockade.launcher import lookup
from stockade.launcher.outcome import Aborted, Killed
from stockade.policy.admission import Admitted, admit
from stockade.policy.command import Command, command
from stockade.policy.compile import compile_policy
from stockade.policy.model import Policy
from stockade.sandbox.spec import SandboxSpec

_NEVER_STARTED: Final = "cancelled before it was started"
ERRORS_KEPT: Final = 1_024  # of jobs that never ran, with their types; the records have the texts


class LiveJobs(Mapping[str, LiveJob]):
    """By id; each has a task of its own, which ends when the job has settled and been put away."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = environment
        self._jobs: dict[str, LiveJob] = {}
        self._tasks: dict[str, asyncio.Task[JobRecord]] = {}
        self._starts: set[asyncio.Task[Created]] = set()  # jobs that are being registered
        self.errors: OrderedDict[str, StockadeError] = OrderedDict()  # of the latest jobs that never ran
        self.is_closing = False

    def __getitem__(self, job_id: str) -> LiveJob:
        return self._jobs[job_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    async def enter(
        self,
        engine: Engine,
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
        """Admits, registers and begins a job, which may not be on disk yet. Parameters and errors as of `Executor.start`."""
        if self.is_closing:
            raise Closed("the executor has been closed and starts nothing more", hint="make a new executor")
        arguments.check_policy(policy)
        arguments.check_start(owner, session, key, owner_limit)
        arguments.check_abort(abort)
        wanted = argv if isinstance(argv, Command) else command(argv, **parts)
        if (busy := len(self._tasks) + len(self._starts)) >= self._config.max_jobs:
            raise TooManyJobs(f"{busy} jobs run and at most {self._config.max_jobs} may", hint="wait until one ends, or kill one")
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
                self._jobs[job.id] = job
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
                await self.abort(entering.result().record.id)  # nobody will ever know its id
            raise

    async def wait_entered(self, record: JobRecord) -> None:
        """Waits until a job that is being registered is one of these, or will never be."""
        if not record.settled and record.id not in self._jobs and self._starts:
            await asyncio.wait(self._starts)

    async def abort(self, job_id: str) -> None:
        """Ends a job whose caller was cancelled, and waits until it has settled."""
        live = self._jobs.get(job_id)
        if live is not None:
            live.ending.ask(Aborted())
            await asyncio.shield(self._tasks[job_id])

    async def end_all(self) -> None:
        """Ends every job, of those too that are being registered, and waits until the last has settled."""
        if self._starts:
            await asyncio.wait(set(self._starts))
        for job in self._jobs.values():
            job.ending.ask(Killed(by="shutdown", detail="the executor was closed"))
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    def plan(self, engine: Engine, policy: Policy, wanted: Command) -> SandboxSpec:
        """The compiled plan of a command; blocks. Raises: InvalidRequest and its kin, HostUnfit."""
        plan = self._plan(engine, admit(policy, wanted))
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
                host_path=self._config.host_path,
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

    async def _live_out(self, job: LiveJob, abort: asyncio.Event | None) -> JobRecord:
        watching = None if abort is None else asyncio.create_task(_ask_when_set(abort, job), name=f"stockade-abort-{job.id}")
        try:
            return await job.run()
        finally:
            if watching is not None:
                watching.cancel()
            if job.error is not None:
                self.errors[job.id] = job.error
                while len(self.errors) > ERRORS_KEPT:
                    self.errors.popitem(last=False)
            del self._jobs[job.id], self._tasks[job.id]
            job.has_begun.set()  # or nobody may wait for it any more
            job.output.wake_followers()
            job.is_over.reach()


async def _ask_when_set(abort: asyncio.Event, job: LiveJob) -> None:
    await abort.wait()
    job.ending.ask(Aborted("the caller's abort signal was set"))
