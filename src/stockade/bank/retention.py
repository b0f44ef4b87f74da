"""Which results make room for new ones: by age, by number and by bytes, and never one that is still needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Kept:
    """Something the bank keeps: a job with all its artifacts, or an artifact of its own.

    `ended_at` is in seconds since the epoch, `size` in bytes on disk; what is `pinned` (running, or not yet read)
    stays.
    """

    id: str
    kind: Literal["job", "artifact"]
    ended_at: float
    size: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept: seconds since the end, number of results, bytes on disk; None for no limit."""

    max_age: float | None = None
    max_count: int | None = None
    max_bytes: int | None = None


def select(kept: Iterable[Kept], retention: Retention, *, now: float) -> tuple[Kept, ...]:
    """What is to be removed, oldest first; what is pinned counts towards the limits and is never selected."""
    removed: list[Kept] = []
    count = size = 0
    # Pinned first, then from the newest on: what is needed takes its room before anything else does.
    for item in sorted(kept, key=lambda item: (not item.pinned, -item.ended_at, item.id)):
        over = (
            (retention.max_age is not None and now - item.ended_at > retention.max_age)
            or (retention.max_count is not None and count + 1 > retention.max_count)
            or (retention.max_bytes is not None and size + item.size > retention.max_bytes)
        )
        if over and not item.pinned:
            removed.append(item)
        else:
            count += 1
            size += item.size
    return tuple(sorted(removed, key=lambda item: (item.ended_at, item.id)))


@dataclass(frozen=True, slots=True)
class Removal:
    """What a purge did: the results removed, the bytes that were freed, and what could not be removed and why."""

    removed: tuple[str, ...]
    bytes: int
    failed: tuple[tuple[str, str], ...]
