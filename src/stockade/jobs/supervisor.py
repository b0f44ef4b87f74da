"""The life of one job, told in order: prepare, launch, watch, end, settle.

Every path through here ends in a settled record, and before that in a tree that is gone, streams that are closed and a cgroup that
is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from stockade.bank.account import Account
from stockade.bank.streams import Overflow
from stockade.errors import LaunchFailed, StockadeError
from stockade.jobs.accounting import record_usage
from stockade.jobs.budget import Budget
from stockade.jobs.ending import Ending, classify
from stockade.jobs.engine import Engine
from stockade.jobs.output import JobOutput
from stockade.jobs.reached import find_reached, fuller
from stockade.jobs.records import JobError, JobRecord
from stockade.jobs.states import ForbiddenTransition, JobState
from stockade.jobs.watch import watch_limits
from stockade.launcher.input import Input
from stockade.launcher.outcome import Outcome, OutOfMemory, Status
from stockade.launcher.process import KILL_BOUND, ProcessTree
from stockade.launcher.sandboxes import Sandbox
from stockade.launcher.waiting import Milestone, first, wait_done
from stockade.policy.command import Command
from stockade.policy.model import Limits, Policy
from stockade.sandbox import counters
from stockade.sandbox.spec import SandboxSpec

_log = logging.getLogger(__name__)


def stream_names(policy: Policy) -> tuple[str, ...]:
    """The streams that a job under this policy has."""
    return ("output",) if policy.merge_streams else ("stdout", "stderr")


def open_account(engine: Engine, job_id: str, policy: Policy) -> Account:
    """Opens the files of a job's streams; blocks. Raises: StateError."""
    return engine.bank.open_account(job_id, streams=stream_names(policy), cap=policy.limits.output, overflow=Overflow(policy.overflow))


class LiveJob:
    """One job of this executor, from admission until it has settled."""

    def __init__(
        self,
        engine: Engine,
        record: JobRecord,
        policy: Policy,
        plan: SandboxSpec | StockadeError,
        account: Account | None,
        command: Command,
        *,
        artifacts: bool,
    ) -> None:
        """A `plan` that is an error is the reason why the job will settle without having run; otherwise there is an account.

        With `artifacts`, each stream becomes an artifact before the record is settled (U-23).
        """
        self.engine = engine
        self.id = record.id
        self._record = record
        self._keeps_artifacts = artifacts
        self.references: dict[str, JsonValue] = {}
        self.policy = policy
        self.budget = Budget(policy.limits, engine.tree.controllers)
        self._plan = plan
        self.ending = Ending()
        self.first_signal = int(signal.SIGTERM)
        self.error: StockadeError | None = None  # why it never ran
        self.account = account
        self.tree: ProcessTree | None = None
        self.output = JobOutput(engine.pump, self.ending, self.budget)
        self._stdin = command.stdin
        self.input = Input(is_terminal=command.tty is not None) if command.takes_input else None
        self._sandbox: Sandbox | None = None
        self.began = 0.0  # of the monotonic clock
        self.has_begun = asyncio.Event()  # or will never begin
        self.is_over = Milestone()  # it has settled and been put away
        self.isolation = record.isolation
        self._grace = policy.limits.grace
        self._hurry = Milestone()  # a new one for each wait

    async def run(self) -> JobRecord:
        """Lives it to the end; never raises but for cancellation, and returns the settled record."""
        try:
            return await self._live()
        except Exception as error:  # noqa: BLE001 - a bug of ours: whoever waits must not wait for ever, and nothing may be left
            _log.exception("job %s ended by an internal error", self.id)
            try:
                await self._clean_up()
            except Exception:  # noqa: BLE001 - as above
                _log.exception("job %s could not be cleaned up", self.id)
                await self._abandon()
            message = f"internal error: {type(error).__name__}: {error}"
            try:
                return await self._committed(JobError(code="lost", message=message, hint="please report it"), None)
            except ForbiddenTransition:  # it was being settled already
                return await asyncio.wrap_future(self.engine.registry.settled(self.id))

    async def _live(self) -> JobRecord:
        try:
            tree = await self._launch()
        except (StockadeError, OSError) as error:
            await self._clean_up()
            return await self._settle_failed(error)
        watching = asyncio.create_task(watch_limits(self, tree, self.began), name=f"stockade-watch-{self.id}")
        try:
            status = await self._await_end(tree)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        wall = time.monotonic() - self.began
        usage = await self._clean_up()
        return await self._settle(status, usage, wall)

    @property
    def spec(self) -> SandboxSpec:
        """What the sandbox is built from. Raises: the reason why there can be none."""
        if isinstance(self._plan, StockadeError):
            raise self._plan
        return self._plan

    def signal(self, number: int) -> bool:
        """Sends a signal to every process of the job; False where it has none any more."""
        return self.tree is not None and self.tree.signal(number)

    async def set_frozen(self, *, frozen: bool) -> bool:
        """Stops or resumes every process of the job, once its command runs; False where it has none any more."""
        await self.has_begun.wait()
        if self.tree is None or self.tree.is_dead or self.ending.cause is not None:
            return False
        await self._write_frozen(self.tree, frozen=frozen)
        return True

    async def _write_frozen(self, tree: ProcessTree, *, frozen: bool) -> None:
        was_frozen = self.budget.clock.is_frozen
        self.budget.set_frozen(time.monotonic(), frozen=frozen)
        try:
            await asyncio.to_thread(tree.leaf.freeze, frozen=frozen)
        except BaseException:  # its time goes on as it went
            self.budget.set_frozen(time.monotonic(), frozen=was_frozen)
            raise

    def set_limits(self, limits: Limits, isolation: Mapping[str, str]) -> None:
        """Other limits hold from now on; `isolation` names how. Whoever must have been told outside has been."""
        if limits.grace != self.budget.limits.grace:
            self._grace = limits.grace
            self._hurry.reach()
        self.isolation = isolation
        self.budget.replace(limits)

    def shorten_grace(self, seconds: float | None) -> float:
        """Bounds the time between the first signal and SIGKILL, also while it runs; returns what holds now."""
        if seconds is not None and seconds < self._grace:
            self._grace = seconds
            self._hurry.reach()
        return self._grace

    async def _launch(self) -> ProcessTree:
        """Sandbox, account, pipes, command; returns once the program has been executed."""
        engine = self.engine
        self._check_wanted()
        engine.registry.advance(self.id, JobState.STARTING)
        merge = self.policy.merge_streams
        self._sandbox = await self._take_sandbox(merge=merge)
        assert self.account is not None
        if self.input is not None:
            self.input.open(self._sandbox.open_input())
        for name, descriptor in zip(self.account.streams, self._sandbox.take_pipes(merge=merge), strict=True):
            self.output.add(self.account, name, descriptor)
        self.tree = self._sandbox.tree
        message = self._sandbox.message(self.spec, self._stdin)
        if message is None:
            message = await engine.call(self._sandbox.write_command, self.spec, self._stdin)
        self._check_wanted()
        await self._sandbox.execute(message)
        self.began = time.monotonic()
        engine.registry.advance(self.id, JobState.RUNNING)
        self.has_begun.set()
        return self.tree

    async def _take_sandbox(self, *, merge: bool) -> Sandbox:
        """A sandbox, unless somebody asks for the end of the job first: that must not wait for a fork server that hangs."""
        if (ready := self.engine.sandboxes.take_ready(self.spec, merge=merge)) is not None:
            return ready

        async def take() -> Sandbox:
            await self.engine.load_filter(self.spec.seccomp)
            return await self.engine.sandboxes.take(self.spec, merge=merge)

        taking = asyncio.create_task(take(), name=f"stockade-take-{self.id}")
        asked = asyncio.create_task(self.ending.asked.wait())
        try:
            await asyncio.wait({taking, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            taking.cancel()
            cancelled = await wait_done(taking)
            if not taking.cancelled() and taking.exception() is None:
                self._sandbox = taking.result()  # whoever cleans up removes it
        if cancelled is not None:
            raise cancelled
        self._check_wanted()
        return taking.result()

    def _check_wanted(self) -> None:
        """Raises: StockadeError, where somebody has asked for the end of the job before its command could run."""
        if self.ending.cause is not None:
            raise StockadeError("the job was ended before its command could run")

    async def _await_end(self, tree: ProcessTree) -> Status | None:
        """Waits for the command or for a cause, whichever is first, and until no process is left."""
        await first(tree.ended, self.ending.asked)
        by_itself = tree.ended.is_reached
        if not by_itself:
            await self._escalate(tree)
        self.ending.close()
        try:
            if not tree.ended.is_reached:
                await tree.kill()
            async with asyncio.timeout(KILL_BOUND):
                await tree.wait_gone()
        except TimeoutError:
            pass  # a process in the D state, say; cleaning up tries once more, and says so
        if by_itself or tree.ended_unsignalled:
            self.ending.withdraw()
        return tree.status

    async def _escalate(self, tree: ProcessTree) -> None:
        """The first signal to every process, then the grace; the caller kills what is left."""
        self.engine.registry.advance(self.id, JobState.STOPPING)
        if isinstance(self.ending.cause, OutOfMemory):
            return  # no time to be polite: every moment costs the host memory
        if self.budget.clock.is_frozen:
            await self._write_frozen(tree, frozen=False)
        tree.signal(self.first_signal)
        began = time.monotonic()
        while not tree.ended.is_reached and (left := began + self._grace - time.monotonic()) > 0:
            self._hurry = Milestone()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await first(tree.ended, self._hurry)

    async def _clean_up(self) -> counters.Usage:
        """Closes and removes everything but the record."""
        if self.input is not None:
            self.input.end("it has ended")
        if self._sandbox is not None:
            await self._sandbox.end()
            self._sandbox.close()
        await self.output.drain()
        usage = await self.engine.call_removing(self._remove)
        if self._sandbox is not None:
            self.ending.notes += self._sandbox.notes
        return usage

    async def _abandon(self) -> None:
        """What needs no thread and no descriptor: its processes die now, what is left goes with the executor. Never raises."""
        try:
            if self._sandbox is not None:
                await self._sandbox.abandon()
            if self.account is not None:
                self.account.close()
        except Exception:  # noqa: BLE001 - the record must settle
            _log.exception("job %s could not be abandoned", self.id)

    def _remove(self) -> counters.Usage:
        usage = counters.Usage()
        if self._sandbox is not None:
            try:
                usage = self._sandbox.remove()
            except OSError as error:  # no descriptor was free, say; what is left goes with the executor
                self._sandbox.leaf.close()
                self.ending.notes.append(f"the sandbox could not be removed: {error.strerror}")
        if self.account is None and self._keeps_artifacts:  # it never ran, and its output is empty, not missing
            with contextlib.suppress(StockadeError):  # the reason why it never ran says more
                self.account = open_account(self.engine, self.id, self.policy)
        if self.account is not None:
            self.account.close()
            if self._keeps_artifacts:
                for name in self.account.streams:
                    label, session = self._record.label or "", self._record.session
                    reference = self.engine.artifacts.bank_stream(self.account, name, label=f"{label} ({name})", session=session)
                    self.references[name] = reference.model_dump()
        return usage

    async def _settle(self, status: Status | None, counted: counters.Usage, wall: float) -> JobRecord:
        budget = self.budget
        outcome = classify(self.ending.cause, status, counted, budget.limits, is_server_lost=self.engine.server.has_ended)
        if isinstance(outcome, OutOfMemory) and outcome.peak is None:
            outcome = dataclasses.replace(outcome, peak=budget.peak_sample)
        filled = {} if self._sandbox is None else self._sandbox.filled
        places = fuller(budget.filled, filled)
        reached = find_reached(outcome, counted, budget.limits, places, was_crowded=budget.was_crowded, most_open=budget.most_open)
        self.ending.notes += [each.sentence() for each in reached]
        usage = record_usage(
            counted,
            wall=wall,
            frozen=budget.clock.frozen_seconds(self.began, self.began + wall),
            peak_sample=budget.peak_sample,
            account=self.account,
            filled=filled,
        )
        return await self._committed(outcome, wall, usage=usage, reached=reached, isolation=self.isolation)

    async def _settle_failed(self, error: StockadeError | OSError) -> JobRecord:
        if not isinstance(error, StockadeError):
            error = LaunchFailed(step="prepare", call="system call", path=error.filename, errno=error.errno)
        self.error = error
        if self.ending.cause is not None:  # it was ended before it could run
            self.engine.registry.advance(self.id, JobState.STOPPING)
            return await self._committed(self.ending.cause, None)
        return await self._committed(JobError.of(error), None)

    async def _committed(self, ending: Outcome | JobError, duration: float | None, **changes: Any) -> JobRecord:
        sizes = {} if self.account is None else self.account.sizes()
        if self.ending.notes:
            self.engine.registry.note(self.id, *self.ending.notes)
        future = self.engine.registry.settle(
            self.id,
            ending,
            duration=duration,
            stdout_bytes=sizes.get("stdout", sizes.get("output", 0)),
            stderr_bytes=sizes.get("stderr", 0),
            references=self.references,
            **changes,
        )
        # The account's descriptors are closed with their last holder, and we are in cycles with our own callbacks.
        self.account, self.tree = None, None
        self.output.forget()
        record = await asyncio.wrap_future(future)
        self.engine.get_ahead(stream_names(self.policy))
        return record
