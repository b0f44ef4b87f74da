"""Incremental reading: each reader has a cursor that never delivers twice, never loses, never splits a character
(U-19).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from stockade.bank.index import byte_of_char
from stockade.bank.streams import Stream
from stockade.bank.windows import DEFAULT_CHARS, MAX_CHARS, clamp, held_back

SHARED: Final = ""


@dataclass(frozen=True, slots=True)
class Increment:
    """What came since the last read: text from `byte_offset` to `next_byte_offset`.

    `lossy` says that `lost_bytes` before it are gone (the tail alone is kept, or the file was removed). `has_more` says
    that the limit cut this short; `finished` that nothing will ever follow.
    """

    content: str
    byte_offset: int
    next_byte_offset: int
    has_more: bool
    finished: bool
    lossy: bool = False
    lost_bytes: int = 0


class Cursor:
    """One reader's place in one stream; concurrent reads take turns."""

    def __init__(self, stream: Stream, position: int = 0) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._position = position

    @property
    def position(self) -> int:
        """The byte up to which everything has been delivered; a cursor can be resumed from it."""
        return self._position

    def read(self, limit: int = DEFAULT_CHARS) -> Increment:
        """The next text, at most `limit` characters (1 to 200 000); an incomplete character waits for its rest."""
        limit = clamp(limit, 1, MAX_CHARS)
        with self._lock:
            self._stream.refresh()
            extent = self._stream.extent()
            begin = self._position
            if begin < extent.start:
                begin = self._stream.boundary_from(extent.start)
            size = max(0, min(4 * limit + 8, extent.total - begin))
            data = self._stream.pread(begin, size)
            if len(data) < size:
                return self._missing(begin, data, extent.total)
            lost = begin - self._position
            at_end = extent.finished and begin + len(data) >= extent.total
            text, used = (data.decode("utf-8", "replace"), len(data)) if at_end else held_back(data)
            if len(text) > limit:
                used = byte_of_char(data, limit)
                text = text[:limit]
            self._position = begin + used
            return Increment(
                content=text,
                byte_offset=begin,
                next_byte_offset=self._position,
                has_more=len(text) == limit and self._position < extent.total,
                finished=extent.finished and self._position >= extent.total,
                lossy=lost > 0,
                lost_bytes=lost,
            )

    def _missing(self, begin: int, data: bytes, total: int) -> Increment:
        # The files are gone, or their head went while we looked. What is left is not lost for the next read.
        extent = self._stream.extent()
        if extent.start > begin:
            return Increment("", self._position, self._position, True, False)
        text = data.decode("utf-8", "replace")
        lost = total - begin - len(data)
        self._position = total
        return Increment(text, begin, total, False, extent.finished, lossy=True, lost_bytes=lost)


class Cursors:
    """The cursors of one stream by reader token; the default token is one cursor that all share."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._cursors: dict[str, Cursor] = {}

    def cursor(self, token: str = SHARED) -> Cursor:
        """The cursor of `token`, at the beginning where the token is new."""
        with self._lock:
            return self._cursors.setdefault(token, Cursor(self._stream))

    def resume(self, token: str, position: int) -> Cursor:
        """Put the cursor of `token` at byte `position`, one that a cursor of this stream gave before."""
        with self._lock:
            self._cursors[token] = Cursor(self._stream, position)
            return self._cursors[token]

    def forget(self, token: str) -> None:
        """Drop the cursor of `token`; its next read begins at the beginning."""
        with self._lock:
            self._cursors.pop(token, None)
