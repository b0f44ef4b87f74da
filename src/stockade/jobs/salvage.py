"""What is done with a database that is not whole or not ours: it is set aside by name, and what can be read of it is kept.

Nothing is deleted. The new database is complete before the old one moves, so a crash at any point loses nothing:

    registry.sqlite3          damaged                → registry.sqlite3.corrupt-1
    registry.sqlite3.rebuilt  complete, one commit   → registry.sqlite3

Only the holder of the state directory's lock may call these.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import re
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stockade.errors import StateError
from stockade.jobs import schema
from stockade.jobs.records import JobRecord, is_whole, loads
from stockade.jobs.states import JobState

_log = logging.getLogger(__name__)

_SIDES: Final = ("-wal", "-shm", "-journal")
_HEADER: Final = b"SQLite format 3\x00"
_BODY: Final = re.compile(rb'[0-9a-f]{8}\{"schema":')
_LONGEST_BODY: Final = 1 << 20  # bytes
_ORDER: Final = tuple(JobState)


@dataclass(frozen=True, slots=True)
class Repair:
    """What was set aside, why, and how much of it is in the new database."""

    reason: str
    kept_as: str
    records: int
    unreadable: int


def repair(path: str, migrations: Sequence[schema.Migration]) -> Repair | None:
    """Makes sure that `path` is ours and whole, or is not there; None where nothing had to be done.

    Raises:
        StateError: a newer Stockade made it, or there is no room to repair it.
        OSError: the directory cannot be used.
    """
    rebuilt = f"{path}.rebuilt"
    if not _exists(path) and _is_complete(rebuilt):
        os.rename(rebuilt, path)  # the crash came between the two renames
    _remove(rebuilt)
    reason = _fault(path, len(migrations))
    if reason is None:
        return None
    kept_as = _free_name(path)
    records, unreadable = _readable(path)
    try:
        _build(rebuilt, records, unreadable, migrations)
    except sqlite3.Error as why:
        _remove(rebuilt)
        raise StateError(
            f"the registry {path!r} is damaged ({reason}) and cannot be repaired here: {why}",
            hint="make room in the state directory, or name another one",
        ) from why
    for side in ("", *_SIDES):
        if _exists(path + side):
            os.rename(path + side, kept_as + side)
    os.rename(rebuilt, path)
    _log.warning(
        "the registry was not usable (%s): kept as %s, %d records were saved from it, %d could not be read",
        reason,
        kept_as,
        len(records),
        len(unreadable),
    )
    return Repair(reason, kept_as, len(records), len(unreadable))


def _fault(path: str, known: int) -> str | None:
    """Why the file cannot be used; None where it is whole, or new."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return "the file is gone, its log is not" if _size(path + "-wal") else None
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if found.st_size == 0:
        return "the file is empty, its log is not" if _size(path + "-wal") else None
    with open(path, "rb") as file:
        if file.read(len(_HEADER)) != _HEADER:
            return "not an SQLite database"
    try:
        with contextlib.closing(schema.connect(path, readonly=True)) as connection:
            return _fault_inside(connection, found.st_size, known)
    except sqlite3.OperationalError as why:
        if why.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StateError(f"the registry {path!r} is locked by another program: {why}") from why
        return str(why)
    except sqlite3.Error as why:
        return str(why)


def _fault_inside(connection: sqlite3.Connection, size: int, known: int) -> str | None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != schema.APPLICATION_ID:
        return None if application == 0 and tables == 0 else "a database of another program"
    schema.refuse_newer(schema.version(connection), known)
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        return str(verdict)
    for identifier, body in connection.execute("SELECT id, body FROM jobs"):
        if not isinstance(body, str) or not is_whole(body):
            return f"the record of job {identifier!r} is damaged"
    return None


def _readable(path: str) -> tuple[list[JobRecord], list[tuple[str, bytes, str]]]:
    """The best version of each record that is found by the tree or in the bare bytes, and the rows that are no record."""
    best: dict[str, JobRecord] = {}
    unreadable: list[tuple[str, bytes, str]] = []
    for identifier, body, acknowledged in _rows(path):
        try:
            record = schema.record_of(body, acknowledged)
        except StateError as why:
            raw = body if isinstance(body, bytes) else str(body).encode(errors="surrogateescape")
            unreadable.append((str(identifier), raw, why.message))
        else:
            best[record.id] = record
    for source in (path, path + "-wal"):
        for record in _carved(source):
            known = best.get(record.id)
            if known is None or _ORDER.index(record.state) > _ORDER.index(known.state):
                best[record.id] = record
    saved = sorted(best.values(), key=lambda record: record.created_at)
    return saved, [row for row in unreadable if row[0] not in best]


def _rows(path: str) -> Iterator[tuple[object, object, object]]:
    """Rows by the tree: from the front up to the first fault, then from the back."""
    # SQLite deletes the log of a database that is empty, even when it only reads; the log may be all that is left.
    if not _is_regular(path) or not _size(path):
        return
    try:
        with contextlib.closing(schema.connect(path, readonly=True)) as connection:
            seen: set[int] = set()
            for order in ("ASC", "DESC"):
                with contextlib.suppress(sqlite3.Error):
                    for seq, *row in connection.execute(
                        f"SELECT seq, id, body, acknowledged FROM jobs NOT INDEXED ORDER BY seq {order}"  # noqa: S608
                    ):
                        if seq in seen:
                            break
                        seen.add(seq)
                        yield row[0], row[1], row[2]
    except sqlite3.Error:
        return


def _carved(path: str) -> Iterator[JobRecord]:
    """Records found by their beginning in the bare bytes of a file; the sum of each says that it is whole."""
    if not _is_regular(path) or not _size(path):
        return
    decoder = json.JSONDecoder()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        for found in _BODY.finditer(raw):
            limit = found.start() + _LONGEST_BODY
            end = raw.find(b"\x00", found.start(), limit)
            text = raw[found.start() : limit if end < 0 else end].decode("latin-1")
            try:
                _, length = decoder.raw_decode(text, 8)
                yield loads(text[:length])
            except (ValueError, StateError):
                continue


def _build(
    path: str,
    records: Sequence[JobRecord],
    unreadable: Sequence[tuple[str, bytes, str]],
    migrations: Sequence[schema.Migration],
) -> None:
    with contextlib.closing(schema.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        schema.migrate(connection, migrations)
        for record in records:
            schema.put(connection, schema.row(record))
            if record.acknowledged:
                schema.acknowledge(connection, record.id)
        connection.executemany("INSERT INTO unreadable(id, body, reason) VALUES(?, ?, ?)", unreadable)
        connection.execute("COMMIT")


def _is_complete(path: str) -> bool:
    # The application id is written by the one transaction that writes all the rest.
    if not _is_regular(path):
        return False
    try:
        with contextlib.closing(schema.connect(path)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION_ID)
    except sqlite3.Error:
        return False


def _free_name(path: str) -> str:
    number = 1
    while any(_exists(f"{path}.corrupt-{number}{side}") for side in ("", *_SIDES)):
        number += 1
    return f"{path}.corrupt-{number}"


def _remove(path: str) -> None:
    # Our own half-made copy; what it was copied from is still there.
    for side in ("", *_SIDES):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + side)


def _exists(path: str) -> bool:
    return os.path.lexists(path)


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0
