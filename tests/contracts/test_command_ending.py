"""How a command ends: killed, timed out, aborted, and always with its first cause (1A.5, 1A.6; NL-09 to NL-12)."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import time
from pathlib import Path

import pytest

from stockade import Executor
from stockade.bank.retention import Retention
from stockade.errors import InvalidRequest, UnknownJob
from stockade.tools.commands import BackgroundCommands
from support.agents import (
    AWAIT_FILE,
    DEAF,
    PATIENCE,
    WITH_GRANDCHILD,
    artifact_bytes,
    host,
    run,
    settle,
    start,
    until_output,
)
from support.programs import python

READY = "import time; print('ready', flush=True); time.sleep(60)"


def is_held(workspace: Path) -> bool:
    """Whether a living process has the lock on the file `held`."""
    with open(workspace / "held", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.case("NL-09")
async def test_a_killed_command_keeps_what_it_wrote(commands: BackgroundCommands, background_executor: Executor) -> None:
    task = await start(commands, python(READY))
    await until_output(commands, task, "ready\n")
    status = await commands.kill(task)
    assert (status.state, status.signal, status.exit_code) == ("killed", "SIGTERM", None)
    for word in ("killed", "SIGTERM", "by the caller", "banked in full"):
        assert word in str(status.error)
    assert status.stdout is not None
    assert await artifact_bytes(background_executor, status.stdout.artifact_id) == b"ready\n"
    assert (await commands.read_output(task)).content == "ready\n"


async def test_a_kill_can_choose_its_signal(commands: BackgroundCommands) -> None:
    for signal, name in (("SIGINT", "SIGINT"), ("hup", "SIGHUP"), (9, "SIGKILL")):
        task = await start(commands, ["/usr/bin/sleep", "60"])
        await commands.wait(task, 100)
        status = await commands.kill(task, signal)
        assert (status.state, status.signal) == ("killed", name)
        assert f"{name} by the caller" in str(status.error)
    with pytest.raises(InvalidRequest, match="no signal"):
        await commands.kill(task, "SIGNONSENSE")


@pytest.mark.case("NL-10")
async def test_a_kill_after_the_end_changes_nothing(commands: BackgroundCommands) -> None:
    before = await run(commands, ["/usr/bin/true"])
    assert await commands.kill(before.task_id) == before
    assert (before.state, before.exit_code) == ("exited", 0)
    assert await commands.tools.call("command_kill", {"taskId": before.task_id}) == {**before.wire(), "running": 0, "finished": 0}


@pytest.mark.case("NL-11")
async def test_the_time_budget_ends_a_command(commands: BackgroundCommands, background_executor: Executor) -> None:
    status = await run(commands, python(READY), timeout_ms=400)
    assert (status.state, status.signal) == ("timeout", "SIGTERM")
    assert "400ms budget" in str(status.error)
    assert "banked in full" in str(status.error)
    assert status.stdout is not None
    assert await artifact_bytes(background_executor, status.stdout.artifact_id) == b"ready\n"


@pytest.mark.case("NL-12")
async def test_a_command_that_ignores_sigterm_is_ended_all_the_same(commands: BackgroundCommands) -> None:
    began = time.monotonic()
    task = await start(commands, python(DEAF), timeout_ms=300)
    status = await commands.wait(task, 20_000)
    assert (status.state, status.signal, status.exit_code) == ("timeout", "SIGKILL", None)
    assert 5.3 <= time.monotonic() - began < 20


@pytest.mark.case("NX-06", "N-defect-3")
async def test_an_abort_before_the_start_runs_nothing(commands: BackgroundCommands, workspace: Path) -> None:
    aborted = asyncio.Event()
    aborted.set()
    status = await run(commands, ["/bin/sh", "-c", "echo x; touch ran"], abort_signal=aborted)
    assert (status.state, status.exit_code, status.signal, status.stdout_bytes) == ("killed", None, None, 0)
    assert "cancelled before it was started" in str(status.error)
    assert status.stdout is not None
    assert status.stdout.size_bytes == 0
    assert not (workspace / "ran").exists()


@pytest.mark.case("NX-06", "N-defect-3")
async def test_an_abort_while_it_runs_kills_it_and_says_so(commands: BackgroundCommands) -> None:
    abort = asyncio.Event()
    task = await start(commands, python(READY), abort_signal=abort)
    await until_output(commands, task, "ready\n")
    abort.set()
    status = await settle(commands, task)
    assert (status.state, status.signal) == ("killed", "SIGTERM")
    assert "abort" in str(status.error)


async def test_an_abort_after_the_end_changes_nothing(commands: BackgroundCommands) -> None:
    abort = asyncio.Event()
    status = await run(commands, ["/usr/bin/true"], abort_signal=abort)
    abort.set()
    assert await commands.status(status.task_id) == status
    assert status.state == "exited"


@pytest.mark.case("NX-07", "N-defect-3")
async def test_a_signal_from_elsewhere_is_named_and_explained(commands: BackgroundCommands, background_executor: Executor) -> None:
    task = await start(commands, python(READY))
    await until_output(commands, task, "ready\n")
    assert await background_executor.signal(task, 12)
    status = await settle(commands, task)
    assert (status.state, status.signal, status.exit_code) == ("killed", "SIGUSR2", None)
    assert "SIGUSR2" in str(status.error)
    assert "killed" in str(status.error)


@pytest.mark.case("NX-08")
async def test_the_bound_of_a_wait_ends_the_wait_only(commands: BackgroundCommands) -> None:
    task = await start(commands, ["/usr/bin/sleep", "60"])
    for bound in (50, 0, -1):
        status = await commands.wait(task, bound)
        assert status.state in ("queued", "running")
    with pytest.raises(InvalidRequest, match="timeout_ms"):
        await commands.wait(task, float("nan"))
    assert (await commands.kill(task)).state == "killed"


@pytest.mark.case("NX-11", "N-defect-14")
@pytest.mark.parametrize("last_words", ["print('more', flush=True)", "pass"])
async def test_a_vanished_directory_kills_the_command(commands: BackgroundCommands, workspace: Path, state: Path, last_words: str) -> None:
    """Also where the command wrote nothing more and had exited cleanly: what cannot be read back is no success."""
    task = await start(commands, python(f"{AWAIT_FILE}\nprint('lost', flush=True); await_file('go'); {last_words}"))
    await until_output(commands, task, "lost\n")
    shutil.rmtree(state / "bank" / "jobs" / task)
    (workspace / "go").touch()
    status = await settle(commands, task)
    assert status.state == "killed"
    assert "sink failed" in str(status.error)
    assert "banked in full" not in str(status.error)
    assert status.stdout is not None
    assert status.stdout.artifact_id == ""
    assert (await run(commands, ["/usr/bin/true"])).exit_code == 0  # the host lives on


@pytest.mark.case("NX-14", "N-defect-4")
async def test_a_grandchild_dies_with_the_command(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace, grace_ms=300) as commands:
        task = await start(commands, python(WITH_GRANDCHILD + "\nsys.stdout.flush(); time.sleep(60)"))
        await until_output(commands, task, "held\n")
        assert is_held(workspace)
        status = await commands.kill(task)
        assert (status.state, status.signal) == ("killed", "SIGTERM")
        assert not is_held(workspace)


@pytest.mark.case("NX-20", "N-defect-4")
async def test_a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end(commands: BackgroundCommands, workspace: Path) -> None:
    began = time.monotonic()
    status = await run(commands, python(f"{AWAIT_FILE}{WITH_GRANDCHILD}\nawait_file('held'); print('bye', flush=True); sys.exit(5)"))
    assert (status.state, status.exit_code, status.error) == ("exited", 5, None)
    assert time.monotonic() - began < 5
    assert not is_held(workspace)


@pytest.mark.case("NX-21")
async def test_a_trapped_timeout_is_a_timeout(commands: BackgroundCommands) -> None:
    trap = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('ready', flush=True); time.sleep(60)"
    status = await run(commands, python(trap), timeout_ms=700)
    assert (status.state, status.exit_code, status.signal) == ("timeout", 0, None)
    assert "700ms budget" in str(status.error)


async def test_killing_all_ends_every_command_of_this_host_alone(background_executor: Executor, workspace: Path) -> None:
    """N-K7."""
    async with host(background_executor, workspace) as ours, host(background_executor, workspace) as theirs:
        tasks = [await start(ours, ["/usr/bin/sleep", "60"]) for _ in range(3)]
        other = await start(theirs, ["/usr/bin/sleep", "60"])
        done = await run(ours, ["/usr/bin/true"])
        assert await ours.kill_all() == 3
        for task in tasks:
            status = await ours.status(task)
            assert status.state == "killed"
            assert "its host instance was disposed" in str(status.error)
        assert (await ours.status(done.task_id)).state == "exited"
        assert (await theirs.status(other)).state in ("queued", "running")
        assert await ours.kill_all() == 0


@pytest.mark.case("NX-10", "N-defect-1")
async def test_a_settled_status_has_its_references_and_none_before_counts_as_seen(commands: BackgroundCommands) -> None:
    """Upstream showed the state first and banked later, and marked the job as seen in between."""
    for _ in range(10):
        task = await start(commands, ["/usr/bin/cat"])
        async with asyncio.timeout(PATIENCE):
            while not (status := await commands.status(task)).settled:
                assert (status.stdout, status.stderr, status.exit_code) == (None, None, None)
                assert sum(commands.counts()) == 1  # whether it has ended meanwhile or not, nobody has been told
        assert status.stdout is not None
        assert status.stdout.artifact_id
        assert commands.counts() == (0, 0)


@pytest.mark.case("N-defect-2")
async def test_a_missing_executable_has_no_exit_code(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace, allowed_executables=("no-such-program",)) as commands:
        assert "exitCode" not in (await run(commands, ["no-such-program"])).wire()


@pytest.mark.case("N-defect-5", "N-defect-12")
async def test_a_budget_that_ends_during_a_kill_does_not_rewrite_its_cause(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace, grace_ms=1_500) as commands:
        task = await start(commands, python(DEAF), timeout_ms=1_000)
        await until_output(commands, task, "ready\n")
        status = await commands.kill(task)
        assert (status.state, status.signal) == ("killed", "SIGKILL")
        assert "by the caller" in str(status.error)
        assert "budget" not in str(status.error)
        assert any("timed out" in note for note in (await background_executor.get(task)).notes)


@pytest.mark.case("N-defect-12")
async def test_a_kill_that_follows_an_abort_or_a_timeout_does_not_mix_the_causes(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace, grace_ms=1_000) as commands:
        abort = asyncio.Event()
        task = await start(commands, python(DEAF), abort_signal=abort)
        await until_output(commands, task, "ready\n")
        abort.set()
        await commands.wait(task, 50)
        status = await commands.kill(task)
        assert status.state == "killed"
        assert "abort" in str(status.error)
        assert "by the caller" not in str(status.error)

        task = await start(commands, python(DEAF), timeout_ms=600)
        await until_output(commands, task, "ready\n")
        assert (await commands.wait(task, 800)).state == "running"
        status = await commands.kill(task)
        assert status.state == "timeout"
        assert "600ms budget" in str(status.error)
        assert "by the caller" not in str(status.error)


@pytest.mark.case("N-defect-11")
async def test_a_kill_that_races_the_natural_end_gives_one_whole_story(commands: BackgroundCommands, workspace: Path) -> None:
    """Upstream, 600 trials: killed with exit code 0, exited with a kill's text, exited without references."""
    seen = set()
    for trial in range(24):
        go = workspace / f"go{trial}"
        task = await start(commands, python(f"{AWAIT_FILE}\nprint('ready', flush=True); await_file({go.name!r})"))
        await until_output(commands, task, "ready\n")
        go.touch()
        await commands.wait(task, trial % 12)
        status = await commands.kill(task)
        assert status.stdout is not None
        assert status.stdout.artifact_id
        assert (status.state, status.exit_code, status.signal) in {("exited", 0, None), ("killed", None, "SIGTERM")}
        assert (status.error is None) == (status.state == "exited")
        seen.add(status.state)
    assert "killed" in seen


@pytest.mark.case("N-defect-13")
async def test_a_kill_returns_when_it_is_over(background_executor: Executor, workspace: Path) -> None:
    """Also for a command that ignores the signal, and for two kills at once."""
    async with host(background_executor, workspace, grace_ms=500) as commands:
        task = await start(commands, python(DEAF))
        await until_output(commands, task, "ready\n")
        first, second = await asyncio.gather(commands.kill(task), commands.kill(task, "SIGINT"))
        assert first == second
        assert (first.state, first.signal) == ("killed", "SIGKILL")
        assert "SIGTERM by the caller" in str(first.error)


async def test_a_kill_before_it_has_begun_is_not_lost(commands: BackgroundCommands) -> None:
    task = await start(commands, ["/usr/bin/sleep", "60"])
    status = await commands.kill(task)
    assert status.state == "killed"
    assert status.settled


async def test_a_command_that_was_purged_is_forgotten_and_holds_up_nobody(
    commands: BackgroundCommands, background_executor: Executor
) -> None:
    """`kill_all` raised on its id, and left the others running; refusals named ids of other owners (N-I1, N-K7, U-28)."""
    foreign = await background_executor.start(["/usr/bin/sleep", "60"], owner="somebody else")
    gone, alive = await start(commands, ["/usr/bin/true"]), await start(commands, ["/usr/bin/sleep", "60"])
    while not (await background_executor.get(gone)).settled:
        await asyncio.sleep(0.01)
    assert (await background_executor.purge(Retention(max_count=0), unread=True)).removed == (gone,)
    assert await commands.kill_all() == 1
    assert (await background_executor.get(alive)).settled
    for question in (commands.status, commands.wait, commands.kill, commands.read_output):
        with pytest.raises(UnknownJob) as refused:
            await question(gone)
        assert foreign.id not in str(refused.value)
        assert alive in str(refused.value)
    await foreign.kill()
