"""Every end that a record can have, in the words of contract N (conflict table 4.1)."""

from __future__ import annotations

from typing import Any

import pytest

from stockade.bank.windows import Tail
from stockade.ids import InstanceId, JobId
from stockade.jobs.records import JobError, JobRecord
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Aborted, Exited, Killed, Outcome, OutOfMemory, OutputLimited, Signaled, TimedOut
from stockade.tools.wire import status_of, tail_preview


def record(state: JobState, **fields: Any) -> JobRecord:
    settled = state in (JobState.FINISHED, JobState.FAILED, JobState.LOST)
    base = {"id": JobId("x1"), "instance": InstanceId("i1"), "argv": ("true",), "label": "true", "created_at": 1.0, "started_at": 2.0}
    return JobRecord(**{**base, "state": state, "ended_at": 3.0 if settled else None, "duration": 1.5 if settled else None, **fields})


@pytest.mark.parametrize(
    ("outcome", "state", "exit_code", "signal", "words"),
    [
        (Exited(3), "exited", 3, None, None),
        (Signaled(12), "killed", None, "SIGUSR2", ["killed by SIGUSR2"]),
        (Signaled(64), "killed", None, "SIGRTMAX", ["killed"]),
        (Signaled(40), "killed", None, "SIG40", ["killed by SIG40"]),
        (
            Killed("caller", "SIGTERM by the caller", signal=15),
            "killed",
            None,
            "SIGTERM",
            ["killed", "SIGTERM by the caller", "banked in full"],
        ),
        (Killed("shutdown", "the executor was closed"), "killed", None, "SIGKILL", ["the executor was closed"]),
        (Killed("sink", "stdout sink failed: write: ENOSPC", exit_code=0), "killed", 0, None, ["stdout sink failed", "ENOSPC"]),
        (Killed("foreign", "the sandbox's init was killed"), "killed", None, "SIGKILL", ["init was killed"]),
        (TimedOut("wall", 0.4, signal=15), "timeout", None, "SIGTERM", ["400ms budget", "banked in full"]),
        (TimedOut("wall", 1234.5678, exit_code=0), "timeout", 0, None, ["1234567.8ms budget"]),
        (TimedOut("cpu", 2.0), "timeout", None, "SIGKILL", ["2000ms budget of CPU time"]),
        (OutputLimited("stderr", 100, signal=15), "output-limit", None, "SIGTERM", ["stderr", "100 bytes", "banked in full"]),
        (OutOfMemory(limit=1 << 20, signal=9), "killed", None, "SIGKILL", ["killed: out of memory"]),
        (Aborted("the caller's abort signal was set", signal=15), "killed", None, "SIGTERM", ["abort signal"]),
    ],
)
def test_outcomes(outcome: Outcome, state: str, exit_code: int | None, signal: str | None, words: list[str] | None) -> None:
    status = status_of(record(JobState.FINISHED, outcome=outcome), {}, strict_states=False)
    assert (status.state, status.exit_code, status.signal) == (state, exit_code, signal)
    assert (status.error is None) == (words is None)
    for word in words or ():
        assert word in str(status.error)
    assert status.settled
    assert status.duration_ms == 1_500
    assert status.stdout is not None  # a stand-in, where the record has none
    assert (status.stdout.artifact_id, "could not be created" in status.stdout.read_back_hint) == ("", True)


def test_a_command_that_never_ran_has_no_signal() -> None:
    outcome = Aborted("cancelled before it was started")
    status = status_of(record(JobState.FINISHED, outcome=outcome, started_at=None), {}, strict_states=False)
    assert (status.state, status.exit_code, status.signal) == ("killed", None, None)
    assert "nothing has run" in str(status.error)


@pytest.mark.parametrize(
    ("code", "state", "strict", "words"),
    [
        ("executable_not_found", JobState.FAILED, "failed", "could not be started: why (ENOENT"),
        ("not_executable", JobState.FAILED, "failed", "could not be started: why (EACCES"),
        ("launch_failed", JobState.FAILED, "failed", "could not be started: why. Recovery: do that."),
        ("lost", JobState.LOST, "killed", "killed with the host that ran it"),
    ],
)
def test_errors(code: str, state: JobState, strict: str, words: str) -> None:
    ended = record(state, error=JobError(code=code, message="why", hint="do that"), started_at=None)
    assert status_of(ended, {}, strict_states=True).state == strict
    status = status_of(ended, {}, strict_states=False)
    assert status.state == ("killed" if state is JobState.LOST else "exited")
    assert (status.exit_code, status.signal) == (None, None)
    assert words in str(status.error)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (JobState.QUEUED, "queued"),
        (JobState.STARTING, "queued"),
        (JobState.RUNNING, "running"),
        (JobState.STOPPING, "running"),
    ],
)
def test_unsettled_states_have_live_counts_and_nothing_else(state: JobState, shown: str) -> None:
    tails = {"stdout": Tail("hi", 0, 2, True), "stderr": Tail("", 0, 0, True)}
    wire = status_of(record(state, started_at=None), tails, strict_states=False).wire()
    assert wire.pop("durationMs") > 0
    assert wire == {"taskId": "x1", "label": "true", "state": shown, "stdoutBytes": 2, "stderrBytes": 0, "tailPreview": "[stdout tail]\nhi"}


def test_tails_share_two_thousand_characters() -> None:
    assert tail_preview({"stdout": "", "stderr": ""}, settled=False) == "(no output yet)"
    assert tail_preview({}, settled=True) == "(the command wrote no output)"
    assert tail_preview({"stdout": "o" * 3_000}, settled=True) == "[stdout tail]\n" + "o" * 2_000
    both = tail_preview({"stdout": "o" * 3_000, "stderr": "e" * 3_000}, settled=True)
    assert both == f"[stdout tail]\n{'o' * 1_000}\n[stderr tail]\n{'e' * 1_000}"
    assert len(both) <= 2_100
