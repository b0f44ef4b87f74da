"""Retention removes the oldest first and never what is needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stockade.bank.retention import Kept, Retention, select


def kept(identifier: str, ended_at: float, size: int = 10, *, pinned: bool = False) -> Kept:
    return Kept(identifier, "job", ended_at, size, pinned)


ITEMS = [kept("a", 10), kept("b", 20, pinned=True), kept("c", 30), kept("d", 40, 100)]


def ids(retention: Retention, now: float = 50) -> str:
    return "".join(item.id for item in select(ITEMS, retention, now=now))


def test_each_limit_alone() -> None:
    assert ids(Retention()) == ""
    assert ids(Retention(max_age=25)) == "a"
    assert ids(Retention(max_age=0)) == "acd"
    assert ids(Retention(max_count=3)) == "a"
    assert ids(Retention(max_count=0)) == "acd"
    assert ids(Retention(max_bytes=120)) == "a"
    assert ids(Retention(max_bytes=30)) == "d"


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50), st.booleans()), max_size=12),
    st.one_of(st.none(), st.integers(0, 100)),
    st.one_of(st.none(), st.integers(0, 10)),
    st.one_of(st.none(), st.integers(0, 200)),
)
def test_what_is_left_is_within_the_limits_or_pinned(
    rows: list[tuple[int, int, bool]], age: int | None, count: int | None, size: int | None
) -> None:
    items = [kept(f"{number}", ended, bytes_, pinned=pinned) for number, (ended, bytes_, pinned) in enumerate(rows)]
    removed = select(items, Retention(age, count, size), now=100)
    left = [item for item in items if item not in removed]
    assert not any(item.pinned for item in removed)
    free = [item for item in left if not item.pinned]
    assert all(age is None or 100 - item.ended_at <= age for item in free)
    if free:
        assert count is None or len(left) <= count
        assert size is None or sum(item.size for item in left) <= size
