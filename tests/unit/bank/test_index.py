"""The index agrees with decoding the whole, wherever the stream is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.bank import index as index_module
from stockade.bank.index import Mark, TextIndex, boundary_after, byte_of_char, pack, unpack
from unit.bank.texts import chunks, cuts, payloads


@given(payloads, cuts)
def test_totals_do_not_depend_on_where_the_stream_is_cut(data: bytes, at: list[int]) -> None:
    index = TextIndex()
    for chunk in chunks(data, at):
        index.extend(chunk)
    totals = index.totals()
    whole = data.decode("utf-8", "replace")
    assert totals.bytes == len(data)
    assert totals.lines == data.count(b"\n")
    assert totals.chars + totals.pending_chars == len(whole)


@given(payloads)
def test_the_offset_of_every_character_is_where_its_bytes_begin(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    offsets = [byte_of_char(data, count) for count in range(len(text) + 1)]
    assert offsets[0] == 0
    assert offsets[-1] == len(data)
    assert [data[a:b].decode("utf-8", "replace") for a, b in itertools.pairwise(offsets)] == list(text)


@given(payloads, st.integers(0, 400))
def test_a_boundary_found_in_a_cut_out_is_one_of_the_whole(data: bytes, at: int) -> None:
    at = min(at, len(data))
    found = at + boundary_after(data[at:])
    assert found - at <= 3
    assert data[:found].decode("utf-8", "replace") + data[found:].decode("utf-8", "replace") == data.decode("utf-8", "replace")


@pytest.mark.parametrize("shift", range(5))
def test_marks_stand_at_character_boundaries_with_true_counts(shift: int) -> None:
    data = b"a" * shift + "漢\n😀é".encode() * 40_000
    index = TextIndex()
    marks = index.extend(data)
    assert len(marks) == len(data) // index_module.STEP
    for mark in marks:
        head = data[: mark.byte].decode("utf-8")
        assert (mark.char, mark.line) == (len(head), head.count("\n"))
    assert index.mark_of_char(marks[2].char) == marks[2]
    assert index.mark_of_byte(marks[2].byte - 1) == marks[1]
    assert index.mark_of_line(marks[2].line).line < marks[2].line


def test_stored_marks_survive_and_a_torn_record_is_left_out() -> None:
    marks = TextIndex().extend(bytes(5 * index_module.STEP))
    stored = pack(marks)
    assert unpack(stored) == marks
    assert unpack(stored[:-1]) == marks[:-1]


@pytest.mark.parametrize("bad", [Mark(1, 2, 0), Mark(65_537, 10, 0), Mark(10, 5, 6), Mark(0, 0, 0), Mark(60_000, 100, 3)], ids=str)
def test_marks_that_cannot_be_true_are_not_believed(bad: Mark) -> None:
    index = TextIndex()
    index.restore([Mark(50_000, 50_000, 4), Mark(50_000 + bad.byte, 50_000 + bad.char, 4 + bad.line)], 100_000)
    assert index.totals().bytes == 50_000
