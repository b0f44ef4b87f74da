"""Reads of a stream for a model: each is one look into the bank, bounded in bytes, that runs on a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stockade.bank.windows import StreamReader, held_back
from stockade.tools.mcp_server import excerpts
from stockade.tools.mcp_server.excerpts import Chunk, Excerpt
from stockade.tools.mcp_server.folding import fold

WHOLE: Final = 1 << 20  # bytes up to which an output is read in one piece
HEAD: Final = 1 << 18  # bytes read of the beginning and of the end of a longer one
TAIL: Final = 3 << 18
SEARCHED: Final = 64 << 20  # bytes that one search looks through


@dataclass(frozen=True, slots=True)
class Window:
    """What is shown of a stream, and how long all of it is. `lost` bytes at its beginning are no longer kept."""

    excerpt: Excerpt
    total_bytes: int
    total_lines: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """Lines that contain a text, as `(number, line)`; go on at line `next_line` where there are more."""

    lines: tuple[tuple[int, str], ...]
    next_line: int | None
    total_lines: int


def since(reader: StreamReader, start: int, limit: int) -> Window:
    """What stands behind byte `start`, its middle left out where it is long."""
    total = _total(reader)
    begin = max(start, reader.stream.extent().start)
    if total - begin <= WHOLE:
        excerpt = excerpts.middle_left_out(_chunk(reader, begin, WHOLE), None, limit)
    else:
        head = _chunk(reader, begin, HEAD)
        excerpt = excerpts.middle_left_out(head, _chunk(reader, total - TAIL, WHOLE), limit)
    return Window(excerpt, total, _lines(reader), begin - start if start < begin else 0)


def onwards(reader: StreamReader, limit: int, *, line: int | None = None, byte: int | None = None) -> Window:
    """As much as fits from a line or a byte on."""
    total = _total(reader)
    first = reader.stream.extent().start  # what stood before it is no longer kept
    start = byte if byte is not None else 0 if line == 1 else reader.read_lines(line or 1, 1).byte_offset
    chunk = _chunk(reader, min(max(start, first), total), WHOLE)
    lines = _lines(reader)
    excerpt = excerpts.page(chunk, limit, total_bytes=total, total_lines=lines)
    return Window(excerpt, total, lines, max(0, chunk.offset - start) if start < first else 0)


def last_lines(reader: StreamReader, lines: int, limit: int) -> Window:
    """The last lines, or as much of their end as fits."""
    total = _total(reader)
    chunk = _chunk(reader, max(reader.stream.extent().start, total - WHOLE), WHOLE)
    return Window(excerpts.ending(chunk, lines, limit), total, _lines(reader))


def containing(reader: StreamReader, text: str, limit: int, *, first: int = 1) -> Found:
    """The lines from `first` on that contain `text` as a reader sees them, whatever the case; as many as fit."""
    wanted = text.casefold()
    found: list[tuple[int, str]] = []
    left, searched, number = limit - excerpts.MARK, 0, first
    while searched < SEARCHED:
        read = reader.read_lines(number, 10_000)
        number = read.first
        for line in read.content.removesuffix("\n").split("\n") if read.content else ():
            shown = fold(line)
            if wanted in shown.casefold():
                shown = _around(shown, wanted)
                left -= len(shown) + 12
                if left < 0:
                    return Found(tuple(found), number, read.total_lines)
                found.append((number, shown))
            number += 1
        if not read.has_more or not read.count:
            return Found(tuple(found), None, read.total_lines)
        if read.cut:  # the rest of a line that is longer than a read; it counts as searched
            number = reader.line_of_byte(read.next_byte_offset) + 1
        searched += read.next_byte_offset - read.byte_offset
    return Found(tuple(found), number, _lines(reader))


LONG: Final = 400  # characters of a found line that are shown


def _around(line: str, wanted: str) -> str:
    if len(line) <= LONG:
        return line
    at = max(0, min(line.casefold().find(wanted), len(line) - 1) - LONG // 2)
    return f"{'…' if at else ''}{line[at : at + LONG]}{'…' if at + LONG < len(line) else ''}"


def _total(reader: StreamReader) -> int:
    """The bytes that may be shown: not the incomplete character at the end of what still grows."""
    reader.stream.refresh()
    extent = reader.stream.extent()
    if extent.finished or not extent.total:
        return extent.total
    tail = reader.read_bytes(max(extent.start, extent.total - 4), 4)
    for skip in range(min(4, len(tail.data))):  # begin at a character
        if tail.data[skip] & 0xC0 != 0x80:
            part = tail.data[skip:]
            return tail.next_offset - len(part) + held_back(part)[1]
    return tail.next_offset


def _chunk(reader: StreamReader, offset: int, size: int) -> Chunk:
    """Up to `size` bytes from `offset`, or from the next character where it is inside one."""
    end = _total(reader)
    if offset:
        offset = min(reader.stream.boundary_from(offset), end)
    read = reader.read_bytes(offset, max(1, min(size, end - offset))) if offset < end else None
    data = b"" if read is None else read.data
    at = offset if read is None else read.offset
    if at + len(data) < end:
        data = data[: held_back(data)[1]]
    begins = at == 0 or reader.read_bytes(at - 1, 1).data in (b"\n", b"")
    return Chunk(data, at, reader.line_of_byte(at), begins)


def _lines(reader: StreamReader) -> int:
    return reader.read_lines(1, 1).total_lines
