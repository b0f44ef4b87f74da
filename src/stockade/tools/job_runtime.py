"""Jobs of contract D's later form (1C.2, clauses J): anything that runs in the background for an owner, whatever produces it.

A job here is a producer that was started, its owner, and how it stands; it knows neither processes nor sandboxes. One event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar

from stockade.errors import Closed, InvalidRequest, NotAllowed, StockadeError, TooManyJobs, UnknownJob

_LOG: Final = logging.getLogger("stockade")
L = TypeVar("L")

MAX_CONCURRENT_JOBS: Final = 10  # of one owner (J-3)
MAX_SAFE_INTEGER: Final = (1 << 53) - 1
ORPHANED: Final = "it could not be cancelled, and its work may be orphaned"

Status = Literal["running", "stopping", "completed", "killed", "failed"]
KillAnswer = Literal["requested", "already-finished"]


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a job ended. `output` is for producers of a final output only."""

    status: Literal["completed", "killed", "failed"]
    detail: str | None = None
    output: str = ""


class Producer(Protocol):
    """What does the work of a job. `streams`: `read` gives what is new each time; otherwise the settlement has the output."""

    streams: bool

    async def settled(self) -> Settlement:
        """Waits for the end; an error makes the job a failed one."""

    def cancel(self, reason: str | None) -> Awaitable[object] | None:
        """Asks for the end. An error leaves everything as it was."""

    async def read(self) -> str:
        """What was written since the last read, where it streams."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job at one moment. `reported`: its owner knows of its end, so no notice is due."""

    id: str
    kind: str
    label: str
    owner: str | None
    status: Status
    detail: str | None = None
    reported: bool = False
    quiet: bool = False

    @property
    def settled(self) -> bool:
        """True where it will not change again."""
        return self.status not in ("running", "stopping")

    @property
    def status_line(self) -> str:
        """Its status in brackets, with the detail where there is one (J-11)."""
        return f"[status: {self.status}]" if self.detail is None else f"[status: {self.status}, {self.detail}]"


@dataclass(slots=True, eq=False)
class _Job:
    snapshot: JobSnapshot
    producer: Producer
    limit: int | None
    output: str = ""
    waiters: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    watching: asyncio.Task[None] | None = None


DoneListener = Callable[[JobSnapshot], object]
ChangeListener = Callable[[str | None], object]  # gets the owner whose set of jobs changed


class JobRuntime:
    """The jobs of all owners of one host; unowned ones are open to everybody."""

    def __init__(
        self,
        *,
        max_concurrent_jobs_per_owner: int = MAX_CONCURRENT_JOBS,
        serves: Callable[[str | None], bool] = lambda owner: True,
        is_live: Callable[[str], bool] = lambda owner: True,
    ) -> None:
        """`serves` says whether somebody controls an owner's jobs, `is_live` whether the owner is a live one (J-2)."""
        if isinstance(max_concurrent_jobs_per_owner, bool) or max_concurrent_jobs_per_owner < 1:
            raise InvalidRequest("max_concurrent_jobs_per_owner must be an integer of at least 1", field="max_concurrent_jobs_per_owner")
        self._limit = max_concurrent_jobs_per_owner
        self._serves, self._is_live = serves, is_live
        self._jobs: dict[str, _Job] = {}
        self._counts: dict[str, int] = {}
        self._starting: dict[str | None, int] = {}
        self._done: dict[int, DoneListener] = {}
        self._changed: dict[int, ChangeListener] = {}
        self._numbers = itertools.count()
        self._closed = False

    async def start(
        self,
        kind: str,
        label: str,
        starter: Callable[[], Awaitable[Producer]],
        *,
        owner: str | None = None,
        output_limit_bytes: int | None = None,
        quiet: bool = False,
    ) -> JobSnapshot:
        """Starts a job once everything has been checked, in the order of J-2; what `starter` raises leaves nothing behind.

        Raises: InvalidRequest, NotAllowed, TooManyJobs, Closed.
        """
        self._check(kind, label, output_limit_bytes, owner)
        self._starting[owner] = self._starting.get(owner, 0) + 1
        try:
            producer = await starter()
        finally:
            self._starting[owner] -= 1
            if not self._starting[owner]:
                del self._starting[owner]
        self._counts[kind] = self._counts.get(kind, 0) + 1
        snapshot = JobSnapshot(f"{kind}-{self._counts[kind]}", kind, label.strip(), owner, "running", quiet=quiet)
        job = self._jobs[snapshot.id] = _Job(snapshot, producer, output_limit_bytes)
        job.watching = asyncio.create_task(self._watch(job), name=f"stockade-{snapshot.id}")
        self._tell_changed(owner)
        if self._closed or (owner is not None and not self._is_live(owner)):  # meanwhile
            await self._tear_down([job])
            raise _closed() if self._closed else _not_live(owner)
        return snapshot

    def list(self, caller: str | None) -> tuple[JobSnapshot, ...]:
        """The caller's own jobs and the unowned ones, in the order of their starts (J-4)."""
        return tuple(job.snapshot for job in self._jobs.values() if job.snapshot.owner in (None, caller))

    def get(self, job_id: str, caller: str | None) -> JobSnapshot:
        """How a job stands; consumes nothing. Raises: UnknownJob, NotAllowed."""
        return self._visible(job_id, caller).snapshot

    async def read(self, job_id: str, caller: str | None) -> tuple[str, JobSnapshot]:
        """What is new of a stream, or the final output once it is there; with how the job stood then (J-4).

        Raises: UnknownJob, NotAllowed.
        """
        job = self._visible(job_id, caller)
        seen = job.snapshot
        text = _bounded(await job.producer.read(), job.limit) if job.producer.streams else job.output
        if seen.settled:
            self._report(job)
        return text, seen

    async def kill(self, job_id: str, caller: str | None, reason: str | None = None) -> KillAnswer:
        """Asks for a job's end and does not wait for it (J-5). Raises: UnknownJob, NotAllowed; what the producer's `cancel` raises."""
        job = self._visible(job_id, caller)
        if not job.snapshot.settled:
            if (answer := job.producer.cancel(reason)) is not None:
                await answer
            if not job.settled.is_set():
                job.snapshot = dataclasses.replace(job.snapshot, status="stopping", reported=True)
                self._tell_changed(job.snapshot.owner)
            return "requested"
        self._report(job)
        return "already-finished"

    async def wait(self, job_id: str, caller: str | None, timeout_ms: float, *, abort: asyncio.Event | None = None) -> JobSnapshot:
        """How it stands once it has settled, or after `timeout_ms`; neither that nor `abort` harms the job (J-6).

        Raises: UnknownJob, NotAllowed, InvalidRequest; StockadeError where the wait was aborted before the job had settled.
        """
        if isinstance(timeout_ms, bool) or not math.isfinite(timeout_ms) or timeout_ms <= 0:
            raise InvalidRequest("timeout_ms must be a positive finite number", field="timeout_ms")
        job = self._visible(job_id, caller)
        job.waiters += 1
        watched = [asyncio.create_task(event.wait()) for event in (job.settled, *((abort,) if abort is not None else ()))]
        try:
            await asyncio.wait(watched, timeout=timeout_ms / 1_000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            job.waiters -= 1
            for task in watched:
                task.cancel()
        if job.settled.is_set():
            self._report(job)
        elif abort is not None and abort.is_set():
            raise StockadeError(f"waiting for job {job_id} was aborted; the job goes on")
        return job.snapshot

    def on_done(self, listener: DoneListener) -> Callable[[], None]:
        """Calls `listener` once for each job that settles, after everybody else knows; returns what removes it (J-7)."""
        return _added(self._done, next(self._numbers), listener)

    def on_jobs_changed(self, listener: ChangeListener) -> Callable[[], None]:
        """Calls `listener` with an owner whose jobs have changed: a new one, one stopping, settled or removed (J-10)."""
        return _added(self._changed, next(self._numbers), listener)

    async def close_owner(self, owner: str) -> None:
        """Ends an owner's jobs, waits for each and forgets them; no notices (J-9)."""
        await self._tear_down([job for job in self._jobs.values() if job.snapshot.owner == owner])
        self._tell_changed(owner)

    async def close(self) -> None:
        """Ends all jobs, waits for each and forgets them; listeners are silent from the first moment (J-9)."""
        self._closed = True
        self._done.clear()
        await self._tear_down([*self._jobs.values()])
        self._changed.clear()

    def _check(self, kind: str, label: str, output_limit_bytes: int | None, owner: str | None) -> None:
        if self._closed:
            raise _closed()
        if not self._serves(owner):
            raise NotAllowed(
                "no job controller serves this caller, so nothing was started", field="owner", hint="register the job tools for it"
            )
        for name, value in (("kind", kind), ("label", label)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidRequest(f"{name} must not be empty", field=name)
        if output_limit_bytes is not None and (
            isinstance(output_limit_bytes, bool)
            or not isinstance(output_limit_bytes, int)
            or not 0 < output_limit_bytes <= MAX_SAFE_INTEGER
        ):
            raise InvalidRequest("output_limit_bytes must be a positive safe integer", field="output_limit_bytes")
        if owner is not None and not self._is_live(owner):
            raise _not_live(owner)
        busy = self._starting.get(owner, 0) + sum(
            1 for job in self._jobs.values() if not job.snapshot.settled and job.snapshot.owner == owner
        )
        if busy >= self._limit:
            raise TooManyJobs(
                f"{busy} jobs are running and at most {self._limit} may",
                hint="end one with job_kill, or wait until one ends, then retry",
            )

    async def _watch(self, job: _Job) -> None:
        try:
            end = await job.producer.settled()
        except Exception as error:  # noqa: BLE001 - a producer that fails is a failed job
            end = Settlement("failed", str(error) or repr(error))
        self._settle(job, end)

    def _settle(self, job: _Job, end: Settlement) -> None:
        """Record, waiters, observers, listeners, in this order; the first settlement holds (J-7)."""
        if job.settled.is_set():
            return
        job.output = _bounded(end.output, job.limit)
        reported = job.snapshot.reported or job.waiters > 0
        job.snapshot = dataclasses.replace(job.snapshot, status=end.status, detail=end.detail, reported=reported)
        job.settled.set()
        self._tell_changed(job.snapshot.owner)
        for number in tuple(self._done):
            if (listener := self._done.get(number)) is not None:
                _contained(listener, job.snapshot)

    async def _tear_down(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            job.snapshot = dataclasses.replace(job.snapshot, reported=True)
            if job.settled.is_set():
                continue
            try:
                if (answer := job.producer.cancel("its owner is gone")) is not None:
                    await answer
            except Exception:  # noqa: BLE001 - the others are to be ended all the same
                _LOG.exception("job %s could not be cancelled", job.snapshot.id)
                self._settle(job, Settlement("failed", ORPHANED))
                if job.watching is not None:
                    job.watching.cancel()
        for job in jobs:
            await job.settled.wait()
            if job.watching is not None:
                await asyncio.wait({job.watching})
            self._jobs.pop(job.snapshot.id, None)

    def _visible(self, job_id: str, caller: str | None) -> _Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise UnknownJob(f"unknown job {job_id!s:.80}", field="job_id")
        if job.snapshot.owner is not None and job.snapshot.owner != caller:
            raise NotAllowed(f"job {job_id} belongs to another session", field="job_id")
        return job

    def _report(self, job: _Job) -> None:
        job.snapshot = dataclasses.replace(job.snapshot, reported=True)

    def _tell_changed(self, owner: str | None) -> None:
        for number in tuple(self._changed):
            if (listener := self._changed.get(number)) is not None:
                _contained(listener, owner)


def _added(listeners: dict[int, L], number: int, listener: L) -> Callable[[], None]:
    listeners[number] = listener

    def remove() -> None:
        listeners.pop(number, None)

    return remove


def _contained(listener: Callable[[L], object], what: L) -> None:
    try:
        listener(what)
    except Exception:  # noqa: BLE001 - what a listener raises is its own affair
        _LOG.exception("a listener of jobs failed")


def _bounded(text: str, limit: int | None) -> str:
    """Its last `limit` bytes, from a character on."""
    if limit is None or len(data := text.encode(errors="replace")) <= limit:
        return text
    return data[-limit:].decode("utf-8", "ignore")


def _closed() -> Closed:
    return Closed("the job runtime was closed and starts nothing more", hint="make a new one")


def _not_live(owner: str | None) -> NotAllowed:
    return NotAllowed(f"owner {owner!r:.80} is not a live session", field="owner", hint="start jobs from a live session")
