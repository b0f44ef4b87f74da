"""The settled jobs that are kept in memory: the latest ones, and all that the disk could not take yet.

Also which of them nobody has looked at (1A.8): that count is of one executor's life, and never forgets a job that memory lets go.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from stockade.jobs.records import HOST, Caller, JobRecord


class Every(enum.Enum):
    """Stands for all sessions where None is the session of those that have none."""

    SESSION = "session"


EVERY_SESSION: Final = Every.SESSION
Session = str | Every | None


@dataclass(frozen=True, slots=True)
class Counters:
    """Jobs of this life: not settled, and settled but not yet acknowledged (1A.8)."""

    running: int
    finished: int


def counts(record_owner: str | None, record_session: str | None, owner: Caller, session: Session) -> bool:
    """True where a job of that owner and session belongs to the counter of `owner` and `session`."""
    return (owner is HOST or record_owner == owner) and (session is EVERY_SESSION or record_session == session)


class Recent:
    """At most `capacity` settled records, and those for which `is_unwritten` holds; the registry's lock guards it."""

    def __init__(self, capacity: int, is_unwritten: Callable[[str], bool]) -> None:
        self._capacity = capacity
        self._is_unwritten = is_unwritten
        self._records: OrderedDict[str, JobRecord] = OrderedDict()
        self._unseen: dict[tuple[str | None, str | None], set[str]] = {}

    def __iter__(self) -> Iterator[JobRecord]:
        """The records, the latest first."""
        return reversed(self._records.values())

    def get(self, job_id: str) -> JobRecord | None:
        """The record where it is still here."""
        return self._records.get(job_id)

    def settle(self, record: JobRecord) -> None:
        """Takes in a job that has just been settled."""
        if not record.acknowledged:
            self._unseen.setdefault((record.owner, record.session), set()).add(record.id)
        self._keep(record)

    def acknowledge(self, seen: JobRecord) -> None:
        """Takes in a record that somebody has now seen."""
        self._no_longer_unseen(seen)
        self._keep(seen)

    def forget(self, job_id: str) -> None:
        """Drops a record that is being deleted."""
        record = self._records.pop(job_id, None)
        if record is not None:
            self._no_longer_unseen(record)

    def unseen(self, owner: Caller, session: Session) -> int:
        """How many settled jobs of that owner and session nobody has looked at."""
        return sum(len(ids) for whose, ids in self._unseen.items() if counts(*whose, owner, session))

    def _no_longer_unseen(self, record: JobRecord) -> None:
        ids = self._unseen.get((record.owner, record.session), set())
        ids.discard(record.id)
        if not ids:
            self._unseen.pop((record.owner, record.session), None)

    def _keep(self, record: JobRecord) -> None:
        self._records[record.id] = record
        for _ in range(2):  # two may go for each that comes, so the surplus of a full disk shrinks again
            if len(self._records) > self._capacity:
                oldest, kept = self._records.popitem(last=False)
                if self._is_unwritten(oldest):
                    self._records[oldest] = kept
