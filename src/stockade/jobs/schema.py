"""The tables of the registry's database, how older ones are brought up to date, and how a row becomes a record.

The rule that a settled record never changes is kept by the database itself, so no mistake of ours can break it.
Rests on the SQLite file format (application_id, user_version) and on its triggers.
"""

from __future__ import annotations

import sqlite3
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Final

from stockade.errors import StateError
from stockade.jobs.records import JobRecord, dumps, loads

APPLICATION_ID: Final = 0x53746B64  # "Stkd", in the header of the file
BUSY_SECONDS: Final = 5.0

Migration = Callable[[sqlite3.Connection], None]


def _v1(connection: sqlite3.Connection) -> None:
    # seq is the order of creation and the cursor of listings; the wall clock may jump and cannot be either.
    connection.execute(
        "CREATE TABLE jobs(seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, instance TEXT NOT NULL,"
        " state TEXT NOT NULL, settled INTEGER NOT NULL, acknowledged INTEGER NOT NULL DEFAULT 0,"
        " owner TEXT, session TEXT, key TEXT, body TEXT NOT NULL)"
    )
    connection.execute("CREATE INDEX jobs_unsettled ON jobs(settled) WHERE settled = 0")
    connection.execute("CREATE INDEX jobs_key ON jobs(key) WHERE key IS NOT NULL")
    connection.execute("CREATE INDEX jobs_owner ON jobs(owner, seq)")
    connection.execute(
        "CREATE TRIGGER jobs_settled_is_final BEFORE UPDATE ON jobs WHEN OLD.settled = 1 AND"
        " (NEW.seq, NEW.id, NEW.instance, NEW.state, NEW.settled, NEW.owner, NEW.session, NEW.key, NEW.body) IS NOT"
        " (OLD.seq, OLD.id, OLD.instance, OLD.state, OLD.settled, OLD.owner, OLD.session, OLD.key, OLD.body)"
        " BEGIN SELECT RAISE(ABORT, 'a settled record is immutable'); END"
    )
    connection.execute(
        "CREATE TRIGGER jobs_acknowledged_is_final BEFORE UPDATE ON jobs WHEN NEW.acknowledged < OLD.acknowledged"
        " BEGIN SELECT RAISE(ABORT, 'an acknowledgement cannot be taken back'); END"
    )
    connection.execute(
        "CREATE TRIGGER jobs_unsettled_stays BEFORE DELETE ON jobs WHEN OLD.settled = 0"
        " BEGIN SELECT RAISE(ABORT, 'an unsettled record cannot be deleted'); END"
    )
    # What a repair found but could not read; kept for a person to look at.
    connection.execute("CREATE TABLE unreadable(id TEXT, body BLOB, reason TEXT NOT NULL)")


MIGRATIONS: Final[tuple[Migration, ...]] = (_v1,)


def connect(path: str, *, readonly: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode that may be passed between threads."""
    mode = "ro" if readonly else "rwc"
    connection = sqlite3.connect(
        f"file:{urllib.parse.quote(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )
    # A torn row must not hide the others: its bytes are carried through, and its sum says that it is damaged.
    connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    return connection


def version(connection: sqlite3.Connection) -> int:
    """How many migrations the database has seen."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Brings the database up to date, all steps in the caller's transaction.

    Raises:
        StateError: a newer Stockade made it.
    """
    refuse_newer(version(connection), len(migrations))
    for step in migrations[version(connection) :]:
        step(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(migrations)}")


def refuse_newer(found: int, known: int) -> None:
    """Raises StateError where `found` is a version that this Stockade does not know."""
    if found > known:
        raise StateError(
            f"the registry has schema version {found}, this Stockade knows versions up to {known}",
            hint="use the newer Stockade that made it, or name another state directory",
        )


def row(record: JobRecord) -> tuple[object, ...]:
    """The columns of a record, made before the transaction in which `put` writes them."""
    return (
        record.id,
        record.instance,
        str(record.state),
        int(record.settled),
        find_text(record.owner),
        find_text(record.session),
        find_text(record.key),
        dumps(record),
    )


def put(connection: sqlite3.Connection, columns: tuple[object, ...]) -> None:
    """Writes one record: a new row, or the next version of an unsettled one."""
    connection.execute(
        "INSERT INTO jobs(id, instance, state, settled, owner, session, key, body) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(id) DO UPDATE SET state = excluded.state, settled = excluded.settled, body = excluded.body,"
        " instance = excluded.instance, owner = excluded.owner, session = excluded.session, key = excluded.key",
        columns,
    )


def acknowledge(connection: sqlite3.Connection, job_id: str) -> None:
    """Marks a settled job as seen."""
    connection.execute("UPDATE jobs SET acknowledged = 1 WHERE id = ? AND settled = 1", (job_id,))


def delete(connection: sqlite3.Connection, job_id: str) -> None:
    """Removes a settled job; retention alone does this."""
    connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))


def record_of(body: object, acknowledged: object) -> JobRecord:
    """The record in a row's `body` and `acknowledged`; raises what `records.loads` raises."""
    return loads(body if isinstance(body, str) else "", acknowledged=bool(acknowledged))


def find_text(value: str | None) -> str | None:
    """`value` as its column holds it: text with surrogates cannot be bound; the body has the truth."""
    return None if value is None else value.encode(errors="backslashreplace").decode()
