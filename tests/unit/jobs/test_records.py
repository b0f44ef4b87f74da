"""Records: whole or refused, and the same after a journey through the form on disk."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

from stockade.errors import HostUnfit, StateError
from stockade.ids import InstanceId, JobId
from stockade.jobs.reached import Reached
from stockade.jobs.records import HOST, SCHEMA, DamagedRecord, JobError, JobRecord, JobRequest, Usage, differing, dumps, loads
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Aborted, Exited, Killed, Outcome, OutOfMemory, OutputLimited, Signaled, TimedOut

OUTCOMES: tuple[Outcome, ...] = (
    Exited(3),
    Signaled(11),
    Killed("caller", "killed by the caller", exit_code=0),
    Killed("sink", "stdout sink failed: ENOSPC", signal=9),
    TimedOut("wall", 1.5, signal=15),
    TimedOut("cpu", 2.0, exit_code=0),
    TimedOut("idle", 30.0),
    OutputLimited("stdout", 4096, signal=9),
    OutOfMemory(1 << 26, peak=1 << 26, processes=2, signal=9),
    OutOfMemory(None),
    Aborted(exit_code=143),
)


def finished(outcome: Outcome, **fields: Any) -> JobRecord:
    return JobRecord(
        **{
            "id": JobId("abc"),
            "instance": InstanceId("life"),
            "argv": ("echo", "hi"),
            "state": JobState.FINISHED,
            "outcome": outcome,
            "created_at": 1.25,
            "ended_at": 3.5,
            **fields,
        }
    )


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.kind)
def test_every_outcome_comes_back_as_it_went(outcome: Outcome) -> None:
    record = finished(outcome)
    again = loads(dumps(record))
    assert again == record
    assert type(again.outcome) is type(outcome)


def test_only_the_records_of_interactive_jobs_say_so() -> None:
    assert "interactive" not in dumps(finished(Exited(0)))
    for fields in ({"interactive": True}, {"interactive": True, "tty": True}):
        again = loads(dumps(finished(Exited(0), **fields)))
        assert (again.interactive, again.tty) == (True, "tty" in fields)
    assert loads(dumps(finished(Exited(0), duration=0.0))).duration == 0.0


def test_every_field_comes_back_as_it_went() -> None:
    record = finished(
        Exited(0),
        cwd="/work",
        label="build",
        owner="",
        session="s",
        key="k",
        policy="sha256:0",
        isolation={"memory": "memory.cgroup"},
        started_at=2.0,
        duration=1.5,
        stdout_bytes=5,
        stderr_bytes=7,
        references={"stdout": {"artifact": "a", "size": 5}, "artifacts": [1, None, True]},
        usage=Usage(wall=1.5, user=0.25, peak_memory=4096),
        notes=("a note", "another"),
        acknowledged=True,
    )
    assert loads(dumps(record), acknowledged=True) == record


@given(argv=some.lists(some.text(some.characters(exclude_characters="\0")), min_size=1), owner=some.none() | some.text())
def test_any_text_comes_back_as_it_went(argv: list[str], owner: str | None) -> None:
    record = finished(Exited(0), argv=tuple(argv), owner=owner)
    text = dumps(record)
    assert text.isascii()
    assert loads(text) == record


def test_arguments_that_are_no_utf8_come_back_as_they_went() -> None:
    record = finished(Exited(0), argv=("cat", b"\xff\xfe".decode(errors="surrogateescape")))
    assert loads(dumps(record)) == record


@pytest.mark.parametrize(
    "changes",
    [
        {"state": JobState.RUNNING},
        {"state": JobState.FAILED},
        {"outcome": None},
        {"error": JobError(code="x", message="y")},
        {"ended_at": None},
        {"state": JobState.RUNNING, "outcome": None, "ended_at": None, "acknowledged": True},
        {"surprise": 1},
        {"stdout_bytes": -1},
        {"argv": ()},
    ],
)
def test_a_record_that_is_not_whole_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        finished(Exited(0)).with_(**changes)


def test_a_record_cannot_be_written_to() -> None:
    record = finished(Exited(0), isolation={"memory": "sampled"})
    with pytest.raises(ValidationError):
        record.stdout_bytes = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        record.isolation["memory"] = "none"  # type: ignore[index]


def test_one_changed_byte_is_found() -> None:
    text = dumps(finished(Exited(0)))
    for position in range(len(text)):
        with pytest.raises(DamagedRecord):
            loads(text[:position] + ("x" if text[position] != "x" else "y") + text[position + 1 :])


def test_a_record_of_a_newer_stockade_is_refused_with_the_way_out() -> None:
    body = json.dumps({"schema": SCHEMA + 1, "id": "abc", "novelty": 1})
    with pytest.raises(StateError, match=f"schema {SCHEMA + 1}") as caught:
        loads(f"{zlib.crc32(body.encode()):08x}{body}")
    assert not isinstance(caught.value, DamagedRecord)
    assert "newer" in str(caught.value.hint)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"schema":"x"}', '{"schema":1}', "null"])
def test_what_is_no_record_is_damaged(body: str) -> None:
    with pytest.raises(DamagedRecord):
        loads(f"{zlib.crc32(body.encode()):08x}{body}")


def test_owners_see_their_own_and_unowned_jobs() -> None:
    """U-28: the empty string is an owner, and a caller without a token has no access to owned jobs."""
    owned, empty, open_ = (finished(Exited(0), owner=owner) for owner in ("me", "", None))
    callers = ("me", "you", "", None, HOST)
    assert [caller for caller in callers if owned.visible_to(caller)] == ["me", HOST]
    assert [caller for caller in callers if empty.visible_to(caller)] == ["", HOST]
    assert [caller for caller in callers if open_.visible_to(caller)] == list(callers)


def test_a_record_says_how_it_ended() -> None:
    assert finished(Exited(2)).sentence() == "exit 2"
    error = JobError.of(HostUnfit("no cgroup v2", feature="cgroup2", hint="mount it"))
    assert error == JobError(code="host_unfit", message="no cgroup v2", hint="mount it")
    assert finished(Exited(0)).with_(state=JobState.FAILED, outcome=None, error=error).sentence() == "failed: no cgroup v2"


def test_requests_differ_in_what_is_run_and_not_in_how_it_is_called() -> None:
    record = finished(Exited(0), cwd="/a", label="one")
    assert differing(record, JobRequest(argv=("echo", "hi"), cwd="/a", label="two")) == ()
    assert differing(record, JobRequest(argv=("echo",), cwd="/b")) == ("argv", "cwd")


def test_a_record_of_before_there_was_so_much_usage_is_read_with_none_for_what_was_not_counted() -> None:
    text = dumps(finished(Signaled(11), usage=Usage(wall=1.5, user=1.0)))
    fields = json.loads(text[8:])
    assert set(fields["usage"]) == {"wall", "user"}
    old = json.dumps({**fields, "schema": 1, "outcome": {"signal": 11, "exit_code": None, "kind": "signaled"}})
    record = loads(f"{zlib.crc32(old.encode()):08x}{old}")
    assert (record.outcome, record.usage.wall, record.usage.tmpfs_bytes, record.reached) == (Signaled(11), 1.5, None, ())


def test_usage_and_reached_limits_come_back_as_they_were() -> None:
    usage = Usage(
        wall=2.0,
        frozen=0.5,
        refused_forks=3,
        output_bytes={"stdout": 7},
        output_lines={"stdout": 1},
        tmpfs_bytes={"/tmp": 4096},
        tmpfs_inodes={"/tmp": 2},
        pressure={"cpu.some": 0.25},
    )
    reached = (Reached("processes", 20, count=3), Reached("tmp_size", 4096, place="/tmp"))
    record = finished(Signaled(25, file_size=1 << 20), usage=usage, reached=reached)
    assert loads(dumps(record)) == record
    assert record.usage.tmpfs_bytes is not None
    with pytest.raises(TypeError):
        record.usage.tmpfs_bytes["/tmp"] = 0  # type: ignore[index]  # a reader must not change what others read
