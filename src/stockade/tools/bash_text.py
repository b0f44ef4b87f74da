"""The texts of contract D's bash tools (1B.4), and what a host may show of a call: pure functions, exact to the letter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from stockade.seam import BashRunResult, BashTask, BashTaskRead, CollectedOutput

NO_OUTPUT: Final = "(no output)"
NO_NEW_OUTPUT: Final = "(no new output)"
UNAVAILABLE: Final = "(unavailable)"

_EXIT: Final = re.compile(r"\n\[exit code: (-?\d+)\]\Z")
_SIGNAL: Final = re.compile(r"\n\[killed by signal: ([A-Za-z0-9+]+)\]\Z")


@dataclass(frozen=True, slots=True)
class PromptSection:
    """A part of the system prompt, and where among the others it stands."""

    order: int
    text: str


PROMPT: Final = PromptSection(
    105,
    "A bash result ends with a marker line where the command did not end by itself with exit code 0: [exit code: N], "
    "[killed by signal: X] or [timed out after Nms]. Check for these markers before you take a command to have succeeded.",
)


def shown_ms(milliseconds: float) -> str:
    """Without a decimal point where there is nothing behind it."""
    return str(int(milliseconds)) if milliseconds == int(milliseconds) else str(milliseconds)


def result_text(result: BashRunResult) -> str:
    """A foreground command's result: its output, then the markers, each on a line of its own."""
    parts = [_stream(result.stdout), *(["[stderr]\n" + _stream(result.stderr)] if result.stderr.text or result.stderr.truncated else [])]
    body = _joined(parts) or NO_OUTPUT
    markers = [f"[timed out after {shown_ms(result.timeout_ms)}ms]"] if result.timed_out else []
    if result.signal is not None:
        markers.append(f"[killed by signal: {result.signal}]")
    elif result.exit_code:
        markers.append(f"[exit code: {result.exit_code}]")
    return _joined([body, *markers])


def read_text(read: BashTaskRead) -> str:
    """What came since the last read, and as the last line the task's status."""
    parts = [read.delta or NO_NEW_OUTPUT]
    if read.lossy:
        paths = [path for path in (read.stdout_spill_path, read.stderr_spill_path) if path is not None]
        parts.append(f"[some output was dropped from memory; full output: {', '.join(paths) or UNAVAILABLE}]")
    return _joined([*parts, status_line(read.task)])


def status_line(task: BashTask) -> str:
    """Its status in brackets; an exit code that nobody knows is shown as 0."""
    match task.status:
        case "running":
            return "[status: running]"
        case "killed":
            return "[status: killed]" if task.signal is None else f"[status: killed by {task.signal}]"
        case "completed":
            return f"[status: completed, exit code: {task.exit_code or 0}]"


def notice_text(task: BashTask, reader: str) -> str:
    """What an owner's conversation is told when a task is over."""
    return f"background task {task.id} is over {status_line(task)}; read its output with {reader}"


def _stream(output: CollectedOutput) -> str:
    if not output.truncated:
        return output.text
    return _joined([output.text, f"[output truncated; full output: {output.spill_path or UNAVAILABLE}]"])


def _joined(parts: Sequence[str]) -> str:
    """One below the other, with a line break where one is missing."""
    text = ""
    for part in parts:
        text += ("\n" if text and part and not text.endswith("\n") else "") + part
    return text


# What a host may show of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A call or its result for the eyes of a person. `exit_code` and `signal` are what the result's last line says."""

    kind: Literal["terminal", "generic"]
    title: str
    command: str | None = None
    cwd: str | None = None
    output: str | None = None
    exit_code: int | None = None
    signal: str | None = None


def call_card(name: str, arguments: object) -> Card | None:
    """The card of a call; None where it is none of these tools' or misshapen. Never raises."""
    if not isinstance(arguments, Mapping):
        return None
    if name == "bash":
        command, description = arguments.get("command"), arguments.get("description")
        if not _is_text(command) or not _is_text(description):
            return None
        if arguments.get("run_in_background") is True:
            return Card(kind="generic", title=str(description))
        cwd = arguments.get("workdir")
        return Card(kind="terminal", title=str(description), command=str(command), cwd=cwd if isinstance(cwd, str) else None)
    titles = {"bash_output": "Read output of", "bash_kill": "Kill"}
    task_id = arguments.get("task_id")
    return Card(kind="generic", title=f"{titles[name]} {task_id}") if name in titles and _is_text(task_id) else None


def result_card(name: str, arguments: object, blocks: object, *, is_error: bool = False) -> Card | None:
    """The card of a result that is exactly one block of text, given as `[{"type": "text", "text": …}]`. Never raises."""
    card = call_card(name, arguments)
    text = _only_text(blocks)
    if card is None or text is None:
        return None
    if card.kind == "generic" or is_error:
        return Card(kind="generic", title=card.title, output=text)
    code, signal = _EXIT.search(text), _SIGNAL.search(text)
    return Card(
        kind="terminal",
        title=card.title,
        command=card.command,
        cwd=card.cwd,
        output=text,
        exit_code=None if signal else int(code.group(1)) if code else 0,
        signal=signal.group(1) if signal else None,
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _only_text(blocks: object) -> str | None:
    if not isinstance(blocks, list | tuple) or len(blocks) != 1 or not isinstance(blocks[0], Mapping):
        return None
    text = blocks[0].get("text")
    return text if blocks[0].get("type") == "text" and isinstance(text, str) else None
