"""Every pair of states, by the picture in DESIGN section 2; and the first cause."""

from __future__ import annotations

import itertools

import pytest

from stockade.jobs.states import SETTLED, ForbiddenTransition, JobState, advance, is_settled

ALLOWED = {
    ("queued", "starting"),
    ("queued", "stopping"),
    ("queued", "failed"),
    ("queued", "lost"),
    ("starting", "running"),
    ("starting", "stopping"),
    ("starting", "failed"),
    ("starting", "lost"),
    ("running", "stopping"),
    ("running", "finished"),
    ("running", "lost"),
    ("stopping", "finished"),
    ("stopping", "failed"),
    ("stopping", "lost"),
}


@pytest.mark.parametrize(("state", "to"), [*itertools.product(JobState, JobState)])
def test_every_pair_is_allowed_or_forbidden_as_the_picture_says(state: JobState, to: JobState) -> None:
    if (str(state), str(to)) in ALLOWED:
        assert advance(state, to) is to
    else:
        with pytest.raises(ForbiddenTransition, match=f"from {state} to {to}"):
            advance(state, to)


def test_the_settled_states_are_those_without_a_way_out() -> None:
    assert {JobState.FINISHED, JobState.FAILED, JobState.LOST} == SETTLED
    assert [state for state in JobState if is_settled(state)] == [JobState.FINISHED, JobState.FAILED, JobState.LOST]
