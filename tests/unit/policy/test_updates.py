"""Limits of a job that runs: only tighter, or up to what the executor's policy grants to its own host."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.errors import InvalidRequest, NotAllowed, PolicyError
from stockade.policy.model import Limits, Policy
from stockade.policy.narrowing import LIMIT_ORDERS
from stockade.policy.updates import FIXED, described, updated_limits

CHANGEABLE = {
    "wall_time": st.sampled_from([None, 1.0, 5.0, 60.0]),
    "cpu_time": st.sampled_from([None, 1.0, 5.0]),
    "idle_time": st.sampled_from([None, 1.0, 5.0]),
    "count_frozen": st.booleans(),
    "grace": st.sampled_from([0.1, 5.0, 10.0]),
    "memory": st.sampled_from([None, 1 << 24, 1 << 28]),
    "memory_high": st.sampled_from([None, 1 << 24, 1 << 28]),
    "memory_oom_group": st.booleans(),
    "processes": st.sampled_from([1, 20, 300]),
    "cpus": st.sampled_from([None, 0.5, 2.0]),
    "cpu_weight": st.sampled_from([None, 50, 100, 200]),
    "cpuset": st.sampled_from([None, "0", "0-1", "1"]),
    "io": st.sampled_from([(), ("8:0 rbps=10",), ("8:0 rbps=20",), ("8:0 rbps=10 wbps=5",)]),
    "output": st.sampled_from([1, 1 << 20]),
}
CHANGES = st.fixed_dictionaries({}, optional=CHANGEABLE)
LIMITS = CHANGES.map(lambda fields: Limits(**fields))

RELAXED = settings(deadline=None)  # a busy machine


def accepted(current: Limits, changes: dict[str, Any], granted: Limits | None) -> Limits | None:
    try:
        return updated_limits(current, changes, granted)
    except InvalidRequest:
        return None


@RELAXED
@given(LIMITS, CHANGES, st.none() | LIMITS)
def test_an_update_is_refused_or_each_limit_is_within_what_held_or_what_is_granted(
    current: Limits, changes: dict[str, Any], granted: Limits | None
) -> None:
    new = accepted(current, changes, granted)
    if new is None:
        return
    for name in Limits.model_fields:
        value, order = getattr(new, name), LIMIT_ORDERS[name]
        if name not in changes:
            assert value == getattr(current, name)
        else:
            assert order.within(value, getattr(current, name)) or (granted is not None and order.within(value, getattr(granted, name)))


@RELAXED
@given(LIMITS, st.lists(CHANGES, max_size=4))
def test_without_a_grant_an_update_is_what_narrowing_lets_through(first: Limits, several: list[dict[str, Any]]) -> None:
    """And so no chain of updates leads out of where it began."""
    policy, current = Policy(limits=first), first
    for changes in several:
        new = accepted(current, changes, None)
        try:
            narrowed = Policy(limits=current).narrow(limits=changes).limits if changes else None
        except NotAllowed:
            narrowed = None
        assert new == narrowed
        current = new or current
    assert policy.narrow(limits={name: getattr(current, name) for name in Limits.model_fields}).limits == current


@RELAXED
@given(LIMITS, LIMITS)
def test_the_host_gets_back_to_its_own_policy_and_nobody_else_does(current: Limits, policy: Limits) -> None:
    whole = {name: getattr(policy, name) for name in CHANGEABLE}
    assert accepted(current, whole, policy) == policy


def test_what_is_refused_names_field_value_and_what_would_be_right() -> None:
    limits = Limits(memory="256M")
    with pytest.raises(NotAllowed, match=r"memory: 1G is wider than 256M.*\n.*at most 256M") as widened:
        updated_limits(limits, {"memory": "1G"}, None)
    with pytest.raises(NotAllowed, match="at most 512M"):
        updated_limits(limits, {"memory": "1G"}, Limits())
    with pytest.raises(PolicyError, match="write '512M'"):
        updated_limits(limits, {"memory": "512"}, None)
    with pytest.raises(PolicyError, match="did you mean 'memory'"):
        updated_limits(limits, {"memroy": "1M"}, None)
    with pytest.raises(InvalidRequest, match="no limit is given"):
        updated_limits(limits, {}, None)
    assert widened.value.field == "memory"


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_a_sandbox_is_built_with_cannot_be_changed(name: str) -> None:
    with pytest.raises(InvalidRequest, match="while the job runs") as refused:
        updated_limits(Limits(), {name: 8192}, Limits())
    assert refused.value.field == name


def test_every_limit_is_fixed_or_tried_here() -> None:
    assert set(Limits.model_fields) == FIXED | set(CHANGEABLE)


def test_a_change_is_told_as_a_policy_file_would_have_it() -> None:
    told = described(Limits(cpus=None), Limits(memory="100M", wall_time=5, cpus=0.5, io=("8:0 rbps=1",)))
    assert told == "wall_time 120s → 5s, memory 512M → 100M, cpus none → 0.5, io none → 8:0 rbps=1"
