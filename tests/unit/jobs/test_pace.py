"""When the memory of a job is looked at next."""

from __future__ import annotations

import pytest

from stockade.jobs.pace import LONGEST, SHORTEST, Pace

LIMIT = 256 << 20


def paced(*held: int, every: float = 0.05, cost: float = 0.0) -> float:
    """The pause after looks that found so much."""
    pace = Pace()
    for number, each in enumerate(held):
        pace.saw(each, LIMIT, at=number * every, cost=cost)
    return pace.pause


def test_a_job_that_does_not_grow_is_left_alone_more_and_more() -> None:
    pauses = [paced(*[1 << 20] * count) for count in range(1, 8)]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] == LONGEST


def test_a_job_that_would_be_at_its_limit_soon_is_looked_at_soon() -> None:
    steady = [10 << 20] * 8
    assert paced(*steady, 60 << 20) < LONGEST / 1.5  # 1000 MiB/s, 196 MiB left
    assert paced(*steady, 200 << 20) == SHORTEST
    assert paced(*steady, 11 << 20) == LONGEST  # 20 MiB/s: far away


@pytest.mark.parametrize(("cost", "pause"), [(0.004, 0.04), (0.5, LONGEST)])
def test_looking_takes_at_most_a_tenth_of_the_time_until_the_longest_pause(cost: float, pause: float) -> None:
    assert paced(10 << 20, 250 << 20, cost=cost) == pytest.approx(pause)


def test_a_job_over_its_limit_or_shrinking_has_a_pause_within_bounds() -> None:
    for held in ((10 << 20, 2 * LIMIT), (2 * LIMIT, 0), (0, 0)):
        assert SHORTEST <= paced(*held) <= LONGEST
