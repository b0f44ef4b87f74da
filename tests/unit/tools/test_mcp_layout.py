"""What a model is shown of an output: folding, cutting, and the words around it. Pure functions, so tried with anything."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.tools.mcp_server import answers, excerpts
from stockade.tools.mcp_server.excerpts import MARK, Chunk, Excerpt, Gap, ending, middle_left_out, page
from stockade.tools.mcp_server.folding import fold
from stockade.tools.mcp_server.handles import Handles
from stockade.tools.mcp_server.windows import Found, Window

CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")

# Lines of every length and kind: text, wide characters, bytes that are none, and the escapes that terminals act on.
WORDS = st.one_of(
    st.text(max_size=12).map(str.encode),
    st.binary(max_size=12),
    st.sampled_from(
        [b"\x1b[31m", b"\x1b[", b"\x1b]0;title\x07", b"\r", b"\b", b"\xe2\x82", "é€𝄞".encode(), b"x" * 700, "ä".encode() * 900]
    ),
)
OUTPUT = st.lists(st.one_of(WORDS, st.just(b"\n"), st.just(b"\n" * 40)), max_size=60).map(b"".join)
LIMIT = st.integers(1_000, 4_000)


def shown(data: bytes) -> str:
    """All of it, as a reader sees it."""
    return "\n".join(fold(line.decode("utf-8", "replace")) for line in data.removesuffix(b"\n").split(b"\n")) if data else ""


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("plain\ttext", "plain\ttext"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[38;5;196mred\x1b[m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice control\x1b\\text", "text"),
        ("\x1b(Btext\x1b7\x1b8", "text"),
        ("\x9b31mred", "red"),
        ("cut off \x1b[3", "cut off "),
        ("cut off \x1b", "cut off "),
        (" 10%\r 50%\r100%", "100%"),
        ("100%\r", "100%"),
        ("windows\r", "windows"),
        ("100%\r\x1b[K", "100%"),
        ("\r\r", ""),
        ("N\bNA\bAM\bME\bE", "NAME"),
        ("\b\bx", "x"),
        ("bell\x07 nul\x00 del\x7f", "bell nul del"),
    ],
)
def test_a_line_looks_as_on_a_terminal(line: str, folded: str) -> None:
    assert fold(line) == folded


@given(st.text())
def test_folding_leaves_no_control_and_never_adds(line: str) -> None:
    once = fold(line)
    assert CONTROLS.search(once) is None
    assert len(once) <= len(line)
    assert fold(once) == once


def test_folding_takes_time_in_proportion() -> None:
    """Unfinished escapes by the hundred thousand are no reason to look at each character again and again."""
    for unit in ("\x1b]", "\x1b[", "\x1bP", "\x1b[0;0;0;", "a\b", "\r"):
        assert set(fold(unit * 200_000)) <= set("")


@given(OUTPUT, LIMIT)
def test_what_fits_is_shown_whole(data: bytes, limit: int) -> None:
    excerpt = middle_left_out(Chunk(data), None, limit)
    if len(shown(data)) + 1 <= limit:
        assert excerpt == Excerpt(shown(data), None, "", len(data))
    else:
        assert excerpt.gap is not None


def check_cut(data: bytes, excerpt: Excerpt, limit: int) -> None:
    """What is shown, and the gap, are the output: nothing is lost, nothing is shown twice, no character is cut."""
    gap = excerpt.gap
    assert gap is not None
    assert len(excerpt.head) + len(excerpt.tail) + MARK <= limit
    assert 0 <= gap.start < gap.end <= len(data)
    before, after = data[: gap.start], data[gap.end :]
    assert excerpt.head == shown(before)
    assert excerpt.tail == shown(after)
    assert gap.first == before.count(b"\n") + 1
    last = data[: gap.end].count(b"\n") + (0 if data[: gap.end].endswith(b"\n") else 1)
    assert gap.last == max(last, gap.first)
    assert gap.whole == ((not before or before.endswith(b"\n")) and (not after or data[: gap.end].endswith(b"\n")))
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    before.decode()
    after.decode()


@given(OUTPUT, LIMIT)
def test_the_middle_is_left_out_and_named(data: bytes, limit: int) -> None:
    excerpt = middle_left_out(Chunk(data), None, limit)
    assert excerpt.end == len(data)
    if excerpt.gap is not None:
        check_cut(data, excerpt, limit)


@given(OUTPUT, LIMIT, st.data())
def test_what_was_never_read_belongs_to_the_gap(data: bytes, limit: int, draw: st.DataObject) -> None:
    starts = [at for at in range(len(data)) if data[at] & 0xC0 != 0x80] or [0]
    stop, start = sorted((draw.draw(st.sampled_from(starts)), draw.draw(st.sampled_from(starts))))
    head = Chunk(data[:stop])
    tail = Chunk(data[start:], start, data[:start].count(b"\n") + 1, start == 0 or data[start - 1 : start] == b"\n")
    excerpt = middle_left_out(head, tail, limit)
    assert excerpt.end == len(data)
    if excerpt.gap is not None and start > stop:
        check_cut(data, excerpt, limit)


@given(OUTPUT, LIMIT)
def test_reading_on_comes_to_the_end_with_every_byte(data: bytes, limit: int) -> None:
    chunk, at, lines = Chunk(data), 0, data.count(b"\n") + (0 if data.endswith(b"\n") or not data else 1)
    for _ in range(len(data) + 1):
        excerpt = page(chunk.after(at), limit, total_bytes=len(data), total_lines=lines)
        assert len(excerpt.head) <= limit
        assert excerpt.head == shown(data[at : excerpt.end])
        if excerpt.gap is None:
            break
        assert at < excerpt.end == excerpt.gap.start
        assert excerpt.gap.first == data[: excerpt.end].count(b"\n") + 1
        assert excerpt.gap.last == max(lines, excerpt.gap.first)
        at = excerpt.end
    else:
        pytest.fail("never came to the end")
    assert excerpt.end == len(data)


@given(OUTPUT, LIMIT, st.integers(1, 50))
def test_the_last_lines(data: bytes, limit: int, lines: int) -> None:
    excerpt = ending(Chunk(data), lines, limit)
    start = 0 if excerpt.gap is None else excerpt.gap.end
    assert (excerpt.head or excerpt.tail) == shown(data[start:])
    assert len(excerpt.head or excerpt.tail) <= limit
    assert (excerpt.head or excerpt.tail).count("\n") < lines


def test_the_tail_is_the_larger_part() -> None:
    data = b"".join(b"line %d\n" % number for number in range(1, 20_001))
    excerpt = middle_left_out(Chunk(data), None, 30_000)
    assert excerpt.gap is not None
    assert 0.25 < len(excerpt.head) / 30_000 <= 0.3
    assert 0.65 < len(excerpt.tail) / 30_000 <= 0.7


def test_lines_that_are_left_out_are_named_with_the_call_that_reads_them() -> None:
    window = Window(Excerpt("a", Gap(7_000, 210_000, 601, 19_042, True), "z", 220_000), 220_000, 20_000)
    assert answers.output(window, "b7k2") == (
        'a\n[… 18,442 of 20,000 lines, 203,000 bytes omitted (lines 601–19,042); read on: bash_output(id="b7k2", from_line=601)]\nz'
    )


def test_a_giant_line_is_left_out_by_bytes() -> None:
    window = Window(Excerpt("a", Gap(9_000, 104_000, 1, 1, False), "z", 120_000), 120_000, 1)
    assert answers.output(window, "b7k2") == (
        'a\n[… 95,000 of 120,000 bytes omitted (from byte 9,000 in line 1); read on: bash_output(id="b7k2", from_byte=9000)]\nz'
    )


@given(st.integers(0, 10**15), st.integers(1, 10**15), st.integers(1, 10**12), st.integers(0, 10**12), st.booleans())
def test_the_mark_fits_into_its_room(start: int, size: int, first: int, more: int, whole: bool) -> None:
    gap = Gap(start, start + size, first, first + more, whole)
    assert len(answers.left_out(gap, Window(Excerpt("", gap, "", 0), 10**15, 10**12), "b7k29")) < MARK


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.004, "0.00 s"), (1.236, "1.24 s"), (14.2, "14 s"), (119.4, "119 s"), (185, "3 min 5 s"), (7_800, "2 h 10 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert answers.duration(seconds) == text


def test_found_lines_have_their_numbers_and_the_way_on() -> None:
    assert answers.found(Found(((3, "error: x"), (9, "Error")), None, 12), "error", "b7k2") == "3: error: x\n9: Error"
    assert answers.found(Found(((3, "x"),), 40, 99), 'a "b"', "b7k2").endswith('bash_output(id="b7k2", grep="a \\"b\\"", from_line=40)]')
    assert answers.found(Found((), None, 12), "x", "b7k2") == "(no line contains 'x'; 12 lines were searched)"


def test_short_ids_are_told_apart_and_stay() -> None:
    handles = Handles()
    assert handles.add("b7k2aaaa") == "b7k2"
    assert handles.add("b7k2abbb") == "b7k2a"
    assert handles.add("b7k2aaaa") == "b7k2"
    assert (handles.job("b7k2"), handles.job("b7k2a"), handles.job("b7k2aaaa")) == ("b7k2aaaa", "b7k2abbb", "b7k2aaaa")
    assert handles.job("b7k") is None
    again = Handles()
    again.recall(["b7k2aaaa", "b7k2abbb"])
    assert again.job("b7k2a") == "b7k2abbb"


def test_the_marks_room_is_part_of_the_smallest_budget() -> None:
    assert excerpts.MARK < 1_000 * excerpts.HEAD_SHARE
