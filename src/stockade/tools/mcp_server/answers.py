"""The texts that a model sees: first how the command stands and why, then its output, then what was left out and how to read it."""

from __future__ import annotations

import json
from typing import Final

from stockade.jobs.records import JobRecord
from stockade.tools.mcp_server.excerpts import Gap
from stockade.tools.mcp_server.windows import Found, Window

NO_OUTPUT: Final = "(no output)"
NO_NEW_OUTPUT: Final = "(no new output)"
OUTPUT: Final = "bash_output"


def duration(seconds: float) -> str:
    """`0.04 s`, `14 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7_200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"


def status(record: JobRecord, handle: str, now: float, *, with_id: bool = False, remark: str | None = None) -> str:
    """The first line. `now` in seconds since the epoch, for a command that runs."""
    if record.settled:
        parts = [record.sentence(), *(() if record.duration is None else (duration(record.duration),))]
        parts += [f"id {handle}"] if with_id else []
    else:
        parts = ["running", f"id {handle}", duration(max(0.0, now - (record.started_at or record.created_at)))]
    return " · ".join([*parts, *(() if remark is None else (remark,))])


def answer(first: str, body: str, *last: str) -> str:
    """The parts of a text, each on lines of its own."""
    return "\n".join(part for part in (first, body, *last) if part)


def notes(record: JobRecord) -> tuple[str, ...]:
    """What else happened to it."""
    return tuple(f"[note: {note}]" for note in record.notes)


def output(window: Window, handle: str) -> str:
    """A window's text, with a line for what it leaves out; empty where there is none."""
    excerpt = window.excerpt
    lost = f"[the first {window.lost:,} bytes are no longer kept]" if window.lost else ""
    gap = "" if excerpt.gap is None else left_out(excerpt.gap, window, handle)
    return "\n".join(part for part in (lost, excerpt.head, gap, excerpt.tail) if part)


def left_out(gap: Gap, window: Window, handle: str) -> str:
    """The line that says what is not shown, and how to read it."""
    if gap.whole:
        which = f"line {gap.first:,}" if gap.lines == 1 else f"lines {gap.first:,}–{gap.last:,}"
        amount = f"{gap.lines:,} of {window.total_lines:,} lines, {gap.end - gap.start:,} bytes omitted ({which})"
        return f'[… {amount}; read on: {OUTPUT}(id="{handle}", from_line={gap.first})]'
    where = f"from byte {gap.start:,} in line {gap.first:,}"
    amount = f"{gap.end - gap.start:,} of {window.total_bytes:,} bytes omitted ({where})"
    return f'[… {amount}; read on: {OUTPUT}(id="{handle}", from_byte={gap.start})]'


def found(result: Found, text: str, handle: str) -> str:
    """The lines that contain a text, each with its number."""
    shown = "\n".join(f"{number}: {line}" for number, line in result.lines)
    if result.next_line is not None:
        more = f'{OUTPUT}(id="{handle}", grep={json.dumps(text, ensure_ascii=False)}, from_line={result.next_line})'
        return answer(shown, f"[searched up to line {result.next_line - 1:,} of {result.total_lines:,}; go on: {more}]")
    return shown or f"(no line contains {text!r}; {result.total_lines:,} lines were searched)"
