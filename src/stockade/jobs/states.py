"""The states of a job and the moves between them.

    queued → starting → running → (stopping) → finished     the command was run, or was ended before it could be
       └────────┴──────────────────────┴─────→ failed       it never ran: we could not start it
    any unsettled state ─────────────────────→ lost         we died, and nobody saw how it ended

`finished`, `failed` and `lost` are settled: nothing leads out of them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from stockade.errors import StockadeError


class JobState(enum.StrEnum):
    """Where a job stands (DESIGN, section 2)."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"


# A job that is ended while it is queued or starting goes through `stopping` like any other. `running → failed` is missing on
# purpose: what has run has an outcome.
TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        JobState.QUEUED: frozenset({JobState.STARTING, JobState.STOPPING, JobState.FAILED, JobState.LOST}),
        JobState.STARTING: frozenset({JobState.RUNNING, JobState.STOPPING, JobState.FAILED, JobState.LOST}),
        JobState.RUNNING: frozenset({JobState.STOPPING, JobState.FINISHED, JobState.LOST}),
        JobState.STOPPING: frozenset({JobState.FINISHED, JobState.FAILED, JobState.LOST}),
        JobState.FINISHED: frozenset(),
        JobState.FAILED: frozenset(),
        JobState.LOST: frozenset(),
    }
)

SETTLED: Final = frozenset(state for state, targets in TRANSITIONS.items() if not targets)


class ForbiddenTransition(StockadeError):
    """A job was moved along a way that the table does not have; the caller of the registry is wrong."""


def is_settled(state: JobState) -> bool:
    """True where nothing leads out of `state`."""
    return state in SETTLED


def advance(state: JobState, to: JobState) -> JobState:
    """The state after the move.

    Raises:
        ForbiddenTransition: the table has no such move.
    """
    if to not in TRANSITIONS[state]:
        raise ForbiddenTransition(f"a job cannot go from {state} to {to}")
    return to
