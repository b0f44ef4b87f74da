"""Pages, lines, tails and searches show what slicing the whole text would show (N-R4, N-R5, 1A.11, U-19 to U-21)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.bank.bank import Bank
from stockade.bank.private import Directory
from stockade.bank.search import search
from stockade.bank.streams import MIB, Overflow, Stream
from stockade.bank.windows import StreamReader
from stockade.errors import InvalidRequest
from unit.bank.texts import chunks, cuts, payloads


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    path = tmp_path_factory.mktemp("windows")
    return Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))


def written(directory: Directory, data: bytes, at: list[int] | None = None, *, finished: bool = True) -> StreamReader:
    name = "s" + os.urandom(8).hex()
    stream, writer = Stream.create(directory, name, cap=max(len(data), 1), overflow=Overflow.KILL)
    for chunk in chunks(data, at or []):
        assert writer.write(chunk)
    if finished:
        writer.close()
    return StreamReader(stream)


def close(reader: StreamReader) -> None:
    reader.stream.segments.end_writing()


@settings(deadline=None)
@given(payloads, cuts, st.integers(1, 50))
def test_walking_by_pages_gives_the_whole_text(shared: Directory, data: bytes, at: list[int], limit: int) -> None:
    reader, text = written(shared, data, at), data.decode("utf-8", "replace")
    content, offset, byte = "", 0, 0
    while True:
        page = reader.read_chars(offset, limit)
        assert (page.content, page.offset) == (text[offset : offset + limit], offset)
        assert (page.total_chars, page.byte_offset) == (len(text), byte)
        assert data[page.byte_offset : page.next_byte_offset].decode("utf-8", "replace") == page.content
        content, offset, byte = content + page.content, page.next_offset, page.next_byte_offset
        if not page.has_more:
            break
    assert (content, byte) == (text, len(data))


@settings(deadline=None)
@given(payloads)
def test_a_running_stream_holds_an_incomplete_character_back(shared: Directory, data: bytes) -> None:
    reader = written(shared, data, finished=False)
    text = data.decode("utf-8", "replace")
    page, tail = reader.read_chars(), reader.tail(100)
    assert page.content in (text, text[:-1], text[:-2])
    assert data[: page.next_byte_offset].decode("utf-8", "replace") == page.content
    assert page.content.endswith(tail.content)
    reader.stream.segments.end_writing()
    reader.stream.finish()
    assert reader.read_chars().content == text


@settings(deadline=None)
@given(payloads, st.integers(1, 30))
def test_a_tail_is_the_end_of_the_text(shared: Directory, data: bytes, chars: int) -> None:
    reader, text = written(shared, data), data.decode("utf-8", "replace")
    tail = reader.tail(chars)
    assert tail.content == text[-chars:]
    assert data[tail.byte_offset :].decode("utf-8", "replace") == tail.content
    assert reader.head(chars) == text[:chars]


@settings(deadline=None)
@given(payloads, st.integers(1, 12), st.integers(1, 6))
def test_lines_are_those_between_line_ends(shared: Directory, data: bytes, first: int, count: int) -> None:
    reader = written(shared, data)
    lines = [line for line in re.split(rb"(?<=\n)", data) if line]
    page = reader.read_lines(first, count)
    assert page.content == b"".join(lines[first - 1 : first - 1 + count]).decode("utf-8", "replace")
    assert (page.total_lines, page.has_more) == (len(lines), first - 1 + count < len(lines))
    assert page.count == len(lines[first - 1 : first - 1 + count])


@settings(deadline=None)
@given(payloads, st.sampled_from(["a", "A", "e\n", "漢", "😀", "�", "K", "line", "\0", "i̇", "s"]), st.integers(0, 40), st.booleans())
def test_a_search_finds_what_scanning_the_text_finds(shared: Directory, data: bytes, pattern: str, offset: int, ignore_case: bool) -> None:
    reader, text = written(shared, data), data.decode("utf-8", "replace")
    flags = re.IGNORECASE if ignore_case else 0
    expected = [match.start() for match in re.compile(re.escape(pattern), flags).finditer(text, offset)]
    result = search(reader, pattern, offset=offset, limit=3, ignore_case=ignore_case)
    assert [match.offset for match in result.matches] == expected[:3]
    assert [match.line for match in result.matches] == [text.count("\n", 0, at) + 1 for at in expected[:3]]
    assert (result.total_matches, result.truncated) == (len(expected), len(expected) > 3)
    assert result.next_search_offset == (expected[3] if len(expected) > 3 else None)
    for match in result.matches:
        begin = max(0, match.offset - 120)
        assert (match.snippet_offset, match.snippet) == (begin, text[begin : match.offset + len(pattern) + 120])


@pytest.mark.parametrize("length", [0, 201])
def test_a_search_text_of_no_or_too_many_characters_is_refused(shared: Directory, length: int) -> None:
    with pytest.raises(InvalidRequest, match="1 to 200"):
        search(written(shared, b"text"), "x" * length)


def test_matches_across_blocks_and_budgets_are_found_once(shared: Directory) -> None:
    data = bytearray(b"." * (3 * MIB))
    places = [MIB - 3, 2 * MIB - 1, 2 * MIB + 10, 3 * MIB - 6]
    for place in places:
        data[place : place + 6] = b"needle"
    reader = written(shared, bytes(data))
    whole = search(reader, "NEEDLE")
    assert ([match.offset for match in whole.matches], whole.complete) == (places, True)
    found: list[int] = []
    offset: int | None = 0
    while offset is not None:
        part = search(reader, "needle", offset=offset, budget=700_000)
        found += [match.offset for match in part.matches]
        assert part.complete == (part.next_search_offset is None)
        offset = part.next_search_offset
    assert found == places


@pytest.mark.parametrize(
    ("offset", "limit", "content", "more", "echoed"),
    [(-5, 3, "012", True, (0, 3)), (8, 5, "89", False, (8, 5)), (99, 5, "", False, (99, 5)), (0, -1, "0", True, (0, 1)), (0, 10**9, "0123456789", False, (0, 200_000)), (5, 5, "56789", False, (5, 5))],
)  # fmt: skip
def test_offsets_and_limits_are_clamped(
    shared: Directory, offset: int, limit: int, content: str, more: bool, echoed: tuple[int, int]
) -> None:
    page = written(shared, b"0123456789").read_chars(offset, limit)
    assert (page.content, page.has_more, (page.offset, page.limit)) == (content, more, echoed)
    assert page.total_chars == 10


@pytest.mark.case("N-R5")
def test_three_mebibytes_need_more_than_ten_pages_and_come_back_exactly(shared: Directory) -> None:
    data = "".join(f"{number:08d} zeile\n" for number in range(209_716)).encode()[:3_145_740]
    reader = written(shared, data)
    for limit in (200_000, 137_137):
        parts, offset = [], 0
        while True:
            page = reader.read_chars(offset, limit)
            parts.append(page.content)
            offset += len(page.content)
            if not page.has_more:
                break
        assert len(parts) > 10
        assert "".join(parts).encode() == data


def test_one_line_of_32_mebibytes_is_paged_in_small_reads(shared: Directory) -> None:
    reader = written(shared, "漢".encode() * (32 * MIB // 3) + b"\nlast\n")
    page = reader.read_lines(1, 5, max_bytes=1000)
    assert (page.content, page.cut, page.count, page.total_lines) == ("漢" * 333, True, 1, 2)
    assert reader.read_lines(2, 5).content == "last\n"
    assert reader.read_chars(10_000_000, 4).content == "漢漢漢漢"
    assert search(reader, "last").matches[0].line == 2


@pytest.mark.case("NX-18")
def test_binary_bytes_come_back_exactly(shared: Directory) -> None:
    data = bytes(range(256)) * 5
    reader = written(shared, data)
    first = reader.read_bytes(0, 1000)
    assert first.data + reader.read_bytes(first.next_offset).data == data
    assert (first.has_more, first.total_bytes) == (True, len(data))


def test_what_a_tail_has_dropped_is_said(bank: Bank) -> None:
    account = bank.open_account("job", streams=("out",), cap=100_000, overflow=Overflow.KEEP_TAIL)
    data = "".join(f"{number:06d} é\n" for number in range(100_000)).encode()
    for begin in range(0, len(data), 50_000):
        account.writer("out").write(data[begin : begin + 50_000])
    account.close()
    text = data.decode()
    for reader in (account.reader("out"), Bank(bank.root.path).account("job").reader("out")):
        page = reader.read_chars(0, 30)
        assert page.lossy
        assert page.content == text[page.offset : page.offset + 30]
        assert 0 <= page.byte_offset - (len(data) - 100_000) <= 3
        lines = reader.read_lines(1, 3)
        assert (lines.lossy, lines.first) == (True, text.count("\n", 0, page.offset) + 1)
        assert not reader.read_chars(page.total_chars - 10, 10).lossy
        assert reader.read_lines(99_999, 9).content == text[-18:]
        assert search(reader, "099999").matches[0].line == 100_000


def test_a_reader_beside_the_writer_follows_it(bank: Bank, tmp_path: Path) -> None:
    account = bank.open_account("job", streams=("out",), cap=MIB)
    other = Bank(bank.root.path).account("job").reader("out")
    assert other.read_chars().content == ""
    account.writer("out").write("eins é".encode()[:-1])
    assert other.read_chars().content == "eins "
    account.close()
    assert other.read_chars().content == "eins �"
