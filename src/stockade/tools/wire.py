"""Records in the words of contract N: its states, its texts, its field names (1A.4 to 1A.8, conflict table 4.1).

A projection only: the record decides, and the same record always gives the same status. Offsets and limits count code points
where N counts UTF-16 units; for text within the BMP they are the same.
"""

from __future__ import annotations

import signal as signal_names
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, assert_never

from pydantic import ValidationError

from stockade.bank.references import Reference, unbanked
from stockade.bank.windows import Page, Tail
from stockade.jobs.records import JobError, JobRecord
from stockade.jobs.states import JobState

State = Literal["queued", "running", "exited", "killed", "timeout", "output-limit", "failed"]
StreamName = Literal["stdout", "stderr"]
STREAMS: Final[tuple[StreamName, ...]] = ("stdout", "stderr")

TAIL_CHARS: Final = 2_000  # of one stream, or of both in equal parts; the headers come on top (N-R3)
NOTHING_YET: Final = "(no output yet)"
NOTHING: Final = "(the command wrote no output)"

_WAITING: Final = (JobState.QUEUED, JobState.STARTING)
_IN_FULL: Final = "the output up to then is banked in full"
_ERRNO: Final = {"executable_not_found": "ENOENT: no such file or directory", "not_executable": "EACCES: permission denied"}
_KILL: Final = "SIGKILL"


class Counts(NamedTuple):
    """Commands that have not settled, and those that have and that nobody has looked at (1A.8)."""

    running: int
    finished: int

    def wire(self) -> dict[str, int]:
        """As every result of a run, status or kill tool carries them."""
        return {"running": self.running, "finished": self.finished}


@dataclass(frozen=True, slots=True)
class CommandHandle:
    """A command that has been accepted; `started_at` in milliseconds since the epoch."""

    task_id: str
    argv: tuple[str, ...]
    started_at: int

    def wire(self) -> dict[str, Any]:
        """As tools show it."""
        return {"taskId": self.task_id, "argv": list(self.argv), "startedAt": self.started_at}


@dataclass(frozen=True, slots=True)
class CommandStatus:
    """How a command stands (N-R1). `error` explains every end but the command's own; references are there once it has settled."""

    task_id: str
    label: str
    state: State
    duration_ms: int
    stdout_bytes: int
    stderr_bytes: int
    tail_preview: str
    exit_code: int | None = None
    signal: str | None = None
    stdout: Reference | None = None
    stderr: Reference | None = None
    error: str | None = None

    @property
    def settled(self) -> bool:
        """True where it will never change again."""
        return self.state not in ("queued", "running")

    def wire(self) -> dict[str, Any]:
        """As tools show it; what is not known is not there."""
        fields = {
            "taskId": self.task_id,
            "label": self.label,
            "state": self.state,
            "exitCode": self.exit_code,
            "signal": self.signal,
            "durationMs": self.duration_ms,
            "stdoutBytes": self.stdout_bytes,
            "stderrBytes": self.stderr_bytes,
            "stdout": None if self.stdout is None else reference_wire(self.stdout),
            "stderr": None if self.stderr is None else reference_wire(self.stderr),
            "tailPreview": self.tail_preview,
            "error": self.error,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class OutputPage:
    """A window of a stream's text (N-R4); go on at `offset + len(content)` while `has_more`."""

    task_id: str
    stream: StreamName
    content: str
    offset: int
    limit: int
    total_size: int
    has_more: bool

    def wire(self) -> dict[str, Any]:
        """As tools show it; the fields of `retrieve_context` and the stream."""
        return {
            "taskId": self.task_id,
            "stream": self.stream,
            "content": self.content,
            "offset": self.offset,
            "limit": self.limit,
            "totalSize": self.total_size,
            "hasMore": self.has_more,
        }


def reference_wire(reference: Reference) -> dict[str, Any]:
    """A banked artifact as tools show it (1A.11)."""
    return {
        "artifactId": reference.artifact_id,
        "label": reference.label,
        "kind": reference.kind,
        "sizeBytes": reference.size_bytes,
        "preview": reference.preview,
        "readBackHint": reference.read_back_hint,
    }


def output_page(task_id: str, stream: StreamName, page: Page | None, *, offset: int, limit: int) -> OutputPage:
    """The page as N has it; an empty one where there is nothing to be read."""
    if page is None:
        return OutputPage(task_id, stream, "", offset, limit, 0, False)
    return OutputPage(task_id, stream, page.content, page.offset, page.limit, page.total_chars, page.has_more)


def status_of(record: JobRecord, tails: Mapping[str, Tail], *, strict_states: bool) -> CommandStatus:
    """The status that a record and the tails of its streams give. `strict_states` shows `failed` where N says `exited`."""
    settled, outcome = record.settled, record.outcome
    sizes = {"stdout": record.stdout_bytes, "stderr": record.stderr_bytes}
    if not settled:
        sizes = {name: tail.total_bytes for name, tail in tails.items()}
    references = {name: _reference(record, name, sizes.get(name, 0)) for name in STREAMS} if settled else {}
    return CommandStatus(
        task_id=record.id,
        label=record.label or "command",
        state=_state(record, strict=strict_states),
        duration_ms=_duration_ms(record),
        stdout_bytes=sizes.get("stdout", 0),
        stderr_bytes=sizes.get("stderr", 0),
        tail_preview=tail_preview({name: tail.content for name, tail in tails.items()}, settled=settled),
        exit_code=None if outcome is None else outcome.exit_code,
        signal=_signal(record),
        stdout=references.get("stdout"),
        stderr=references.get("stderr"),
        error=_error(record),
    )


def tail_preview(tails: Mapping[str, str], *, settled: bool) -> str:
    """The last characters of each stream that has any, below a header (N-R3)."""
    shown = [(name, tails[name]) for name in STREAMS if tails.get(name)]
    if not shown:
        return NOTHING if settled else NOTHING_YET
    budget = TAIL_CHARS // len(shown)
    return "\n".join(f"[{name} tail]\n{text[-budget:]}" for name, text in shown)


def milliseconds(seconds: float) -> str:
    """A duration in milliseconds, without a decimal point where it has none."""
    count = round(seconds * 1_000, 3)
    return str(int(count)) if count == int(count) else str(count)


def _state(record: JobRecord, *, strict: bool) -> State:
    if record.outcome is None:
        match record.state:
            case JobState.QUEUED | JobState.STARTING:
                return "queued"
            case JobState.FAILED:
                return "failed" if strict else "exited"
            case JobState.LOST:
                return "killed"
            case _:
                return "running"
    match record.outcome.kind:
        case "exited":
            return "exited"
        case "timed_out":
            return "timeout"
        case "output_limited":
            return "output-limit"
        case "signaled" | "killed" | "out_of_memory" | "aborted":
            return "killed"


def _signal(record: JobRecord) -> str | None:
    outcome = record.outcome
    if outcome is None:
        return None
    if outcome.signal is not None:
        return _signal_name(outcome.signal)
    # Nobody saw the status of a command whose whole tree the kernel killed at once; it is the one signal that does that.
    return _KILL if outcome.exit_code is None and record.started_at is not None else None


def _signal_name(number: int) -> str:
    try:
        return signal_names.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _duration_ms(record: JobRecord) -> int:
    if record.duration is not None:
        return round(record.duration * 1_000)
    end = record.ended_at if record.ended_at is not None else time.time()
    return max(0, round((end - (record.started_at or record.created_at)) * 1_000))


def _error(record: JobRecord) -> str | None:
    """What is to be said of the cause that decided (U-25); nothing of a command that ended by itself."""
    if record.error is not None:
        return _failure(record.error, lost=record.state is JobState.LOST)
    outcome = record.outcome
    if outcome is None or outcome.kind == "exited":
        return None
    if outcome.kind == "signaled":
        return (
            f"The command was killed by {_signal_name(outcome.signal)}, which nobody sent through this tool: it came from the command "
            f"itself or from one of its own processes; {_IN_FULL}."
        )
    if outcome.kind == "killed":
        # What a failed sink has kept is part of its detail.
        kept = "" if outcome.by == "sink" else f"; {_IN_FULL}"
        return f"The command was killed: {outcome.detail}{kept}."
    if outcome.kind == "timed_out":
        budget = {"wall": "budget", "cpu": "budget of CPU time", "idle": "budget without output"}[outcome.clock]
        return f"The command exceeded its {milliseconds(outcome.limit)}ms {budget} and was killed; {_IN_FULL}."
    if outcome.kind == "output_limited":
        return (
            f"The command wrote more to {outcome.stream} than its cap of {outcome.limit} bytes and was killed; "
            f"the first {outcome.limit} bytes are banked in full."
        )
    if outcome.kind == "out_of_memory":
        return f"The command was {outcome.sentence()}; {_IN_FULL}."
    if outcome.kind == "aborted":
        if record.started_at is None:
            return f"The command was killed: it was {outcome.detail}, and nothing has run."
        return f"The command was killed: {outcome.detail}; {_IN_FULL}."
    assert_never(outcome)


def _failure(error: JobError, *, lost: bool) -> str:
    if lost:
        return f"The command was killed with the host that ran it, and nobody saw how it ended: {error.message}."
    reason = f" ({_ERRNO[error.code]})" if error.code in _ERRNO else ""
    hint = f" Recovery: {error.hint}." if error.hint else ""
    return f"The command could not be started: {error.message}{reason}.{hint}"


def _reference(record: JobRecord, stream: StreamName, size: int) -> Reference:
    try:
        return Reference.model_validate(record.references[stream])
    except KeyError:
        reason = "its bank account could not be opened"
    except ValidationError as error:
        reason = f"its record is damaged: {error.error_count()} fields"
    label = f"{record.label or 'command'} ({stream})"
    return unbanked(label=label, kind="command-output", size_bytes=size, preview="", reason=reason, paths=())


def is_waiting(record: JobRecord) -> bool:
    """True where the command has not begun, so that there is nothing to be read of it."""
    return record.state in _WAITING
