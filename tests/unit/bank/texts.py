"""Bytes that are hard to page through, for hypothesis."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

_PIECES = st.sampled_from(
    [
        b"a", b"line\n", b"\n", b"\0", b"\r\n", "é".encode(), "漢".encode(), "😀".encode(), "İ".encode(), "ſ".encode(),
        b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xf0", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"x" * 70,
    ]
)  # fmt: skip

payloads = st.one_of(st.lists(_PIECES, max_size=60).map(b"".join), st.binary(max_size=200))
cuts = st.lists(st.integers(0, 400), max_size=8)


def chunks(data: bytes, at: list[int]) -> list[bytes]:
    """`data` cut at the places `at`."""
    edges = sorted({0, len(data), *(place for place in at if place < len(data))})
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]
