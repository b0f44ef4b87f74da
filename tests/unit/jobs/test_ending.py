"""Which cause decides: the first, unless the command had ended by itself; a loss is never too late (U-25)."""

from __future__ import annotations

import pytest

from stockade.jobs.ending import Ending
from stockade.launcher.outcome import Aborted, Killed, Outcome, OutOfMemory, OutputLimited, TimedOut

REQUESTS: list[Outcome] = [Killed("caller", "SIGTERM by the caller"), Killed("shutdown", "closed"), TimedOut("wall", 1.0), Aborted()]
LOSSES: list[Outcome] = [OutputLimited("stdout", 5), Killed("sink", "stdout sink failed"), OutOfMemory(limit=5)]


@pytest.mark.parametrize("later", [*REQUESTS, *LOSSES])
async def test_the_first_cause_decides_and_later_ones_are_notes(later: Outcome) -> None:
    ending = Ending()
    assert ending.ask(REQUESTS[0])
    assert not ending.ask(later)
    await ending.asked.wait()
    assert ending.cause == REQUESTS[0]
    assert ending.notes == [f"too late to count: {later.sentence()}"]


@pytest.mark.parametrize("cause", REQUESTS)
async def test_nobody_ends_what_has_ended_by_itself(cause: Outcome) -> None:
    closed, asked = Ending(), Ending()
    closed.close()
    assert not closed.ask(cause)
    asked.ask(cause)
    asked.close()
    asked.withdraw()
    for ending in (closed, asked):
        assert ending.cause is None
        assert ending.notes == [f"too late to count: {cause.sentence()}"]


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_loss_counts_after_the_end_too(loss: Outcome) -> None:
    """The bytes may have been in the pipe when the command ended; an exit code 0 would hide that they are missing."""
    late, early = Ending(), Ending()
    late.close()
    assert late.ask(loss)
    early.ask(loss)
    early.close()
    early.withdraw()
    assert (late.cause, early.cause) == (loss, loss)
    assert (late.notes, early.notes) == ([], [])


async def test_a_loss_takes_the_place_of_a_cause_that_was_too_late() -> None:
    ending = Ending()
    ending.ask(REQUESTS[0])
    ending.close()
    ending.withdraw()
    assert ending.ask(LOSSES[0])
    assert ending.cause == LOSSES[0]
