"""Literal search in a stream: where it is, on which line, and what stands around it (1A.11)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stockade.bank.windows import StreamReader, clamp, held_back
from stockade.errors import InvalidRequest

MAX_PATTERN: Final = 200
MAX_MATCHES: Final = 50
CONTEXT: Final = 120
BUDGET: Final = 256 * 1_048_576
_BLOCK: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Match:
    """One occurrence: its character offset, its line (from 1), and a snippet that begins at `snippet_offset`."""

    offset: int
    line: int
    snippet: str
    snippet_offset: int


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The matches from `offset` on; `total_matches` counts all that were seen, also those that are not returned.

    `truncated` says that there are more: go on at `next_search_offset`. `complete` is False where the search stopped at
    its budget of bytes before the end of the stream; `total_matches` then counts what lies before `next_search_offset`.
    """

    matches: tuple[Match, ...]
    total_matches: int
    truncated: bool
    next_search_offset: int | None
    complete: bool
    offset: int


def _positions(text: str, pattern: str, start: int, *, ignore_case: bool) -> Iterator[int]:
    if not ignore_case:
        position = text.find(pattern, start)
        while position >= 0:
            yield position
            position = text.find(pattern, position + len(pattern))
    elif text.isascii() and pattern.isascii():
        yield from _positions(text.lower(), pattern.lower(), start, ignore_case=False)
    else:
        # Folds character by character, so that offsets stay those of the text.
        yield from (match.start() for match in re.compile(re.escape(pattern), re.IGNORECASE).finditer(text, start))


def search(
    reader: StreamReader,
    pattern: str,
    *,
    offset: int = 0,
    limit: int = MAX_MATCHES,
    ignore_case: bool = True,
    budget: int = BUDGET,
) -> SearchPage:
    """Find `pattern`, taken literally, from character `offset` on; at most 50 matches and `budget` bytes at a time.

    Raises: InvalidRequest where the pattern is empty or longer than 200 characters.
    """
    if not 1 <= len(pattern) <= MAX_PATTERN:
        raise InvalidRequest(
            f"the search text must have 1 to {MAX_PATTERN} characters, not {len(pattern)}",
            field="search",
            hint="search for a shorter literal text; it is no regular expression" if pattern else "name a text to find",
        )
    limit = clamp(limit, 1, MAX_MATCHES)
    start = reader.read_chars(offset, 1)
    stream = reader.stream
    char, byte, end = start.offset, start.byte_offset, start.total_bytes
    finished = stream.extent().finished
    line = reader.line_of_byte(byte)
    found: list[tuple[int, int]] = []
    total, scanned, next_offset = 0, 0, None
    text, begin = "", 0  # `text` starts at character `char`; it is searched from `begin` on.
    complete = False
    while not complete:
        data = stream.pread(byte, min(_BLOCK, end - byte, max(0, budget - scanned)))
        last = byte + len(data) >= end
        more, used = (data.decode("utf-8", "replace"), len(data)) if last and finished else held_back(data)
        byte, scanned = byte + used, scanned + used
        text += more
        counted = 0
        for position in _positions(text, pattern, begin, ignore_case=ignore_case):
            if len(found) < limit:
                line += text.count("\n", counted, position)
                counted = position
                found.append((char + position, line))
            elif next_offset is None:
                next_offset = char + position
            total += 1
            begin = position + len(pattern)
        # Without a byte more than before there is nothing to be had: the file is gone.
        complete = last or (not used and scanned < budget)
        if scanned >= budget:
            break
        # An occurrence may straddle the border: keep what could be its beginning.
        keep = max(begin, len(text) - len(pattern) + 1)
        line += text.count("\n", counted, keep)
        text, char, begin = text[keep:], char + keep, 0
    if not complete and next_offset is None:
        next_offset = char + max(begin, len(text) - len(pattern) + 1)
    return SearchPage(
        matches=tuple(_match(reader, at, number, len(pattern)) for at, number in found),
        total_matches=total,
        truncated=next_offset is not None,
        next_search_offset=next_offset,
        complete=complete,
        offset=start.offset,
    )


def _match(reader: StreamReader, at: int, line: int, length: int) -> Match:
    page = reader.read_chars(max(0, at - CONTEXT), at - max(0, at - CONTEXT) + length + CONTEXT)
    return Match(at, line, page.content, page.offset)
