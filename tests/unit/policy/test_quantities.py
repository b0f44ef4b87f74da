from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policy.quantities import (
    QuantityError,
    bounded,
    format_bytes,
    format_cpus,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_cpus,
    parse_seconds,
)

PARSERS = [parse_bytes, parse_seconds, parse_cpus, parse_count]

GARBAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300, max_value=10**5000),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.text(alphabet="0123456789.KMGiBsmhd eE+-_٣\n"),
    st.characters(categories=["Cs"]),
    st.binary(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.integers()),
    st.builds(object),
)


@pytest.mark.parametrize("parse", PARSERS)
@given(value=GARBAGE)
def test_garbage_raises_nothing_but_the_typed_error(parse, value):
    try:
        number = parse(value)
    except QuantityError:
        return
    assert isinstance(number, int) or math.isfinite(number)


@given(st.integers(min_value=0, max_value=1 << 62))
def test_a_size_is_read_back_from_its_own_text(count):
    assert parse_bytes(format_bytes(count)) == count


@given(st.floats(min_value=1e-6, max_value=1e18))
def test_a_duration_is_read_back_from_its_own_text(seconds):
    assert parse_seconds(format_seconds(seconds)) == seconds


@given(st.floats(min_value=0.01, max_value=8192))
def test_a_share_is_read_back_from_its_own_text(cpus):
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (536870912, 536870912),
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        ("512 MiB", 512 << 20),
        ("1g", 1 << 30),
        ("64K", 64 << 10),
        ("1.5G", 3 << 29),
        ("100B", 100),
    ],
)
def test_sizes(value, count):
    assert parse_bytes(value) == count


@pytest.mark.parametrize(
    ("value", "seconds"), [(90, 90.0), (0.25, 0.25), ("90s", 90.0), ("5m", 300.0), ("5min", 300.0), ("250ms", 0.25), ("1.5h", 5400.0)]
)
def test_durations(value, seconds):
    assert parse_seconds(value) == seconds


@pytest.mark.parametrize(("value", "cpus"), [(0.5, 0.5), ("0.5", 0.5), (2, 2.0), ("2", 2.0)])
def test_shares(value, cpus):
    assert parse_cpus(value) == cpus


@pytest.mark.parametrize(
    ("parse", "value", "way_out"),
    [
        (parse_bytes, "512", "write '512M'"),
        (parse_bytes, "512MB", "write '512M' or '512MiB'"),
        (parse_bytes, "512X", "'512M'"),
        (parse_bytes, "-1M", "'512M'"),
        (parse_bytes, "1e9", "'512M'"),
        (parse_bytes, "0.3B", "whole number"),
        (parse_bytes, 1.0, "whole number"),
        (parse_bytes, True, "whole number"),
        (parse_bytes, "٣M", "'512M'"),
        (parse_bytes, "512M\n", "'512M'"),
        (parse_seconds, "90", "write '90s'"),
        (parse_seconds, "5 minutes", "'5m'"),
        (parse_seconds, math.nan, "not a finite number"),
        (parse_seconds, math.inf, "not a finite number"),
        (parse_seconds, False, "give seconds"),
        (parse_seconds, 10**400, "give seconds"),
        (parse_cpus, "0.5 cpu", "write 0.5"),
        (parse_cpus, "500m", "write 0.5"),
        (parse_cpus, "half", "such as 0.5"),
        (parse_cpus, math.nan, "such as 0.5"),
        (parse_count, "5", "without quotes"),
        (parse_count, 5.0, "whole number"),
        (parse_count, True, "whole number"),
    ],
)
def test_what_is_refused_names_what_would_be_right(parse, value, way_out):
    with pytest.raises(QuantityError) as caught:
        parse(value)
    assert way_out in str(caught.value)


def test_a_bounded_value_names_its_range():
    check = bounded(parse_bytes, format_bytes, 1 << 20, 1 << 30, optional=True)
    assert check(None) is None
    assert check("none") is None
    assert check("1M") == 1 << 20
    with pytest.raises(QuantityError, match="0 is out of range: give 1M to 1G, or None for no limit"):
        check(0)


def test_a_value_that_must_be_bounded_refuses_none():
    with pytest.raises(QuantityError, match="cannot be unlimited: give 1B to 1G"):
        bounded(parse_bytes, format_bytes, 1, 1 << 30)(None)
