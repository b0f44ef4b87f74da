"""Every way in which a job or a start can end has its exit code."""

from __future__ import annotations

import pytest

from stockade.errors import ExecutableNotFound, HostUnfit, LaunchFailed, NotAllowed, NotExecutable, StockadeError
from stockade.jobs.records import JobError, JobRecord
from stockade.launcher.outcome import Aborted, Exited, Killed, Outcome, OutOfMemory, OutputLimited, Signaled, TimedOut
from stockade.tools.cli import exit_codes


def record(outcome: Outcome | None) -> JobRecord:
    return JobRecord(
        id="j1",
        instance="i1",
        argv=("true",),
        state="failed" if outcome is None else "finished",
        outcome=outcome,
        error=JobError(code="launch_failed", message="no") if outcome is None else None,
        created_at=1.0,
        ended_at=2.0,
    )


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Exited(0), 0),
        (Exited(255), 255),
        (Signaled(11), 139),
        (TimedOut("wall", 1.0, exit_code=0), 124),
        (TimedOut("cpu", 1.0, signal=9), 124),
        (TimedOut("idle", 1.0), 124),
        (OutOfMemory(limit=1), 137),
        (OutputLimited("stdout", 1), 153),
        (Killed(by="foreign", detail="x"), 137),
        (Killed(by="sink", detail="x"), 125),
        (Killed(by="shutdown", detail="x"), 125),
        (Killed(by="caller", detail="x"), 137),
        (Aborted(), 125),
        (None, 125),
    ],
)
def test_an_outcome_has_one_exit_code(outcome: Outcome | None, code: int) -> None:
    assert exit_codes.of_record(record(outcome)) == code


def test_a_signal_to_us_counts_only_where_it_ended_the_job() -> None:
    ended, before = record(Killed(by="caller", detail="x", exit_code=0)), record(Exited(4))
    assert [exit_codes.of_record(each, received=15) for each in (ended, before)] == [143, 4]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ExecutableNotFound("x", field="argv"), 127),
        (NotExecutable("x", field="argv"), 126),
        (LaunchFailed(step="exec", call="execve", path="/x", errno=8), 126),
        (LaunchFailed(step="mounts", call="mount", path="/x", errno=1), 125),
        (NotAllowed("x", field="argv"), 125),
        (HostUnfit("x", feature="f"), 125),
        (StockadeError("x"), 125),
    ],
)
def test_a_failure_of_ours_has_one_exit_code(error: StockadeError, code: int) -> None:
    assert exit_codes.of_error(error) == code
