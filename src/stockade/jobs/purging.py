"""Removes jobs that have ended, their output and their records, by age, number or size; what runs or was not read stays.

The same for a living executor and for a directory that nobody holds. Blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from stockade.bank.artifacts import ArtifactStore
from stockade.bank.retention import Kept, Removal, Retention, select
from stockade.errors import StockadeError
from stockade.jobs.records import JobRecord

COMMIT_BOUND: Final = 30.0  # seconds within which a removed record is gone from the registry


def purge(
    artifacts: ArtifactStore,
    every: Callable[[], Iterable[JobRecord]],
    forget: Callable[[str], Future[None]] | None,
    retention: Retention,
    *,
    now: float,
    unread: bool,
) -> Removal:
    """Removes what `retention` does not keep; with `unread` also results that nobody has looked at.

    `every` gives all records, `forget` removes one; None: only say what would be removed. Artifacts of no job count too.
    One that resists does not stop the others: it is in the result.
    """
    # The bank first: a job that begins in between is then in no list, and one that ends is in the records as it is now.
    found = {item.id: item for item in artifacts.kept()}
    records = {record.id: record for record in every()}
    for orphan in [item for item in found.values() if item.kind == "job" and item.id not in records]:
        # Its record was lost with a damaged registry, say: nobody knows whether it was read.
        found[orphan.id] = replace(orphan, pinned=orphan.pinned or not unread)
    for record in records.values():
        item = found.get(record.id)
        if item is None:  # it never had output
            item = Kept(record.id, "job", record.ended_at or 0.0, 0)
        is_needed = not record.settled or not (record.acknowledged or unread)
        found[record.id] = replace(item, pinned=item.pinned or is_needed)
    removed: list[Kept] = []
    failed: list[tuple[str, str]] = []
    for item in select(found.values(), retention, now=now):
        try:
            if forget is not None:
                _remove(item, artifacts, forget if item.id in records else None)
            removed.append(item)
        except (OSError, StockadeError, TimeoutError) as error:
            failed.append((item.id, str(error)))
    return Removal(tuple(item.id for item in removed), sum(item.size for item in removed), tuple(failed))


def _remove(item: Kept, artifacts: ArtifactStore, forget: Callable[[str], Future[None]] | None) -> None:
    """The output first: a record without it can be removed again, output without a record would be forgotten."""
    if item.kind == "artifact":
        artifacts.delete(item.id)
        return
    artifacts.remove_job(item.id)
    if forget is not None:
        forget(item.id).result(COMMIT_BOUND)
