"""Bounded views of a stream: by character, byte and line, and its tail; each costs O(window) wherever it is (N-R4,
N-R5, U-19 to U-21).

Offsets and limits of text are in code points of the stream decoded with replacement; a window never cuts a character.
While the stream is growing, the bytes of an incomplete character at its end are held back; once it is finished they
show as one replacement character.
"""

from __future__ import annotations

from codecs import utf_8_decode
from dataclasses import dataclass
from typing import Final

from stockade.bank.index import STEP, Mark, TextIndex, byte_of_char, first_char_width
from stockade.bank.streams import Extent, Stream

DEFAULT_CHARS: Final = 50_000
MAX_CHARS: Final = 200_000
MAX_BYTES: Final = 1_048_576
MAX_LINES: Final = 10_000
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Page:
    """A window of text; go on at `next_offset` while `has_more`. Offsets are characters, `byte_offset`s are bytes.

    `lossy` says that characters before `offset` which were asked for are gone: `offset` is then where the content
    begins.
    """

    content: str
    offset: int
    limit: int
    total_chars: int
    has_more: bool
    byte_offset: int
    next_byte_offset: int
    total_bytes: int
    lossy: bool = False

    @property
    def next_offset(self) -> int:
        """Where the next page begins."""
        return self.offset + len(self.content)


@dataclass(frozen=True, slots=True)
class BytePage:
    """A window of bytes; go on at `next_offset` while `has_more`; `lossy` as in `Page`."""

    data: bytes
    offset: int
    limit: int
    total_bytes: int
    has_more: bool
    lossy: bool = False

    @property
    def next_offset(self) -> int:
        """Where the next page begins."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class LinePage:
    """Whole lines with their ends, the first of them number `first` (from 1).

    `cut` says that the last line shown was longer than the byte limit; the rest of it is at `next_byte_offset`.
    """

    content: str
    first: int
    count: int
    total_lines: int
    has_more: bool
    byte_offset: int
    next_byte_offset: int
    cut: bool = False
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """The last characters of a stream; `whole` where nothing stands before them."""

    content: str
    byte_offset: int
    total_bytes: int
    whole: bool


def clamp(number: int, low: int, high: int) -> int:
    """`number`, or the end of the range that it is beyond (N-R4)."""
    return max(low, min(number, high))


class StreamReader:
    """Reads one stream, while it grows, after it ended and after a restart; safe in any thread."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def stream(self) -> Stream:
        """The stream that this reads."""
        return self._stream

    @property
    def size(self) -> int:
        """Bytes that are persisted and can be read."""
        return self._stream.extent().size

    def read_chars(self, offset: int = 0, limit: int = DEFAULT_CHARS, *, max_chars: int = MAX_CHARS) -> Page:
        """At most `limit` characters from character `offset`; both are clamped, past the end the page is empty (N-R4)."""
        offset, limit = max(offset, 0), clamp(limit, 1, max_chars)
        page = self._read_chars(offset, limit)
        for _ in range(_ATTEMPTS - 1):
            if not page.lossy:
                break
            # The head may have been dropped between two looks at it; the next look begins behind it.
            page = self._read_chars(offset, limit)
        return page

    def _read_chars(self, offset: int, limit: int) -> Page:
        text = _Text(self._stream)
        begin = text.locate(max(offset, text.first.char))
        end = text.locate(begin.char + limit)
        data = self._stream.pread(begin.byte, end.byte - begin.byte)
        content = data.decode("utf-8", "replace")
        at = begin.char if content else offset
        return Page(
            content=content,
            offset=at,
            limit=limit,
            total_chars=text.end.char,
            has_more=at + limit < text.end.char,
            byte_offset=begin.byte,
            next_byte_offset=begin.byte + len(data),
            total_bytes=text.end.byte,
            lossy=offset < text.first.char or len(data) < end.byte - begin.byte,
        )

    def read_bytes(self, offset: int = 0, limit: int = MAX_BYTES) -> BytePage:
        """At most `limit` bytes (up to 1 MiB) from byte `offset`, exactly as they were written."""
        self._stream.refresh()
        asked, limit = max(offset, 0), clamp(limit, 1, MAX_BYTES)
        extent = self._stream.extent()
        offset = max(asked, extent.start)
        size = max(0, min(limit, extent.total - offset))
        data = self._stream.pread(offset, size)
        lossy = offset > asked or len(data) < size
        return BytePage(data, offset, limit, extent.total, offset + limit < extent.total, lossy)

    def read_lines(self, first: int = 1, count: int = 100, *, max_bytes: int = MAX_BYTES) -> LinePage:
        r"""At most `count` lines from line `first` (from 1) in at most `max_bytes`; only \n ends a line."""
        asked, count, max_bytes = max(first, 1), clamp(count, 1, MAX_LINES), clamp(max_bytes, 4, MAX_BYTES)
        text = _Text(self._stream)
        first = max(asked, text.first.line + 1)
        begin = text.line_start(first)
        end = text.line_start(first + count)
        cut_at = min(end, begin + max_bytes)
        data = self._stream.pread(begin, cut_at - begin)
        if cut_at < end:
            data = _whole_lines(data)
        shown = data.count(b"\n") + (0 if not data or data.endswith(b"\n") else 1)
        follows = begin + len(data)
        return LinePage(
            content=data.decode("utf-8", "replace"),
            first=first,
            count=shown,
            total_lines=text.total_lines,
            has_more=follows < text.end.byte,
            byte_offset=begin,
            next_byte_offset=follows,
            cut=bool(data) and cut_at < end and not data.endswith(b"\n"),
            lossy=first > asked or len(data) == 0 < cut_at - begin,
        )

    def line_of_byte(self, byte: int) -> int:
        """The number (from 1) of the line that byte `byte` is on."""
        mark = self._stream.indexed().mark_of_byte(byte)
        return 1 + mark.line + self._stream.pread(mark.byte, byte - mark.byte).count(b"\n")

    def head(self, chars: int) -> str:
        """The first `chars` characters that are kept; costs O(chars) even where nothing has been counted yet."""
        self._stream.refresh()
        extent = self._stream.extent()
        begin = self._stream.boundary_from(extent.start) if extent.start else 0
        data = self._stream.pread(begin, max(0, min(extent.total - begin, 4 * max(chars, 0) + 8)))
        return _decoded(data, finished=extent.finished and begin + len(data) >= extent.total)[:chars]

    def tail(self, chars: int) -> Tail:
        """The last `chars` characters, from a character boundary (U-21); costs O(chars)."""
        self._stream.refresh()
        extent = self._stream.extent()
        chars = clamp(chars, 1, MAX_CHARS)
        offset = max(extent.start, extent.total - 4 * chars - 8)
        offset = self._stream.boundary_from(offset) if offset else 0
        data = self._stream.pread(offset, max(0, extent.total - offset))
        text = _decoded(data, finished=extent.finished)
        over = len(text) - chars
        if over > 0:
            return Tail(text[over:], offset + byte_of_char(data, over), extent.total, False)
        return Tail(text, offset, extent.total, offset == 0)


def _decoded(data: bytes, *, finished: bool) -> str:
    if finished:
        return data.decode("utf-8", "replace")
    return held_back(data)[0]


def held_back(data: bytes) -> tuple[str, int]:
    """The text of `data` without an incomplete character at its end, and the bytes that it came from."""
    text, used = utf_8_decode(data, "replace", False)
    return text, used


def _whole_lines(data: bytes) -> bytes:
    end = data.rfind(b"\n") + 1
    return data[:end] if end else data[: held_back(data)[1]]


class _Text:
    """What is needed to find places in a stream's text, taken at one moment."""

    def __init__(self, stream: Stream) -> None:
        stream.refresh()
        self._stream = stream
        extent: Extent = stream.extent()
        self._index: TextIndex = stream.indexed()
        totals = self._index.totals()
        finished = extent.finished and totals.bytes == extent.total
        if finished:
            self.end = Mark(totals.bytes, totals.chars + totals.pending_chars, totals.lines)
        else:
            self.end = Mark(totals.bytes - totals.pending, totals.chars, totals.lines)
        self.first = self._first(extent.start)
        self.total_lines = self.end.line
        if self.end.byte and stream.pread(self.end.byte - 1, 1) != b"\n":
            self.total_lines += 1

    def _first(self, start: int) -> Mark:
        mark = self._index.mark_of_byte(start)
        if start == mark.byte:
            return mark
        data = self._stream.pread(mark.byte, start + 3 - mark.byte)
        # `data` begins at a boundary, so the first one at or after `start` is found by decoding up to it.
        text, used = held_back(data[: start - mark.byte])
        while mark.byte + used < start and used < len(data):
            width = first_char_width(data, used)
            text += data[used : used + width].decode("utf-8", "replace")
            used += width
        return Mark(mark.byte + used, mark.char + len(text), mark.line + data[:used].count(b"\n"))

    def locate(self, char: int) -> Mark:
        """The place of character `char`, or of the end where it is beyond."""
        if char >= self.end.char:
            return self.end
        mark = self._index.mark_of_char(char)
        data = self._stream.pread(mark.byte, STEP + 8)
        return Mark(mark.byte + byte_of_char(data, char - mark.char), char, 0)

    def line_start(self, line: int) -> int:
        """The first byte of line `line` (from 1), or of the end where there are fewer; never before what is kept."""
        if line > self.end.line + 1:
            return self.end.byte
        if line <= self.first.line + 1:
            return self.first.byte
        mark = self._index.mark_of_line(line - 1)
        wanted = line - 1 - mark.line
        data = self._stream.pread(mark.byte, STEP + 8)
        position = 0
        for _ in range(wanted):
            position = data.find(b"\n", position) + 1
            if not position:
                return self.end.byte
        return max(mark.byte + position, self.first.byte)
