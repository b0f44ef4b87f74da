"""Which part of an output is shown, within a budget of characters: whole lines where lines are short, and always whole characters.

Pure functions on bytes that have been read. What is left out is said as a `Gap`, so that the reader can ask for exactly that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from stockade.tools.mcp_server.folding import fold

HEAD_SHARE: Final = 0.3  # of the budget; errors stand at the end, so the tail gets the rest
MARK: Final = 200  # characters kept back for the line that says what is left out


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive bytes of a stream: `data` begins at byte `offset`, which is on line `line` (from 1)."""

    data: bytes
    offset: int = 0
    line: int = 1
    begins_line: bool = True

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + len(self.data)

    def after(self, byte: int) -> Chunk:
        """What stands behind byte offset `byte`."""
        skipped = self.data[: max(0, byte - self.offset)]
        if not skipped:
            return self
        return Chunk(self.data[len(skipped) :], self.offset + len(skipped), self.line + skipped.count(b"\n"), skipped.endswith(b"\n"))


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes `start` to `end` (exclusive) that are not shown; `whole` where they are the lines `first` to `last`."""

    start: int
    end: int
    first: int
    last: int
    whole: bool

    @property
    def lines(self) -> int:
        """How many lines it touches."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown: `head`, then what `gap` leaves out, then `tail`. `end` is the byte after the last one that was looked at."""

    head: str
    gap: Gap | None
    tail: str
    end: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A line, or a part of one."""

    raw: bytes
    start: int
    line: int
    begins_line: bool

    @property
    def end(self) -> int:
        return self.start + len(self.raw)

    @property
    def shown(self) -> str:
        return fold(self.raw.removesuffix(b"\n").decode("utf-8", "replace"))


def middle_left_out(head: Chunk, tail: Chunk | None, limit: int) -> Excerpt:
    """Beginning and end of an output, the middle left out where it is longer than `limit` characters.

    `tail` is None where `head` is all of it; else what lies between the two has not been read.
    """
    end = head.end if tail is None else tail.end
    if tail is None and (pieces := _within(_forwards(head), limit)) is not None:
        return Excerpt(_joined(pieces), None, "", end)
    room = limit - MARK
    top = _taken(_forwards(head), int(room * HEAD_SHARE), from_end=False)
    stop = top[-1].end if top else head.offset
    rest = head.after(stop) if tail is None else tail
    bottom = _taken(_backwards(rest), room - _cost(top), from_end=True)[::-1]
    start = bottom[0].start if bottom else end
    if start <= stop:  # what was read apart turned out to be all of it
        return Excerpt(_joined([*top, *bottom]), None, "", end)
    begins = top[-1].raw.endswith(b"\n") if top else head.begins_line
    first = head.after(stop).line
    if bottom:
        whole = begins and bottom[0].begins_line
        last = bottom[0].line - (1 if bottom[0].begins_line else 0)
    else:
        whole, last = begins, rest.line + rest.data.count(b"\n") - (1 if rest.data.endswith(b"\n") else 0)
    return Excerpt(_joined(top), Gap(stop, start, first, max(first, last), whole), _joined(bottom), end)


def page(chunk: Chunk, limit: int, *, total_bytes: int, total_lines: int) -> Excerpt:
    """As much as fits from the beginning of `chunk`, of an output of so many bytes and lines."""
    is_last = chunk.end >= total_bytes
    pieces = _within(_forwards(chunk), limit)
    if pieces is None or not is_last:
        pieces = _taken(_forwards(chunk), limit - MARK, from_end=False)
    stop = pieces[-1].end if pieces else chunk.offset
    if stop >= total_bytes:
        return Excerpt(_joined(pieces), None, "", stop)
    rest = chunk.after(stop)
    return Excerpt(_joined(pieces), Gap(stop, total_bytes, rest.line, max(rest.line, total_lines), rest.begins_line), "", stop)


def ending(chunk: Chunk, lines: int, limit: int) -> Excerpt:
    """The last `lines` lines of `chunk`, or as much of their end as fits."""
    wanted: list[_Piece] = []
    for piece in _backwards(chunk):
        if len(wanted) == lines:
            break
        wanted.append(piece)
    bottom = _taken(wanted, limit - MARK, from_end=True)[::-1]
    start = bottom[0].start if bottom else chunk.end
    if start == 0:
        return Excerpt(_joined(bottom), None, "", chunk.end)
    line, whole = (bottom[0].line, bottom[0].begins_line) if bottom else (chunk.line, chunk.begins_line)
    return Excerpt("", Gap(0, start, 1, max(1, line - (1 if whole else 0)), whole), _joined(bottom), chunk.end)


def _forwards(chunk: Chunk) -> Iterator[_Piece]:
    data, at, line, begins = chunk.data, 0, chunk.line, chunk.begins_line
    while at < len(data):
        stop = data.find(b"\n", at) + 1 or len(data)
        yield _Piece(data[at:stop], chunk.offset + at, line, begins)
        at, line, begins = stop, line + 1, True


def _backwards(chunk: Chunk) -> Iterator[_Piece]:
    data, stop = chunk.data, len(chunk.data)
    line = chunk.line + data.count(b"\n") - (1 if data.endswith(b"\n") else 0)
    while stop:
        at = data.rfind(b"\n", 0, stop - 1) + 1
        yield _Piece(data[at:stop], chunk.offset + at, line, chunk.begins_line if at == 0 else True)
        stop, line = at, line - 1


def _within(pieces: Iterable[_Piece], limit: int) -> list[_Piece] | None:
    """All of them, or None where they are longer than `limit`."""
    taken: list[_Piece] = []
    left = limit
    for piece in pieces:
        left -= len(piece.shown) + 1
        if left < 0:
            return None
        taken.append(piece)
    return taken


def _taken(pieces: Iterable[_Piece], room: int, *, from_end: bool) -> list[_Piece]:
    """As many as fit into `room`; a part of the next one where they would leave most of it empty."""
    taken: list[_Piece] = []
    left = room
    for piece in pieces:
        cost = len(piece.shown) + 1
        if cost <= left:
            taken.append(piece)
            left -= cost
            continue
        if left > room // 2 and (part := _part(piece, left - 1, from_end=from_end)) is not None:
            taken.append(part)
        break
    return taken


def _part(piece: _Piece, size: int, *, from_end: bool) -> _Piece | None:
    """At most `size` bytes of a line's beginning or end, cut between characters."""
    raw = piece.raw
    if from_end:
        at = max(0, len(raw) - size)
        # A character has at most three bytes that continue it; four in a row are no UTF-8 anyway.
        at += next((step for step in range(4) if at + step >= len(raw) or not _continues(raw[at + step])), 0)
        return _Piece(raw[at:], piece.start + at, piece.line, begins_line=False) if at < len(raw) else None
    stop = min(size, len(raw))
    for back in range(4):
        if stop - back <= 0:
            return None
        if stop - back == len(raw) or not _continues(raw[stop - back]):
            return _Piece(raw[: stop - back], piece.start, piece.line, piece.begins_line)
    return _Piece(raw[:stop], piece.start, piece.line, piece.begins_line)  # no UTF-8 anyway


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _cost(pieces: Iterable[_Piece]) -> int:
    return sum(len(piece.shown) + 1 for piece in pieces)


def _joined(pieces: Iterable[_Piece]) -> str:
    return "\n".join(piece.shown for piece in pieces)
