"""What the database knows of the jobs of this life and of earlier ones: questions to it, also after the registry has been closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeVar

from stockade.jobs.reader import Page, StoreReader
from stockade.jobs.records import Caller, JobRecord
from stockade.jobs.states import JobState
from stockade.jobs.store import Store

T = TypeVar("T")

FLUSH_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records a list is to have, for whom."""

    caller: Caller
    states: Collection[JobState] | None = None
    owner: str | None = None
    session: str | None = None

    def fits(self, record: JobRecord) -> bool:
        """True where the record belongs on that list as it is now."""
        return (
            record.visible_to(self.caller)
            and (self.states is None or record.state in self.states)
            and (self.owner is None or record.owner == self.owner)
            and (self.session is None or record.session == self.session)
        )


class Archive:
    """The records in the database. Thread-safe; every question blocks, well under a millisecond."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = threading.Lock()
        self._reader: StoreReader | None = StoreReader.open(store.path, versions=store.version)

    def ask(self, question: Callable[[StoreReader], T]) -> T:
        """The answer to a question. Raises: StateError, where the database is damaged or cannot be read."""
        with self._turn:
            reader = self._reader
        if reader is not None:
            return question(reader)
        with StoreReader.open(self._store.path, versions=self._store.version) as temporary:
            return question(temporary)

    def page(self, wanted: Wanted, *, limit: int, before: int | None) -> Page:
        """At most `limit` stored records, newest first. Raises: StateError."""
        return self.ask(
            lambda reader: reader.list(
                limit=limit, states=wanted.states, caller=wanted.caller, owner=wanted.owner, session=wanted.session, before=before
            )
        )

    def flush(self) -> None:
        """Has what waits be written, where the disk takes it; gives up after a while."""
        if self._reader is not None:
            self._store.flush(FLUSH_SECONDS)

    def close(self) -> None:
        """Closes the standing reader; later questions open one of their own."""
        with self._turn:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
