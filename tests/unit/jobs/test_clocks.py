"""Time with and without that in which a job was frozen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some

from stockade.jobs.budget import Budget
from stockade.jobs.clocks import JobClock
from stockade.policy.model import Limits

RELAXED = settings(deadline=None)  # a busy machine


def test_frozen_time_is_what_lies_between_freeze_and_thaw() -> None:
    clock = JobClock()
    clock.freeze(10.0)
    assert clock.is_frozen
    clock.freeze(12.0)
    assert clock.frozen_seconds(5.0, 13.0) == 3.0
    clock.thaw(14.0)
    clock.thaw(15.0)
    assert not clock.is_frozen
    assert (clock.frozen_seconds(0.0, 100.0), clock.frozen_seconds(11.0, 12.0), clock.frozen_seconds(14.0, 20.0)) == (4.0, 1.0, 0.0)


@RELAXED
@given(some.lists(some.integers(0, 1000), unique=True).map(sorted), some.integers(0, 1000), some.integers(0, 1000), some.integers(0, 1000))
def test_the_parts_of_a_time_add_up_and_none_is_longer_than_itself(turns: list[int], begin: int, middle: int, end: int) -> None:
    begin, middle, end = sorted((begin, middle, end))
    clock = JobClock()
    for number, moment in enumerate(turn for turn in turns if turn <= end):
        (clock.thaw if number % 2 else clock.freeze)(moment)
    whole = clock.frozen_seconds(begin, end)
    assert 0 <= whole <= end - begin
    assert whole == clock.frozen_seconds(begin, middle) + clock.frozen_seconds(middle, end)


async def test_limits_say_whether_frozen_time_counts() -> None:
    for counts, passed in ((True, 10.0), (False, 6.0)):
        budget = Budget(Limits(count_frozen=counts), frozenset())
        budget.set_frozen(3.0, frozen=True)
        budget.set_frozen(7.0, frozen=False)
        assert budget.passed(0.0, 10.0) == passed
        assert budget.changed.is_set()
