"""Whether a start is let in, and what its caller gets: the rules that the registry applies before a job has an id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from stockade.errors import InvalidRequest, StateError, TooManyJobs
from stockade.jobs.records import JobRecord, JobRequest, differing

NAMED_IDS: Final = 20  # ids in an error text at most
COMMIT_BOUND: Final = 5.0  # seconds that a start waits for a disk that hangs


@dataclass(frozen=True, slots=True)
class Created:
    """A job as admitted; `fresh` is false where an earlier start with the same key made it. `written` ends with its commit."""

    record: JobRecord
    fresh: bool
    written: Future[None]

    async def wait_written(self) -> None:
        """Waits until the record is on disk, so that whoever has its id finds it there, whatever happens next.

        A disk that is full or hangs holds nothing up: the registry keeps the record and writes it when it can.
        """
        if not self.written.done():
            with contextlib.suppress(StateError, TimeoutError):
                async with asyncio.timeout(COMMIT_BOUND):
                    await asyncio.wrap_future(self.written)


def again(known: JobRecord, request: JobRequest) -> Created:
    """The job that the request's key made before.

    Raises:
        InvalidRequest: it made another command.
    """
    if others := differing(known, request):
        words = " and ".join("environment or stdin" if name == "input" else name for name in others)
        raise InvalidRequest(
            f"key {request.key!r} was used for job {known.id!r} with another {words}",
            field="key",
            hint="use a new key for a new command",
        )
    written: Future[None] = Future()
    written.set_result(None)
    return Created(known, False, written)


def admit(busy: Sequence[JobRecord], limit: int) -> None:
    """Lets one more job in beside `busy`, the unsettled ones of its owner.

    Raises:
        TooManyJobs: the limit is reached; the text says which to kill (U-7).
    """
    if len(busy) >= limit:
        raise TooManyJobs(
            f"{len(busy)} jobs are not settled and at most {limit} may be: {named([record.id for record in busy])}",
            hint="kill one of them or wait until one ends, then start this again",
        )


def named(ids: Sequence[str]) -> str:
    """Ids for an error text, a bounded number of them."""
    more = f" and {len(ids) - NAMED_IDS} more" if len(ids) > NAMED_IDS else ""
    return f"{', '.join(ids[:NAMED_IDS])}{more}"
