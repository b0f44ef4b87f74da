"""Reads the registry's database: from this process or another, while its executor runs or after it died.

A reader takes no lock that a writer waits for (WAL mode) and never writes a row. It may be used from any thread.
Rests on SQLite's WAL mode: where no log index exists yet, the directory must be writable for it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from stockade.errors import StateError
from stockade.jobs import schema
from stockade.jobs.records import HOST, Caller, DamagedRecord, JobRecord
from stockade.jobs.states import JobState

_log = logging.getLogger(__name__)

MOST_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Page:
    """Records, newest first, and the cursor of the next page (None: this was the last)."""

    records: tuple[JobRecord, ...]
    next: int | None


class StoreReader:
    """A read-only view of a registry's database."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, path: str, *, versions: int = len(schema.MIGRATIONS)) -> StoreReader:
        """Opens the database at `path`, which must exist.

        Raises:
            StateError: there is none, it is not ours, it is damaged, or a newer Stockade made it.
        """
        try:
            connection = schema.connect(path, readonly=True)
        except sqlite3.Error as why:
            raise _unreadable(path, why) from why
        try:
            if connection.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID:
                raise StateError(f"{path!r} is not a registry of Stockade", hint="name the state directory of an executor")
            schema.refuse_newer(schema.version(connection), versions)
        except sqlite3.Error as why:
            connection.close()
            raise _unreadable(path, why) from why
        except StateError:
            connection.close()
            raise
        return cls(path, connection)

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def get(self, job_id: str) -> JobRecord | None:
        """The record of that id, None where there is none.

        Raises:
            StateError: the record or the database is damaged, or cannot be read.
        """
        rows = self._rows("SELECT body, acknowledged FROM jobs WHERE id = ?", schema.find_text(job_id))
        for body, acknowledged in rows:
            try:
                return schema.record_of(body, acknowledged)
            except StateError as why:
                raise type(why)(f"job {job_id!r}: {why.message}", hint=why.hint) from why
        return None

    def list(
        self,
        *,
        limit: int = 100,
        states: Collection[JobState] | None = None,
        caller: Caller = HOST,
        owner: str | None = None,
        session: str | None = None,
        before: int | None = None,
    ) -> Page:
        """At most `limit` (up to 1,000) records that `caller` may see, newest first; None in a filter lets everything pass.

        Raises:
            StateError: the database cannot be read. A damaged record alone is left out, and logged.
        """
        limit = max(1, min(limit, MOST_ROWS))
        where: list[str] = []
        values: list[Any] = []
        if states is not None:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            values += [str(state) for state in states]
        if caller is not HOST:
            # The plus signs keep SQLite from the index on owner, which would have it sort all that the caller may see.
            where.append("(+owner IS NULL OR +owner IS ?)")
            values.append(schema.find_text(caller))
        for column, value in (("owner", owner), ("session", session)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(schema.find_text(value))
        if before is not None:
            where.append("seq < ?")
            values.append(before)
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        rows = self._rows(
            f"SELECT seq, body, acknowledged FROM jobs{condition} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            *values,
            limit + 1,
        )
        cursor = rows[limit - 1][0] if len(rows) > limit else None
        return Page(self._whole([row[1:] for row in rows[:limit]]), cursor)

    def every(self) -> Iterator[JobRecord]:
        """All records, newest first, read in pages. Raises: StateError, as `list`."""
        before: int | None = None
        while True:
            page = self.list(limit=MOST_ROWS, before=before)
            yield from page.records
            if page.next is None:
                return
            before = page.next

    def unsettled(self) -> tuple[JobRecord, ...]:
        """Every record that is not settled, oldest first; after a crash these are the jobs that nobody saw end."""
        return self._whole(self._rows("SELECT body, acknowledged FROM jobs WHERE settled = 0 ORDER BY seq"))

    def by_key(self, owner: str | None, key: str) -> JobRecord | None:
        """The job that `owner` started with `key`."""
        rows = self._rows(
            "SELECT body, acknowledged FROM jobs WHERE key = ? AND owner IS ? ORDER BY seq DESC LIMIT 1",
            schema.find_text(key),
            schema.find_text(owner),
        )
        return next(iter(self._whole(rows)), None)

    def count(self) -> int:
        """How many records there are."""
        return int(self._rows("SELECT count(*) FROM jobs")[0][0])

    def close(self) -> None:
        """Closes the database; once is enough."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def _rows(self, statement: str, *values: object) -> Sequence[Any]:
        with self._lock:
            if self._closed:
                raise StateError(f"the reader of {self.path!r} has been closed", hint="open another")
            try:
                # Everything is fetched at once: a statement left open would hold its snapshot, and the log would grow.
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as why:
                raise _unreadable(self.path, why) from why

    def _whole(self, rows: Sequence[Any]) -> tuple[JobRecord, ...]:
        records: list[JobRecord] = []
        for body, acknowledged in rows:
            try:
                records.append(schema.record_of(body, acknowledged))
            except DamagedRecord as why:
                _log.error("a record in %s was left out: %s", self.path, why.message)
        return tuple(records)


def _unreadable(path: str, why: sqlite3.Error) -> StateError:
    code = getattr(why, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        hint = "start an executor on this state directory: it sets the file aside and keeps what is readable"
    else:
        hint = "it must exist, and the state directory must be readable and writable for you"
    return StateError(f"the registry {path!r} cannot be read: {why}", hint=hint)
