"""Why a job ended and what else it reached: one limit is one thing, with its numbers in words."""

from __future__ import annotations

import pytest

from stockade.jobs.ending import classify
from stockade.jobs.reached import Reached, find_reached, fuller
from stockade.launcher.outcome import Exited, Killed, Outcome, OutOfMemory, Signaled, Status, TimedOut
from stockade.launcher.scratch import Filling
from stockade.policy.model import Limits
from stockade.sandbox.counters import Usage

MIB = 1 << 20
LIMITS = Limits(memory=64 * MIB, processes=20, file_size=10 * MIB)
FULL, ROOMY = Filling(64 * MIB, 64 * MIB, 5, 100), Filling(MIB, 64 * MIB, 5, 100)
SIGKILL, SIGXFSZ = 9, 25


@pytest.mark.parametrize(
    ("reached", "says"),
    [
        (Reached("memory", 64 * MIB, count=2, peak=63 * MIB), "out of memory, and the command went on: 2 processes killed, 64 MiB limit, peak 63 MiB"),
        (Reached("memory", None, count=1), "out of memory, and the command went on: 1 process killed"),
        (Reached("processes", 20, count=1), "processes limit: 1 fork refused, at most 20 processes"),
        (Reached("processes", 1, count=None), "processes limit: how many forks were refused is not known here, at most 1 process"),
        (Reached("tmp_size", 64 * MIB, place="/tmp"), "/tmp was full: 64 MiB"),
        (Reached("home_inodes", 32, place="/home/job"), "/home/job was full: 32 inodes"),
        (Reached("shm_size", 4096, place="/dev/shm"), "/dev/shm was full: 4 KiB"),
    ],
)  # fmt: skip
def test_a_limit_is_told_in_words_with_numbers(reached: Reached, says: str) -> None:
    assert reached.sentence() == says


@pytest.mark.parametrize(
    ("status", "usage", "outcome"),
    [
        (Status(signal=SIGKILL), Usage(oom_kills=3, oom_events=1, peak_memory=5), OutOfMemory(64 * MIB, 5, 3, signal=SIGKILL)),
        (None, Usage(oom_kills=2, oom_events=1), OutOfMemory(64 * MIB, None, 2)),
        (Status(exit_code=0), Usage(oom_kills=1, oom_events=1), Exited(0)),
        (Status(signal=SIGXFSZ), Usage(), Signaled(SIGXFSZ, file_size=10 * MIB)),
        (Status(signal=11), Usage(), Signaled(11)),
    ],
)
def test_the_end_is_named_by_what_the_kernel_counted(status: Status | None, usage: Usage, outcome: Outcome) -> None:
    assert classify(None, status, usage, LIMITS) == outcome


@pytest.mark.parametrize("status", [Status(signal=SIGKILL), None])
def test_a_host_without_memory_is_not_taken_for_the_jobs_limit(status: Status | None) -> None:
    usage = Usage(oom_kills=4, oom_events=0)
    outcome = classify(None, status, usage, LIMITS)
    assert isinstance(outcome, Killed)
    assert (outcome.by, "the host" in outcome.sentence()) == ("foreign", True)
    assert find_reached(outcome, usage, LIMITS, {}, was_crowded=False) == ()


def test_without_a_file_size_limit_sigxfsz_is_only_a_signal() -> None:
    assert classify(None, Status(signal=SIGXFSZ), Usage(), Limits()).sentence() == "killed by SIGXFSZ"


@pytest.mark.parametrize(
    ("outcome", "usage", "filled", "crowded", "found"),
    [
        (Exited(0), Usage(oom_kills=1, oom_events=2, peak_memory=9), {}, False, (Reached("memory", 64 * MIB, 1, 9),)),
        (OutOfMemory(64 * MIB), Usage(oom_kills=1, oom_events=1), {}, False, ()),
        (Exited(1), Usage(refused_forks=7), {}, False, (Reached("processes", 20, 7),)),
        (Exited(1), Usage(refused_forks=0), {}, True, ()),
        (TimedOut("wall", 1), Usage(), {}, True, (Reached("processes", 20),)),
        (Exited(0), Usage(), {"/tmp": FULL, "/dev/shm": ROOMY}, False, (Reached("tmp_size", 64 * MIB, place="/tmp"),)),
        (Exited(0), Usage(), {"/home/job": Filling(0, 9, 16, 16)}, False, (Reached("home_inodes", 16, place="/home/job"),)),
        (Exited(0), Usage(), {"/elsewhere": FULL}, False, ()),
    ],
)  # fmt: skip
def test_what_did_not_end_the_job_is_found_beside_it(
    outcome: Outcome, usage: Usage, filled: dict[str, Filling], crowded: bool, found: tuple[Reached, ...]
) -> None:
    assert find_reached(outcome, usage, LIMITS, filled, was_crowded=crowded) == found


def test_a_place_that_was_full_and_is_empty_again_was_full() -> None:
    assert fuller({"/tmp": FULL}, {"/tmp": ROOMY, "/dev/shm": ROOMY}) == {"/tmp": FULL, "/dev/shm": ROOMY}
