"""What a new executor does about the jobs of one that died: nobody saw them end, so they are `lost`, and what was banked is kept.

The processes are gone before this is called: the kernel ends them with their executor, and the supervisor kills what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from stockade.errors import StateError
from stockade.ids import InstanceId
from stockade.jobs.reader import StoreReader
from stockade.jobs.records import JobError, JobRecord
from stockade.jobs.states import JobState
from stockade.jobs.store import Store

COMMIT_SECONDS: Final = 30.0


def recover(
    store: Store,
    instance: InstanceId,
    *,
    account: Callable[[JobRecord], JobRecord] | None = None,
    now: Callable[[], float] = time.time,
) -> list[JobRecord]:
    """Settles every unsettled record of an earlier instance as `lost`, all in one transaction, and returns them, oldest first.

    `account` brings a record up to date with what the bank holds (byte counts, references) before it is settled.

    Raises:
        StateError: they cannot be written; the next start tries again.
    """
    with StoreReader.open(store.path, versions=store.version) as reader:
        left = [record for record in reader.unsettled() if record.instance != instance]
    lost = [_lost(record, account, now()) for record in left]
    if lost:
        try:
            store.submit_all(lost).result(COMMIT_SECONDS)
        except TimeoutError as why:
            raise StateError(f"the registry {store.path!r} did not take {len(lost)} lost jobs in time") from why
    return lost


def _lost(record: JobRecord, account: Callable[[JobRecord], JobRecord] | None, ended_at: float) -> JobRecord:
    if account is not None:
        try:
            record = account(record)
        except Exception as why:  # noqa: BLE001  (one unreadable account must not keep the others from being settled)
            record = record.with_(notes=(*record.notes, f"what was banked could not be counted: {why}"))
    return record.with_(
        state=JobState.LOST,
        error=JobError(
            code="lost",
            message=f"the executor died with the job last recorded as {record.state}; nobody saw how it ended",
            hint="output that was banked before is kept and readable; start the job again if its end matters",
        ),
        ended_at=ended_at,
    )
