"""Where characters and lines sit in a stream of bytes, so that any page costs O(window) (U-20).

The text of a stream is its bytes decoded as UTF-8 with every invalid sequence replaced, exactly as
`bytes.decode("utf-8", "replace")` does for the whole. A mark is a position at a character boundary; there is one every
`STEP` bytes, in memory and in a sidecar file.
"""

from __future__ import annotations

import codecs
import threading
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

# Small enough that decoding one step is cheap (about 50 us), large enough that the marks are 0.04 % of the bytes.
STEP: Final = 65_536
RECORD: Final = 24
_NARROWING: Final = (4096, 64)
_SAMPLE: Final = 61


class Mark(NamedTuple):
    """A character boundary: how many bytes, characters and line ends come before it."""

    byte: int
    char: int
    line: int


START: Final = Mark(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Totals:
    """What has been counted so far; `pending` bytes (0 to 3) at the end may begin a character that is not complete.

    Where nothing follows them they are `pending_chars` replacement characters.
    """

    bytes: int
    chars: int
    lines: int
    pending: int
    pending_chars: int


def first_char_width(data: bytes, position: int) -> int:
    """Bytes of the character, or of the invalid sequence that one replacement stands for, at `position`, a boundary."""
    head = data[position : position + 4]
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start == 0:
            return error.end
    lead = head[0]
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def boundary_after(data: bytes) -> int:
    """The first offset in `data`, a cut-out of a stream, at which a character begins for certain (0 to 3).

    A byte that continues no character can only stand within the three after a lead byte; any other begins a character.
    """
    for position, byte in enumerate(data[:3]):
        if byte & 0xC0 != 0x80:
            return position
    return min(3, len(data))


def byte_of_char(data: bytes, count: int) -> int:
    """The offset in `data` (which begins at a boundary) after its first `count` characters."""
    if data.isascii():
        return min(count, len(data))
    position = 0
    for size in _NARROWING:
        while True:
            text, used = codecs.utf_8_decode(data[position : position + size], "replace", False)
            if not used or len(text) > count:
                break
            position += used
            count -= len(text)
    while count and position < len(data):
        position += first_char_width(data, position)
        count -= 1
    return position


def _is_plain(view: memoryview) -> bool:
    """True where `view` is known to be ASCII without line ends, for which it must be the whole of what it shows."""
    whole = view.obj
    if not isinstance(whole, (bytes, bytearray)) or len(whole) != view.nbytes:
        return False
    return whole.isascii() and b"\n" not in whole


class TextIndex:
    """Marks and totals of one stream; one thread extends it, any thread asks it."""

    def __init__(self, first: Mark = START) -> None:
        self._lock = threading.Lock()
        self._bytes = array("Q", (first.byte,))
        self._chars = array("Q", (first.char,))
        self._lines = array("Q", (first.line,))
        self._pending = b""
        self._total = first.byte
        self._total_chars = first.char
        self._total_lines = first.line
        # True where the last data was mostly invalid: counting that is some thirty times slower than ASCII.
        self.costly = False

    def extend(self, data: bytes | bytearray | memoryview) -> list[Mark]:
        """Count `data` as what follows in the stream; returns the marks that this made."""
        view = memoryview(data)
        pending, total, chars, lines = self._pending, self._total, self._total_chars, self._total_lines
        last = self._bytes[-1]
        made: list[Mark] = []
        sampled = invalid = 0
        position, size = 0, len(view)
        if not pending and _is_plain(view):
            made = [Mark(byte, chars + byte - total, lines) for byte in range(last + STEP, total + size + 1, STEP)]
            total, chars, position = total + size, chars + size, size
        while position < size:
            block = bytes(view[position : position + last + STEP - total])
            if not pending and block.isascii():
                chars += len(block)
            else:
                joined = pending + block
                text, used = codecs.utf_8_decode(joined, "replace", False)
                chars += len(text)
                pending = joined[used:]
                sample = text[::_SAMPLE]
                sampled, invalid = sampled + len(sample), invalid + sample.count("\ufffd")
            if b"\n" in block:  # Far cheaper than counting where there is none.
                lines += block.count(b"\n")
            total += len(block)
            position += len(block)
            if total - last >= STEP:
                last = total - len(pending)
                made.append(Mark(last, chars, lines))
        if sampled >= _SAMPLE or size >= STEP:
            self.costly = invalid * 16 > sampled
        with self._lock:
            self._pending, self._total, self._total_chars, self._total_lines = pending, total, chars, lines
            for mark in made:
                self._append(mark)
        return made

    def mark_now(self) -> Mark:
        """Make a mark at the last boundary and return it; a segment of the stream begins there."""
        with self._lock:
            mark = Mark(self._total - len(self._pending), self._total_chars, self._total_lines)
            if mark.byte > self._bytes[-1]:
                self._append(mark)
            return mark

    def _append(self, mark: Mark) -> None:
        self._bytes.append(mark.byte)
        self._chars.append(mark.char)
        self._lines.append(mark.line)

    @property
    def pending(self) -> bytes:
        """The bytes at the end that begin a character and do not complete it; for the extending thread."""
        return self._pending

    def totals(self) -> Totals:
        """What has been counted, in one consistent piece."""
        with self._lock:
            pending = self._pending
            return Totals(
                self._total,
                self._total_chars,
                self._total_lines,
                len(pending),
                len(pending.decode("utf-8", "replace")),
            )

    def _mark(self, position: int) -> Mark:
        position = max(position, 0)
        return Mark(self._bytes[position], self._chars[position], self._lines[position])

    def mark_of_char(self, char: int) -> Mark:
        """The last mark at or before character `char`."""
        with self._lock:
            return self._mark(bisect_right(self._chars, max(char, 0)) - 1)

    def mark_of_byte(self, byte: int) -> Mark:
        """The last mark at or before byte `byte`."""
        with self._lock:
            return self._mark(bisect_right(self._bytes, max(byte, 0)) - 1)

    def mark_of_line(self, line: int) -> Mark:
        """The last mark before the line end number `line` (1 is the first)."""
        with self._lock:
            return self._mark(bisect_left(self._lines, max(line, 0)) - 1)

    def first(self) -> Mark:
        """The oldest mark that is still known."""
        with self._lock:
            return self._mark(0)

    def marks(self) -> list[Mark]:
        """All marks, oldest first."""
        with self._lock:
            return list(map(Mark, self._bytes, self._chars, self._lines))

    def forget_before(self, byte: int) -> None:
        """Drop the marks before `byte`, keeping at least the last one."""
        with self._lock:
            cut = min(bisect_left(self._bytes, byte), len(self._bytes) - 1)
            del self._bytes[:cut], self._chars[:cut], self._lines[:cut]

    def restore(self, marks: list[Mark], limit: int) -> None:
        """Take over stored marks as far as they can be true for a stream of `limit` bytes; for a fresh index."""
        with self._lock:
            previous = self._mark(len(self._bytes) - 1)
            for mark in marks:
                if mark == previous:
                    continue
                bytes_, chars, lines = mark.byte - previous.byte, mark.char - previous.char, mark.line - previous.line
                if not (0 < bytes_ <= STEP and 0 < chars <= bytes_ and 0 <= lines <= chars and mark.byte <= limit):
                    break
                self._append(mark)
                previous = mark
            self._total, self._total_chars, self._total_lines = previous


def pack(marks: list[Mark]) -> bytes:
    """The sidecar's records: three unsigned 64-bit numbers in the machine's order for each mark."""
    return array("Q", [number for mark in marks for number in mark]).tobytes()


def unpack(data: bytes) -> list[Mark]:
    """The marks of a sidecar; a record that was cut off at the end is left out."""
    numbers = array("Q")
    numbers.frombytes(data[: len(data) - len(data) % RECORD])
    return list(map(Mark, numbers[0::3], numbers[1::3], numbers[2::3]))
