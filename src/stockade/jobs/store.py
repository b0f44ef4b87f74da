"""The registry's database: one thread writes, whatever waits is written in one commit, and nothing is said before it is done.

SQLite in WAL mode with synchronous=NORMAL: a commit is in the kernel's hands, so it survives SIGKILL of any process at any moment,
and the file stays whole through a power cut. A power cut may take the last commits, as it takes the last bytes of the bank, which
is not synced either; a registry that promised more than its outputs can would be no truer.

A full disk costs no record: what could not be written is kept here, newest version of each, and written when there is room. Some room
is kept back in a file beside the database, `Reserve`; it is given up for the records of jobs that have ended, because what the
disk does not have when we close is what the next life calls lost.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from stockade.errors import Closed, StateError
from stockade.jobs import schema
from stockade.jobs.records import JobRecord
from stockade.jobs.reserve import Reserve
from stockade.jobs.salvage import Repair, repair

_log = logging.getLogger(__name__)

GROUP: Final = 512  # submissions in one commit at most
RETRY_SECONDS: Final = 0.25  # between attempts to write what could not be written
CLOSE_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 0.05  # how long a change that nobody waits for may wait for company

_REFUSALS: Final = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)

_Key = tuple[str, str]  # what is changed: ("put" | "acknowledge" | "delete", job id)


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    key: _Key
    write: Callable[[sqlite3.Connection], None]
    record: JobRecord | None = None


@dataclass(frozen=True, slots=True)
class _Submission:
    changes: tuple[_Change, ...]
    done: Future[None] = field(default_factory=Future)


class Store:
    """The one writer of a registry's database; open it under the state directory's lock."""

    def __init__(self, path: str, connection: sqlite3.Connection, version: int, repaired: Repair | None) -> None:
        self.path = path
        self.version = version
        self.repaired = repaired
        self._connection = connection
        self._wake = threading.Condition()
        self._queue: deque[_Submission] = deque()
        self._urgent = False  # somebody waits for a commit of what is queued
        self._backlog: dict[_Key, _Change] = {}
        self._commits = 0
        self._closing = False
        self._told = False  # the log has been told what was left unwritten
        self._reserve = Reserve(f"{path}.reserve")
        self._reserve.fill()
        self._writer = threading.Thread(target=self._write_loop, name="stockade-store", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, path: str, *, migrations: Sequence[schema.Migration] = schema.MIGRATIONS) -> Store:
        """Opens or makes the database; one that is damaged or foreign is set aside first (`repaired` says what was kept).

        Raises:
            StateError: a newer Stockade made it, or the directory cannot be written.
        """
        try:
            repaired = repair(path, migrations)
            connection = schema.connect(path)
        except (sqlite3.Error, OSError) as why:
            raise _unusable(path, why) from why
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {8 << 20}")
            connection.execute("BEGIN IMMEDIATE")
            schema.migrate(connection, migrations)
            connection.execute("COMMIT")
        except sqlite3.Error as why:
            connection.close()
            raise _unusable(path, why) from why
        except BaseException:
            connection.close()
            raise
        return cls(path, connection, len(migrations), repaired)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def commits(self) -> int:
        """How many transactions have been committed."""
        return self._commits

    @property
    def unwritten(self) -> int:
        """How many changes could not be written yet; they are kept and tried again."""
        with self._wake:
            return len(self._backlog)

    def is_unwritten(self, job_id: str) -> bool:
        """True where the database holds an older version of that job, or none, because a commit failed."""
        with self._wake:
            return ("put", job_id) in self._backlog or ("acknowledge", job_id) in self._backlog

    def submit(self, record: JobRecord, *, urgent: bool = True) -> Future[None]:
        """Writes one record; the future ends after the commit, with StateError where it failed (and is tried again).

        One that is not urgent is written with the next that is, or after 50 ms.
        """
        return self._submit((_put(record),), urgent=urgent)

    def hurry(self) -> None:
        """Has what is queued be written now, as if it were urgent."""
        with self._wake:
            if self._queue:
                self._urgent = True
                self._wake.notify()

    def submit_all(self, records: Iterable[JobRecord]) -> Future[None]:
        """Writes records in one transaction; as `submit`."""
        return self._submit(tuple(_put(record) for record in records))

    def acknowledge(self, job_id: str) -> Future[None]:
        """Marks a settled job as seen; as `submit`, not urgent."""
        return self._submit((_Change(("acknowledge", job_id), lambda to: schema.acknowledge(to, job_id)),), urgent=False)

    def delete(self, job_id: str) -> Future[None]:
        """Removes a settled job, for retention; refused with StateError where it is not settled."""
        return self._submit((_Change(("delete", job_id), lambda to: schema.delete(to, job_id)),))

    def flush(self, timeout: float) -> bool:
        """Waits, at most `timeout` seconds, until all that was submitted has been tried; True where all of it is written."""
        try:
            self._submit(()).result(timeout)
        except (TimeoutError, StateError, Closed):
            return False
        return self.unwritten == 0

    def close(self, timeout: float = CLOSE_SECONDS) -> int:
        """Writes what waits, closes the database and says how many changes could not be written; once is enough.

        The log names each of them, with how its job ended: nobody else will know.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._writer.join(timeout)
        if self._writer.is_alive():
            _log.error("the registry %s did not finish writing within %g s", self.path, timeout)
        with self._wake:
            left = [*self._backlog.values(), *(change for waiting in self._queue for change in waiting.changes)]
            told, self._told = self._told, True
        for change in () if told else left:
            what = f"not {change.key[0]}" if change.record is None else change.record.sentence()
            _log.error("the registry %s was closed without a change of job %s: %s", self.path, change.key[1], what)
        return len(left)

    def _submit(self, changes: tuple[_Change, ...], *, urgent: bool = True) -> Future[None]:
        submission = _Submission(changes)
        submission.done.set_running_or_notify_cancel()  # nobody can take a commit back
        with self._wake:
            if self._closing:
                raise Closed("the registry has been closed", hint="open a new executor on the state directory")
            self._queue.append(submission)
            if urgent or len(self._queue) == 1:
                self._urgent = self._urgent or urgent
                self._wake.notify()
        return submission.done

    def _write_loop(self) -> None:
        while (group := self._take()) is not None:
            self._commit(group)
        if self._backlog:
            self._commit([])
        self._connection.close()

    def _take(self) -> list[_Submission] | None:
        """What has gathered while the last commit ran; empty where the backlog's time has come, None at the end."""
        with self._wake:
            while not self._queue:
                if self._closing:
                    return None
                if not self._wake.wait(RETRY_SECONDS if self._backlog else None) and self._backlog:
                    return []
            if not self._urgent:
                self._wake.wait_for(lambda: self._urgent or self._closing, PATIENCE_SECONDS)
            self._urgent = len(self._queue) > GROUP
            return [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]

    def _commit(self, group: list[_Submission]) -> None:
        changes, refused = self._merged(group)
        left: dict[_Key, _Change] = {}
        failure: Exception | None = None
        try:
            self._write(changes.values(), refused)
        except Exception as why:  # noqa: BLE001  (whatever it is, the writer lives on and says it)
            failure, left = why, {key: change for key, change in changes.items() if change not in refused}
            needed = [change for change in left.values() if self._closing or (change.record is not None and change.record.settled)]
            if needed and is_full(why) and self._reserve.give_up():
                try:
                    self._write(needed, refused)
                    left = {key: change for key, change in left.items() if change not in needed}
                except Exception as again:  # noqa: BLE001
                    failure = again
        if failure is not None and left:
            self._say_kept(len(left), failure)
        with self._wake:
            self._backlog = left
        for submission in group:
            # A version that a newer one replaced shares the newer one's fate.
            fates = (refused.get(change) or refused.get(changes[change.key]) for change in submission.changes)
            error = next(filter(None, fates), None)
            if error is None and failure is not None and any(change.key in left for change in submission.changes):
                error = _unusable(self.path, failure)
            _resolve(submission, error)
        if not left and not self._closing:
            self._reserve.fill()

    def _write(self, changes: Collection[_Change], refused: dict[_Change, StateError]) -> None:
        """One transaction; what the database refuses is added to `refused`. Raises: whatever kept it from being committed."""
        if not changes:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for change in changes:
                try:
                    change.write(self._connection)
                except _REFUSALS as why:  # this statement alone is undone
                    refused[change] = StateError(f"the registry refuses to change job {change.key[1]!r}: {why}")
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                try:
                    self._connection.execute("ROLLBACK")
                except sqlite3.Error as again:
                    _log.error("the registry %s cannot roll back: %s", self.path, again)
            raise
        self._commits += 1

    def _merged(self, group: list[_Submission]) -> tuple[dict[_Key, _Change], dict[_Change, StateError]]:
        """Backlog and group with one change a key, the newest; never one settled record over another."""
        changes = dict(self._backlog)
        refused: dict[_Change, StateError] = {}
        for submission in group:
            for change in submission.changes:
                earlier = changes.get(change.key)
                if earlier and earlier.record and earlier.record.settled and change.record != earlier.record:
                    refused[change] = StateError(f"the registry refuses to change job {change.key[1]!r}: it is settled")
                    continue
                changes[change.key] = change
        return changes, refused

    def _say_kept(self, count: int, why: Exception) -> None:
        with self._wake:
            first = not self._backlog
        if first:
            _log.error("the registry %s cannot be written (%s); %d changes are kept in memory", self.path, why, count)


def is_full(why: Exception) -> bool:
    """True where the database could not be written for want of room, as far as SQLite can tell (a quota is an I/O error to it)."""
    return (getattr(why, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _put(record: JobRecord) -> _Change:
    return _Change(("put", record.id), lambda to: schema.put(to, schema.row(record)), record)


def _resolve(submission: _Submission, error: StateError | None) -> None:
    if error is None:
        submission.done.set_result(None)
    else:
        submission.done.set_exception(error)


def _unusable(path: str, why: Exception) -> StateError:
    return StateError(
        f"the registry {path!r} cannot be written: {why}",
        hint="make room on its file system, make the state directory writable, or name another one",
    )
