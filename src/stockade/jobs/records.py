"""What is known of one job, as a value: asked for, going on, ended. Records are frozen, strict and whole or not there at all.

`dumps` and `loads` are the form on disk: eight hexadecimal digits of CRC-32, then ASCII JSON that begins with the schema's number.
The sum tells a torn record from a whole one wherever its bytes are found, even in a database whose tree is gone.
"""

from __future__ import annotations

import enum
import json
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from stockade.errors import StateError, StockadeError
from stockade.ids import InstanceId, JobId
from stockade.jobs.reached import Reached
from stockade.jobs.states import JobState, is_settled
from stockade.launcher.outcome import Outcome

SCHEMA: Final = 2  # 2: more of usage, and the limits that were reached
V = TypeVar("V")
_ABSENT: Final[tuple[object, ...]] = (None, {}, ())

# Frozen models share their values with every reader, so their mappings must not be writable either.
Frozen = Annotated[
    Mapping[str, V],
    AfterValidator(lambda value: MappingProxyType(dict(value))),
    PlainSerializer(lambda value: dict(value), return_type=dict),
]


class Host(enum.Enum):
    """The one caller that is no owner: the host application itself, which sees every job."""

    HOST = "host"


HOST: Final = Host.HOST

# An owner token (the empty string is one), None for a caller without a token, or the host itself.
Caller = str | None | Host


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Usage(_Record):
    """What a job has used; None means that this host cannot tell. Times in seconds, sizes in bytes.

    `throttled` is time that `cpus` made it wait, `frozen` the part of `wall` in which it was frozen. `peak_sampled` is the largest
    sample where memory is sampled: what the job held at that moment, or a little more. `io_read` and `io_written` are of block
    devices, without what the kernel has not written yet. `output_bytes` and `output_lines` (line ends) are by stream, `tmpfs_bytes`
    and `tmpfs_inodes` by place, when the last process was gone. `pressure` is how long some, or all, processes waited for a
    resource (`memory.some` …; PSI).
    """

    wall: float | None = None
    frozen: float | None = None
    user: float | None = None
    system: float | None = None
    throttled: float | None = None
    peak_memory: int | None = None
    peak_sampled: int | None = None
    peak_processes: int | None = None
    refused_forks: int | None = None
    oom_kills: int | None = None
    io_read: int | None = None
    io_written: int | None = None
    output_bytes: Frozen[int] | None = None
    output_lines: Frozen[int] | None = None
    tmpfs_bytes: Frozen[int] | None = None
    tmpfs_inodes: Frozen[int] | None = None
    pressure: Frozen[float] | None = None


class JobError(_Record):
    """Why a job never ran, or why nobody knows how it ended (`code` is `lost`)."""

    code: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: StockadeError) -> JobError:
        """The error as it is recorded."""
        return cls(code=error.code, message=error.message, hint=error.hint)


class JobRequest(_Record):
    """What the caller asks for. `key` makes the start idempotent for its owner; `policy` is a digest of the policy in force.

    `input` is a digest of what is given to the program besides argv (variables, stdin); of starts with a key alone. What is written
    to an `interactive` job while it runs is in no digest and in no record. With `tty` its streams are one terminal, kept as stdout.
    """

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    cwd: str | None = None
    label: str | None = None
    owner: str | None = None
    session: str | None = None
    key: str | None = None
    policy: str | None = None
    input: str | None = None
    interactive: bool = False
    tty: bool = False
    isolation: Frozen[str] = Field(default_factory=dict)


class JobRecord(JobRequest):
    """One job. Moments are seconds of the wall clock; `duration` is seconds of the monotonic clock, None where it never ran.

    `ended_at` is when the record was settled; for a lost job that is when it was found lost. `references` are the bank's words
    and opaque here.
    """

    id: JobId
    instance: InstanceId
    state: JobState
    outcome: Annotated[Outcome, Field(discriminator="kind")] | None = None
    error: JobError | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    duration: float | None = None
    stdout_bytes: NonNegativeInt = 0
    stderr_bytes: NonNegativeInt = 0
    references: Frozen[JsonValue] = Field(default_factory=dict)
    usage: Usage = Usage()
    reached: tuple[Reached, ...] = ()  # limits that did not end it; their sentences are among the notes
    notes: tuple[str, ...] = ()
    acknowledged: bool = False

    @model_validator(mode="after")
    def _whole(self) -> JobRecord:
        if (self.outcome is not None) != (self.state is JobState.FINISHED):
            raise ValueError("a finished job has an outcome, and no other has")
        if (self.error is not None) != (self.state in (JobState.FAILED, JobState.LOST)):
            raise ValueError("a failed or lost job has an error, and no other has")
        if (self.ended_at is not None) != is_settled(self.state):
            raise ValueError("a settled job has the time of its end, and no other has")
        if self.acknowledged and not is_settled(self.state):
            raise ValueError("only a settled job can be acknowledged")
        return self

    @property
    def settled(self) -> bool:
        """True where the record will never change again, but for its acknowledgement."""
        return is_settled(self.state)

    def sentence(self) -> str:
        """How it ended, or where it stands, in a few words."""
        if self.outcome is not None:
            return self.outcome.sentence()
        if self.error is not None:
            return f"{self.state}: {self.error.message}"
        return str(self.state)

    def with_(self, **changes: Any) -> JobRecord:
        """A validated copy with `changes`."""
        return JobRecord.model_validate({**dict(self), **changes})

    def visible_to(self, caller: Caller) -> bool:
        """Unowned jobs are open to everybody, owned ones to their owner and the host (U-28)."""
        return self.owner is None or caller is HOST or caller == self.owner


class DamagedRecord(StateError):
    """The bytes of a record are not those that were written."""


def dumps(record: JobRecord) -> str:
    """The form on disk, without the acknowledgement, which is a column of its own because it changes later."""
    body = {
        name: value for name, value in record.model_dump(exclude={"acknowledged"}).items() if value not in _ABSENT and value is not False
    }
    if "usage" in body:
        body["usage"] = {name: value for name, value in body["usage"].items() if value is not None}
    # ASCII, with escapes: argv may hold bytes that are no UTF-8 (as surrogates), and SQLite's text may not.
    text = json.dumps({"schema": SCHEMA, **body}, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}{text}"


def is_whole(text: str) -> bool:
    """True where the sum in front is that of the rest."""
    return text[:8] == f"{zlib.crc32(text[8:].encode(errors='surrogatepass')):08x}"


def loads(text: str, *, acknowledged: bool = False) -> JobRecord:
    """The record that `dumps` wrote.

    Raises:
        DamagedRecord: the sum is wrong, or it is no record.
        StateError: a newer Stockade wrote it.
    """
    if not is_whole(text):
        raise DamagedRecord("the record is damaged: its sum does not match")
    try:
        fields = json.loads(text[8:])
        schema = fields.pop("schema")
        if schema > SCHEMA:
            raise StateError(
                f"the record has schema {schema}, this Stockade reads up to {SCHEMA}",
                hint="use the newer Stockade that wrote it",
            )
        return JobRecord.model_validate({**fields, "acknowledged": acknowledged})
    except (ValueError, TypeError, KeyError, AttributeError, ValidationError) as why:
        raise DamagedRecord(f"the record is damaged: {why}") from why


RequestField = Literal["argv", "cwd", "policy", "input"]


def differing(record: JobRecord, request: JobRequest) -> tuple[RequestField, ...]:
    """Which of the fields that make two starts the same differ."""
    names: tuple[RequestField, ...] = ("argv", "cwd", "policy", "input")
    found = tuple(name for name in names if getattr(record, name) != getattr(request, name))
    # Records of before there was such a digest have none.
    return tuple(name for name in found if name != "input" or record.input is not None)
