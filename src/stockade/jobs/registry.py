"""What state each job is in: the truth of this executor's life in memory, of every life in the store.

A change is seen by this process at once, except the last: a settled record is shown, its waiters are released and its
listeners told only after it has been committed (U-23), or after the commit failed and the store keeps it for later; nobody
hangs on a full disk.

Thread-safe and bound to no event loop (U-35). `create`, `get`, `owner_of`, `list`, and `settled` for a job of an earlier life,
may read the database (well under a millisecond), `close` waits for it; nothing else here touches the disk, or waits for
somebody who does.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from stockade.errors import Closed, InvalidRequest, StateError, UnknownJob
from stockade.ids import InstanceId, JobId, is_safe_id, new_job_id
from stockade.jobs import states
from stockade.jobs.archive import Archive, Wanted
from stockade.jobs.listeners import Listener, Listeners, Notices, Waiter, release
from stockade.jobs.reader import Page
from stockade.jobs.recent import EVERY_SESSION, Counters, Recent, Session, counts
from stockade.jobs.records import HOST, Caller, JobError, JobRecord, JobRequest
from stockade.jobs.starts import NAMED_IDS, Created, admit, again, named
from stockade.jobs.states import ForbiddenTransition, JobState
from stockade.jobs.store import CLOSE_SECONDS, Store
from stockade.launcher.outcome import Outcome

RECENT: Final = 1_024  # settled records kept in memory, unless the disk is full
ID_ATTEMPTS: Final = 100

_CHANGEABLE: Final = frozenset({"stdout_bytes", "stderr_bytes", "references", "usage", "reached", "isolation"})


@dataclass(slots=True)
class _Live:
    record: JobRecord
    began: float | None = None  # of the monotonic clock
    ending: JobRecord | None = None  # the settled record while it is being committed
    done: Future[JobRecord] | None = None
    waiters: set[Waiter] = field(default_factory=set)


class Registry:
    """Every job of one executor. `recovered` are the jobs that this life's recovery settled: nobody has seen them yet."""

    def __init__(
        self,
        store: Store,
        instance: InstanceId,
        *,
        recovered: Sequence[JobRecord] = (),
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        recent: int = RECENT,
    ) -> None:
        self.store = store
        self.instance = instance
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.RLock()  # never held during a read of the database
        self._creating = threading.Lock()  # one start at a time between its look at the database and its entry here
        self._archive = Archive(store)
        self._live: dict[str, _Live] = {}
        self._recent = Recent(recent, store.is_unwritten)
        self._listeners = Listeners()
        self._notices = Notices(self._listeners)
        self._refusing = False
        for record in recovered:
            self._recent.settle(record)

    def create(self, request: JobRequest, *, limit: int | None = None, new_id: Callable[[], str] = new_job_id) -> Created:
        """Admits a job as `queued`, or finds the one that its owner's key made before; `limit` bounds its owner's unsettled jobs.

        Raises:
            Closed: the registry takes no more jobs.
            InvalidRequest: the key was used for another command, or the id is no safe one or taken.
            TooManyJobs: the limit is reached; no id was consumed (U-7).
        """
        with self._creating:
            self._check_open()
            if request.key is not None and (known := self._by_key(request.owner, request.key)) is not None:
                return again(known, request)
            if limit is not None:
                with self._lock:
                    busy = [live.record for live in self._live.values() if live.record.owner == request.owner]
                admit(busy, limit)
            job_id = JobId(self._fresh_id(new_id))
            with self._lock:
                self._check_open()  # it may have been closed while the database was read
                record = JobRecord(**dict(request), id=job_id, instance=self.instance, state=JobState.QUEUED, created_at=self._now())
                self._live[record.id] = _Live(record)
                # Written as it begins to run, or when somebody is to be told its id: a commit now would only slow its start.
                return Created(record, True, self.store.submit(record, urgent=False))

    def hurry(self) -> None:
        """Has what waits for company be written now."""
        self.store.hurry()

    def advance(self, job_id: str, to: JobState, **changes: Any) -> JobRecord:
        """Moves an unsettled job to another unsettled state; `changes` are byte counts, references, usage or isolation.

        Raises:
            UnknownJob: it is not a job of this life, or is settled.
            ForbiddenTransition: the table has no such move, or it is being settled.
        """
        with self._lock:
            live = self._unsettled(job_id)
            state = states.advance(live.record.state, to)
            if states.is_settled(state):
                raise ForbiddenTransition(f"job {job_id!r} becomes {to} by being settled")
            if state is JobState.RUNNING:
                live.began = self._monotonic()
                changes = {**_allowed(changes), "started_at": self._now()}
            else:
                changes = _allowed(changes)
            live.record = live.record.with_(state=state, **changes)
            if state is not JobState.STARTING:  # a moment long; whoever finds it after a crash learns no more from it than from `queued`
                self.store.submit(live.record, urgent=state is JobState.RUNNING)
            return live.record

    def note(self, job_id: str, *notes: str) -> JobRecord:
        """Adds notes to an unsettled job, such as the causes that came too late (U-25); written with its next change."""
        with self._lock:
            live = self._unsettled(job_id)
            live.record = live.record.with_(notes=(*live.record.notes, *notes))
            return live.record

    def settle(self, job_id: str, ending: Outcome | JobError, *, duration: float | None = None, **changes: Any) -> Future[JobRecord]:
        """Settles a job, once: an outcome makes it `finished`, an error `failed`, or `lost` where its code is `lost`.

        The future never fails (U-24): it gives the settled record after the commit, or after one that failed and will be
        repeated.
        `duration` in seconds of the monotonic clock is measured here where it is not given.

        Raises:
            UnknownJob: it is not a job of this life, or is settled.
            ForbiddenTransition: the table has no such move, or it is being settled.
        """
        with self._lock:
            live = self._unsettled(job_id)
            if isinstance(ending, JobError):
                end = JobState.LOST if ending.code == "lost" else JobState.FAILED
                changes = {**_allowed(changes), "error": ending}
            else:
                end = JobState.FINISHED
                changes = {**_allowed(changes), "outcome": ending}
            if duration is None and live.began is not None:
                duration = self._monotonic() - live.began
            record = live.record.with_(state=states.advance(live.record.state, end), ended_at=self._now(), duration=duration, **changes)
            live.ending = record
            done: Future[JobRecord] = Future()
            live.done = done
            done.set_running_or_notify_cancel()
            try:
                commit = self.store.submit(record)
            except Closed:  # the store is gone; whoever waits learns the end all the same
                self._committed(record)
                return done
        commit.add_done_callback(lambda _: self._committed(record))
        return done

    def peek(self, job_id: str, caller: Caller) -> JobRecord | None:
        """The record where it is in memory (unsettled or settled lately) and visible; never reads the database."""
        with self._lock:
            record = self._in_memory(job_id)
        return record if record is not None and record.visible_to(caller) else None

    def get(self, job_id: str, caller: Caller) -> JobRecord:
        """The record of a job of this or an earlier life.

        Raises:
            UnknownJob: there is none, or it is another owner's; the text lists ids that the caller may use (U-28).
            StateError: the database is damaged or cannot be read.
        """
        record = self.peek(job_id, caller)
        if record is None:
            record = self._archive.ask(lambda reader: reader.get(job_id))
            # It may have been settled between the two looks, or have an end that the database could not take yet.
            record = self.peek(job_id, caller) or record
        if record is None or not record.visible_to(caller):
            raise self._unknown(job_id, caller)
        return record

    def owner_of(self, job_id: str) -> str | None:
        """The owner token of a job, None where it is unowned; raises UnknownJob where there is no such job."""
        return self.get(job_id, HOST).owner

    def list(
        self,
        caller: Caller,
        *,
        limit: int = 100,
        states: Collection[JobState] | None = None,
        owner: str | None = None,
        session: str | None = None,
        before: int | None = None,
    ) -> Page:
        """At most `limit` records that the caller may see, newest first, with the cursor of the next page.

        What the disk could not take yet is on the first page, in front.
        """
        wanted = Wanted(caller, states, owner, session)
        self._archive.flush()
        page = self._archive.page(wanted, limit=limit, before=before)
        with self._lock:
            stored = {record.id for record in page.records}
            held = [
                record
                for job_id in (*self._live, *(record.id for record in self._recent))
                if job_id not in stored and self.store.is_unwritten(job_id) and (record := self._in_memory(job_id)) is not None
            ]
            records = [self._in_memory(record.id) or record for record in page.records]
        if before is None:
            records = [*sorted(held, key=lambda record: -record.created_at), *records]
        return Page(tuple(filter(wanted.fits, records))[:limit], page.next)

    def every(self) -> tuple[JobRecord, ...]:
        """All records of this and earlier lives as they are now, in no order; for retention."""
        self._archive.flush()
        stored = self._archive.ask(lambda reader: tuple(reader.every()))
        with self._lock:  # what is here is never older than what is there
            known = {record.id: record for record in (*stored, *self._recent, *(live.record for live in self._live.values()))}
        return tuple(known.values())

    def unsettled(self, caller: Caller = HOST) -> tuple[JobRecord, ...]:
        """The unsettled jobs of this life that the caller may see, oldest first; never reads the database."""
        with self._lock:
            return tuple(live.record for live in self._live.values() if live.record.visible_to(caller))

    def counters(self, owner: Caller, session: Session = EVERY_SESSION) -> Counters:
        """How many jobs of that owner (`HOST`: of all) and session run, and how many ended unseen (1A.8, U-27)."""
        with self._lock:
            alive = [live.record for live in self._live.values()]
            return Counters(
                sum(counts(record.owner, record.session, owner, session) for record in alive),
                self._recent.unseen(owner, session),
            )

    def acknowledge(self, record: JobRecord) -> JobRecord:
        """Marks a settled record as seen and returns it so; only who has returned it to somebody may call this (U-26)."""
        if not record.settled:
            return record
        with self._lock:
            # While it is being committed, nobody can have been shown it.
            if record.acknowledged or record.id in self._live:
                return record
            seen = record.model_copy(update={"acknowledged": True})
            self._recent.acknowledge(seen)
            try:
                self.store.acknowledge(record.id)
            except Closed:
                pass  # the mark lives as long as we do
        return seen

    def settled(self, job_id: str, caller: Caller = HOST) -> Future[JobRecord]:
        """A future of the caller's own that gives the settled record after its commit and never fails; it may be cancelled.

        Raises:
            UnknownJob: as `get`.
        """
        waiter: Waiter = Future()
        with self._lock:
            live = self._live.get(job_id)
            if live is not None and live.record.visible_to(caller):
                live.waiters.add(waiter)
        if live is None or not live.record.visible_to(caller):
            release(waiter, self.get(job_id, caller))
        else:
            # A waiter that gives up must not be kept until the job ends: waits with a bound are made in loops.
            waiter.add_done_callback(lambda gone: self._drop(live, gone))
        return waiter

    def on_settled(self, listener: Listener, *, scope: Caller = HOST) -> Callable[[], None]:
        """Tells `listener` once of each job that settles from now on and that `scope` may see; returns what removes it."""
        return self._listeners.add(listener, scope=scope)

    def forget(self, job_id: str) -> Future[None]:
        """Removes a settled job for good, for retention; the future fails with StateError where that could not be done."""
        with self._lock:
            if job_id in self._live:
                raise ForbiddenTransition(f"job {job_id!r} is not settled and cannot be forgotten")
            self._recent.forget(job_id)
            return self.store.delete(job_id)

    def refuse_starts(self) -> None:
        """Begins the close (U-29): nothing more is started, and listeners are silent; waiters are still released."""
        with self._lock:
            self._refusing = True
        self._listeners.silence()

    def close(self, timeout: float = CLOSE_SECONDS) -> int:
        """Writes what waits and says how much could not be written (the log says what); once is enough.

        Settled jobs stay readable.
        """
        self.refuse_starts()
        unwritten = self.store.close(timeout)
        self._notices.close(timeout)
        self._archive.close()
        return unwritten

    def _check_open(self) -> None:
        with self._lock:
            if self._refusing:
                raise Closed("the executor has been closed and starts nothing more", hint="open a new executor")

    def _committed(self, record: JobRecord) -> None:
        """Shows the settled record, then releases whoever waits; runs once a job, on the store's thread."""
        with self._lock:
            live = self._live.pop(record.id)
            self._recent.settle(record)
            waiters = tuple(live.waiters)
            if live.done is not None:
                waiters = (live.done, *waiters)
        for waiter in waiters:
            release(waiter, record)
        if self._listeners:  # nobody to tell: no need to wake another thread
            self._notices.post(record)

    def _drop(self, live: _Live, waiter: Waiter) -> None:
        with self._lock:
            live.waiters.discard(waiter)

    def _in_memory(self, job_id: str) -> JobRecord | None:
        live = self._live.get(job_id)
        return live.record if live is not None else self._recent.get(job_id)

    def _unsettled(self, job_id: str) -> _Live:
        live = self._live.get(job_id)
        if live is None:
            if self._in_memory(job_id) is not None:
                raise ForbiddenTransition(f"job {job_id!r} is settled")
            raise self._unknown(job_id, HOST, look=False)
        if live.ending is not None:
            raise ForbiddenTransition(f"job {job_id!r} is being settled as {live.ending.state}")
        return live

    def _by_key(self, owner: str | None, key: str) -> JobRecord | None:
        with self._lock:
            unsettled = [live.record for live in self._live.values()]
            for record in itertools.chain(unsettled, self._recent):
                if record.key == key and record.owner == owner:
                    return record
        return self._archive.ask(lambda reader: reader.by_key(owner, key))

    def _fresh_id(self, new_id: Callable[[], str]) -> str:
        job_id = ""
        for _ in range(ID_ATTEMPTS):
            job_id = new_id()
            if not is_safe_id(job_id):
                raise InvalidRequest(f"{job_id!r} cannot be the id of a job", field="id", hint="use letters and digits")
            if not self._exists(job_id):
                return job_id
        raise InvalidRequest(f"no free id was found, {job_id!r} is taken too", field="id", hint="name another id")

    def _exists(self, job_id: str) -> bool:
        with self._lock:
            if self._in_memory(job_id) is not None:
                return True
        return self._archive.ask(lambda reader: reader.get(job_id)) is not None

    def _unknown(self, job_id: str, caller: Caller, *, look: bool = True) -> UnknownJob:
        """The error with ids that the caller may use; without `look` those in memory alone."""
        with self._lock:
            known = [record.id for record in self.unsettled(caller)][::-1]
            known += [record.id for record in self._recent if record.visible_to(caller)]
        if not known and look:
            try:
                page = self._archive.page(Wanted(caller), limit=NAMED_IDS, before=None)
                known = [record.id for record in page.records]
            except StateError:
                pass  # the id is unknown all the same, and that is what was asked
        hint = f"use one of those: {named(known)}" if known else "no job has been started yet; start one first"
        return UnknownJob(f"unknown job {job_id!r}", field="job", hint=hint)


def _allowed(changes: dict[str, Any]) -> dict[str, Any]:
    if wrong := changes.keys() - _CHANGEABLE:
        raise ValueError(f"not to be changed by a move: {', '.join(sorted(wrong))}")
    return changes
