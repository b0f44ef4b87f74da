"""The sandboxed bash executor: resolving, background tasks, their output and their ends (1B.2, 1B.3; DE-01 to DE-32)."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import Closed, InvalidRequest, UnknownJob
from stockade.seam import AbortSignal, BashExecRequest, BashTask, OwnerToken
from stockade.tools.bash_executor import SandboxedBash
from support.bash import AWAIT_GO, DEAF, begin, over, run, sandboxed, until_read


@pytest.mark.case("DE-01")
async def test_a_command_is_run_with_its_timeout(bash: SandboxedBash) -> None:
    result = await run(bash, "echo hi", timeout_ms=5_000)
    assert (result.exit_code, result.signal, result.stdout.text, result.timeout_ms) == (0, None, "hi\n", 5_000)
    assert (result.timed_out, result.aborted, result.stdout.truncated, result.stdout.spill_path) == (False, False, False, None)


@pytest.mark.case("DE-02")
async def test_the_working_directory_is_the_configured_one_or_the_calls(bash: SandboxedBash, workspace: Path) -> None:
    (workspace / "below").mkdir()
    assert (await run(bash, "pwd")).stdout.text == f"{workspace}\n"
    for workdir in ("below", str(workspace / "below")):
        assert (await run(bash, "pwd", workdir=workdir)).stdout.text == f"{workspace}/below\n"


@pytest.mark.case("DE-03")
async def test_the_working_directory_is_by_default_that_of_the_process(
    workspace: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    async with await SandboxedBash.open(config=from_environment(state_dir=str(state))) as bash:
        assert (await run(bash, "pwd")).stdout.text == f"{workspace}\n"
        task = await begin(bash, "sleep 60")
    assert (task.status, task.done.is_set()) == ("killed", True)


@pytest.mark.case("DE-04")
async def test_a_timeout_is_capped_when_it_is_resolved(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_timeout_ms=2_000)
    assert bash.resolve(BashExecRequest(command="true", timeout_ms=99_999)).timeout_ms == 2_000
    assert bash.resolve(BashExecRequest(command="true")).timeout_ms == 2_000
    assert sandboxed(background_executor, workspace).resolve(BashExecRequest(command="true")).timeout_ms == 120_000


@pytest.mark.case("DE-05")
async def test_numbers_that_are_none_are_refused(background_executor: Executor, workspace: Path) -> None:
    for value in (float("nan"), 0, -1, True, float("inf"), "5"):
        for name in ("timeout_ms", "max_timeout_ms", "max_output_bytes", "max_spill_bytes", "grace_ms"):
            with pytest.raises(InvalidRequest, match=f"bash-local: {name} must be a positive finite number"):
                sandboxed(background_executor, workspace, **{name: value})
        with pytest.raises(InvalidRequest, match="bash-local: timeout_ms must be a positive finite number"):
            sandboxed(background_executor, workspace).resolve(BashExecRequest(command="true", timeout_ms=value))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="grace_ms is longer than a timer can be"):
        sandboxed(background_executor, workspace, grace_ms=1e12)
    for command in ("", "  \n", "a\0b"):
        with pytest.raises(InvalidRequest, match="command"):
            sandboxed(background_executor, workspace).resolve(BashExecRequest(command=command))


@pytest.mark.case("DE-06")
async def test_what_ignores_the_signal_is_killed_after_the_grace(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, grace_ms=200)
    task = await begin(bash, DEAF)
    await until_read(bash, task, "ready")
    assert await bash.kill(task.id)
    assert ((await over(task)).status, task.exit_code, task.signal) == ("killed", None, "SIGKILL")
    await bash.close()


@pytest.mark.case("DE-07")
async def test_a_calls_own_timeout_ends_it(bash: SandboxedBash) -> None:
    result = await run(bash, "sleep 60", timeout_ms=100)
    assert (result.timed_out, result.aborted, result.timeout_ms, result.signal) == (True, False, 100, "SIGTERM")


@pytest.mark.case("DE-08", "DE-29")
async def test_an_abort_ends_a_run_and_a_task(bash: SandboxedBash) -> None:
    signal = AbortSignal()
    running = asyncio.create_task(run(bash, "sleep 60", signal=signal))
    task = await begin(bash, "sleep 60", signal=signal)
    signal.abort("enough")
    result = await running
    assert (result.aborted, result.timed_out) == (True, False)
    assert (await over(task)).status == "killed"
    assert task.signal in ("SIGTERM", None)  # None: it had not begun


@pytest.mark.case("DE-09")
async def test_a_directory_that_is_not_there_is_an_error(bash: SandboxedBash) -> None:
    with pytest.raises(InvalidRequest, match="ENOENT"):
        await run(bash, "true", workdir="missing")


@pytest.mark.case("DE-10", "DE-11")
async def test_input_and_environment_are_carried_where_they_are_given(bash: SandboxedBash) -> None:
    spec = bash.resolve(BashExecRequest(command="cat; echo $EXTRA", stdin="in", env={"EXTRA": "out"}))
    assert (spec.stdin, spec.env, spec.owner) == ("in", {"EXTRA": "out"}, None)
    assert (await bash.run(spec)).stdout.text == "inout\n"
    bare = bash.resolve(BashExecRequest(command="true"))
    assert (bare.stdin, bare.env, bare.signal, bare.owner) == (None, None, None, None)


@pytest.mark.case("DE-12", "DE-13")
async def test_a_task_is_running_at_once_and_has_completed_later(bash: SandboxedBash, workspace: Path) -> None:
    await run(bash, "true")  # the first start of an executor builds what later ones find
    began = time.monotonic()
    task = await begin(bash, AWAIT_GO)
    assert time.monotonic() - began < 2
    assert (task.id, task.status, task.exit_code, task.done.is_set()) == ("bash-1", "running", None, False)
    assert bash.get("bash-1") is task
    second = await begin(bash, "exit 3", owner=OwnerToken("somebody"))
    assert bash.list() == (task, second)
    assert (bash.owner_of("bash-1"), bash.owner_of("bash-2"), bash.owner_of("bash-3")) == (None, "somebody", None)
    (workspace / "go").touch()
    assert ((await over(task)).status, task.exit_code, task.signal) == ("completed", 0, None)
    assert ((await over(second)).status, second.exit_code) == ("completed", 3)
    assert bash.owner_of("bash-2") == "somebody"  # D-9


@pytest.mark.case("DE-14")
async def test_a_task_has_input_and_environment_too(bash: SandboxedBash) -> None:
    task = await over(await begin(bash, "cat; echo $EXTRA", stdin="in", env={"EXTRA": "out"}))
    assert (await bash.read_output(task.id)).delta == "inout\n"


@pytest.mark.case("DE-15", "DR-24")
async def test_reads_give_what_is_new_and_nothing_twice(bash: SandboxedBash, workspace: Path) -> None:
    task = await begin(bash, f"echo first; {AWAIT_GO} echo second")
    assert await until_read(bash, task, "first\n") == "first\n"
    (workspace / "go").touch()
    await over(task)
    read = await bash.read_output(task.id)
    assert (read.delta, read.lossy, read.task) == ("second\n", False, task)
    assert (await bash.read_output(task.id)).delta == ""


@pytest.mark.case("DE-16", "DE-17", "DE-25")
async def test_stderr_stands_below_a_header(bash: SandboxedBash) -> None:
    cases = {
        "echo out; echo err >&2": "out\n[stderr]\nerr\n",
        "printf out; echo err >&2": "out\n[stderr]\nerr\n",
        "echo err >&2": "[stderr]\nerr\n",
    }
    tasks = [await begin(bash, command) for command in cases]
    for task in tasks:
        await over(task)
        assert (await bash.read_output(task.id)).delta == cases[task.command]


@pytest.mark.case("DE-18", "DE-26", "DR-25")
async def test_a_read_that_lost_something_names_the_whole(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_output_bytes=100)
    task = await over(await begin(bash, "seq 1000; seq 2000 3000 >&2"))
    read = await bash.read_output(task.id)
    assert read.lossy
    assert read.delta.startswith("76\n977\n")
    assert read.delta.endswith("\n3000\n")
    assert read.stdout_spill_path is not None
    assert read.stderr_spill_path is not None
    assert Path(read.stdout_spill_path).read_text() == "".join(f"{number}\n" for number in range(1, 1_001))
    assert Path(read.stderr_spill_path).read_text() == "".join(f"{number}\n" for number in range(2_000, 3_001))
    again = await bash.read_output(task.id)
    assert (again.delta, again.lossy, again.stdout_spill_path) == ("", False, read.stdout_spill_path)


@pytest.mark.case("DE-19")
async def test_an_unknown_task_is_an_error(bash: SandboxedBash) -> None:
    with pytest.raises(UnknownJob, match='unknown bash task "bash-9"'):
        await bash.read_output("bash-9")
    assert bash.get("bash-9") is None


@pytest.mark.case("DE-20", "DE-21", "DE-22", "DE-23", "DR-13")
async def test_a_kill_is_seen_at_once_and_told_once(bash: SandboxedBash) -> None:
    told: list[str] = []
    bash.on_task_done(lambda task: told.append(f"{task.id} {task.status}"))
    done = await over(await begin(bash, "true"))
    task = await begin(bash, "echo up; exec sleep 60")
    await until_read(bash, task, "up")
    assert await bash.kill(task.id) is True
    assert task.status == "killed"
    assert await bash.kill(task.id) is False
    assert ((await over(task)).status, task.exit_code, task.signal) == ("killed", None, "SIGTERM")
    assert await bash.kill(task.id) is False
    assert await bash.kill(done.id) is False
    with pytest.raises(UnknownJob, match='unknown bash task "bash-9"'):
        await bash.kill("bash-9")
    assert told == ["bash-1 completed", "bash-2 killed"]


@pytest.mark.case("DR-27", "DR-28", "DR-34")
async def test_a_kill_that_finds_nobody_harms_nobody(bash: SandboxedBash) -> None:
    """Nothing is ever signalled by its number: a job's processes are reached through its own cgroup and namespace, or not at all."""
    tasks = [await begin(bash, "exit 5") for _ in range(8)]
    await asyncio.gather(*(bash.kill(task.id) for task in tasks))
    for task in tasks:
        await over(task)
        # What had ended by itself says so, whenever the kill came (U-25).
        assert (task.status, task.exit_code, task.signal) in (
            ("completed", 5, None),
            ("killed", None, "SIGTERM"),
            ("killed", None, "SIGKILL"),
            ("killed", None, None),
        )


@pytest.mark.case("DE-24")
async def test_what_cannot_be_started_is_a_killed_task(bash: SandboxedBash) -> None:
    told: list[BashTask] = []
    bash.on_task_done(told.append)
    task = await begin(bash, "true", workdir="missing")
    assert ((await over(task)).status, task.exit_code) == ("killed", None)
    assert told == [task]
    delta = (await bash.read_output(task.id)).delta
    assert delta.startswith("[stderr]\nspawn failed: ")
    assert "ENOENT" in delta
    assert (await bash.read_output(task.id)).delta == ""


@pytest.mark.case("DE-24")
async def test_a_missing_shell_is_an_error_of_a_run_and_a_killed_task(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, policy=Policy(path=["/nowhere"]))
    with pytest.raises(InvalidRequest, match="bash"):
        await run(bash, "true")
    task = await over(await begin(bash, "true"))
    assert task.status == "killed"
    assert "spawn failed" in (await bash.read_output(task.id)).delta


@pytest.mark.case("DE-27", "DE-28", "DE-31", "DE-32")
async def test_closing_ends_what_runs_and_waits_for_it(bash: SandboxedBash, workspace: Path, background_executor: Executor) -> None:
    told: list[str] = []
    bash.on_task_done(lambda task: told.append(task.id))
    done = await over(await begin(bash, "exit 4"))
    deaf = await begin(bash, DEAF)
    await until_read(bash, deaf, "ready")
    await bash.close()
    assert (done.status, done.exit_code) == ("completed", 4)
    assert (deaf.status, deaf.signal, deaf.done.is_set()) == ("killed", "SIGKILL", True)
    assert background_executor.counters().running == 0
    assert (bash.list(), told) == ((), ["bash-1"])
    with pytest.raises(Closed, match="make a new one"):
        await begin(bash, "true")


@pytest.mark.case("DE-30")
async def test_a_listener_that_fails_is_logged(bash: SandboxedBash, caplog: pytest.LogCaptureFixture) -> None:
    told: list[BashTask] = []

    def fails(task: BashTask) -> None:
        raise RuntimeError("its own affair")

    bash.on_task_done(fails)
    bash.on_task_done(told.append)
    with caplog.at_level(logging.ERROR, "stockade"):
        task = await over(await begin(bash, "true"))
    assert (task.status, told) == ("completed", [task])
    assert "a listener failed for bash task bash-1" in caplog.text


async def test_no_timeout_applies_to_a_task(bash: SandboxedBash, workspace: Path) -> None:
    """D-4."""
    task = await begin(bash, f"{AWAIT_GO} echo late", timeout_ms=1)
    assert task.status == "running"
    (workspace / "go").touch()
    assert (await over(task)).exit_code == 0


async def test_a_character_is_never_cut_between_two_reads(bash: SandboxedBash, workspace: Path) -> None:
    """U-19."""
    task = await begin(bash, rf"printf 'a\xc3'; {AWAIT_GO} printf '\xa9\xe2\x82'")
    assert await until_read(bash, task, "a") == "a"
    assert (await bash.read_output(task.id)).delta == ""
    (workspace / "go").touch()
    await over(task)
    assert (await bash.read_output(task.id)).delta == "é\ufffd"


async def test_a_cancelled_run_leaves_nothing_running(bash: SandboxedBash, background_executor: Executor, workspace: Path) -> None:
    running = asyncio.create_task(run(bash, "touch up; sleep 60"))
    while not os.path.exists(workspace / "up"):
        await asyncio.wait({running}, timeout=0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert background_executor.counters().running == 0


async def test_closing_ends_foreground_commands_and_starts_on_their_way(
    bash: SandboxedBash, background_executor: Executor, workspace: Path
) -> None:
    running = asyncio.create_task(run(bash, "touch up; exec sleep 60"))
    while not await asyncio.to_thread((workspace / "up").exists):
        await asyncio.wait({running}, timeout=0.01)
    starts = [asyncio.create_task(begin(bash, "sleep 60")) for _ in range(3)]
    await asyncio.sleep(0)
    await bash.close()
    result = await running
    assert (result.signal, result.timed_out, result.aborted) == ("SIGTERM", False, False)
    assert all(isinstance(end, Closed | BashTask) for end in await asyncio.gather(*starts, return_exceptions=True))
    assert background_executor.counters().running == 0


async def test_a_kill_is_not_lost_on_a_task_that_is_being_started(bash: SandboxedBash) -> None:
    starting = asyncio.create_task(begin(bash, "sleep 60"))
    while not bash.list():
        await asyncio.sleep(0)
    assert await bash.kill("bash-1") is True
    assert (await over(await starting)).status == "killed"


async def test_a_task_is_over_when_its_executor_was_closed_under_it(bash: SandboxedBash, background_executor: Executor) -> None:
    task = await begin(bash, "sleep 60")
    await background_executor.close()
    assert (await over(task)).status == "killed"
    with pytest.raises(Closed):
        await begin(bash, "true")
    assert bash.list() == (task,)
