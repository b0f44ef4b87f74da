"""Foreground commands of the sandboxed bash executor: streams, ends, environment, input, spill files (1B.3; DR-01 to DR-35)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import stat
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import InvalidRequest, StockadeError
from stockade.seam import AbortSignal
from stockade.tools.bash_executor import SandboxedBash
from support.agents import WITH_GRANDCHILD
from support.bash import AWAIT_GO, DEAF, begin, over, run, sandboxed, until_read


@pytest.mark.case("DR-01", "DR-02", "DR-03", "DR-04")
async def test_streams_and_exit_codes_are_those_of_the_command(bash: SandboxedBash) -> None:
    result = await run(bash, "echo out; echo err >&2; exit 42")
    assert (result.stdout.text, result.stderr.text, result.exit_code, result.signal) == ("out\n", "err\n", 42, None)
    only = await run(bash, "echo err >&2")
    assert (only.stdout.text, only.stderr.text, only.exit_code) == ("", "err\n", 0)


@pytest.mark.case("DR-05", "DR-06", "DR-17")
async def test_nothing_waits_for_a_person(bash: SandboxedBash, workspace: Path) -> None:
    result = await run(bash, "echo $NO_COLOR/$TERM/$PAGER/$GIT_PAGER/$EXTRA; pwd", env={"EXTRA": "more"})
    assert result.stdout.text == f"1/dumb/cat/cat/more\n{workspace}\n"


@pytest.mark.case("DR-07")
async def test_a_timeout_ends_by_sigterm(bash: SandboxedBash) -> None:
    async with asyncio.timeout(5):
        result = await run(bash, "echo before; exec sleep 60", timeout_ms=400)
    assert (result.timed_out, result.signal, result.exit_code, result.stdout.text) == (True, "SIGTERM", None, "before\n")


@pytest.mark.case("DR-08")
async def test_what_traps_the_signal_ends_by_sigkill(background_executor: Executor, workspace: Path) -> None:
    result = await run(sandboxed(background_executor, workspace, grace_ms=200), DEAF, timeout_ms=400)
    assert (result.timed_out, result.signal, result.exit_code, result.stdout.text) == (True, "SIGKILL", None, "ready\n")


async def test_a_trap_that_exits_keeps_its_code(bash: SandboxedBash) -> None:
    """A timeout stays one, whatever the command makes of it."""
    result = await run(bash, "trap 'exit 0' TERM; while :; do sleep 0.05; done", timeout_ms=400)
    assert (result.timed_out, result.exit_code, result.signal) == (True, 0, None)


@pytest.mark.case("DR-09")
async def test_no_grandchild_outlives_the_command(bash: SandboxedBash, workspace: Path) -> None:
    def is_held() -> bool:
        with open(workspace / "held") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            return False

    (workspace / "grandchild.py").write_text(WITH_GRANDCHILD + "time.sleep(60)")
    task = await begin(bash, "python3 grandchild.py")
    await until_read(bash, task, "held")
    assert is_held()  # the control: it lives, and this is how that shows
    await bash.kill(task.id)
    await over(task)
    assert not is_held()


@pytest.mark.case("DR-10", "DR-35")
async def test_an_abort_is_no_timeout(bash: SandboxedBash, workspace: Path) -> None:
    signal = AbortSignal()
    running = asyncio.create_task(run(bash, "touch up; exec sleep 60", signal=signal))
    while not os.path.exists(workspace / "up"):
        await asyncio.wait({running}, timeout=0.01)
    signal.abort()
    result = await running
    assert (result.aborted, result.timed_out, result.signal) == (True, False, "SIGTERM")


@pytest.mark.case("DR-11", "DR-29")
async def test_what_is_aborted_before_is_never_spawned(bash: SandboxedBash, background_executor: Executor) -> None:
    said, silent, plain = AbortSignal(), AbortSignal(), asyncio.Event()
    said.abort("changed my mind")
    said.abort("too late")
    silent.abort()
    plain.set()
    for signal, reason in ((said, "changed my mind"), (silent, "aborted"), (plain, "aborted")):
        with pytest.raises(StockadeError, match=f"aborted before spawn: {reason}$"):
            await run(bash, "true", signal=signal)
        with pytest.raises(StockadeError, match="aborted before spawn"):
            await begin(bash, "true", signal=signal)
    assert (bash.list(), await background_executor.list()) == ((), ())


@pytest.mark.case("DR-12")
async def test_an_unusable_directory_is_named_with_the_reason(bash: SandboxedBash, workspace: Path) -> None:
    (workspace / "file").touch()
    for workdir, reason in (("missing", "ENOENT"), ("file", "ENOTDIR")):
        with pytest.raises(InvalidRequest, match=reason) as refused:
            await run(bash, "true", workdir=workdir)
        assert workdir in str(refused.value)
    with pytest.raises(InvalidRequest, match="outside the permitted root"):
        await run(bash, "true", workdir="/root")


@pytest.mark.case("DR-14", "DR-15", "DR-16", "DR-19")
async def test_input_is_what_was_given_or_at_its_end(bash: SandboxedBash) -> None:
    assert (await run(bash, "cat", stdin="all of it")).stdout.text == "all of it"
    assert (await run(bash, "cat; stat -L -c %F /dev/stdin")).stdout.text == "character special file\n"
    assert (await run(bash, "exit 7", stdin="x" * (1 << 20))).exit_code == 7


@pytest.mark.case("DR-18", "DR-31")
async def test_secrets_stay_outside_unless_they_are_given(workspace: Path, state: Path) -> None:
    environment = {"PLAIN": "seen", "AN_API_KEY": "k", "GH_TOKEN": "t", "client_secret": "s", "DB_PASSWORD": "p", "TERM": "xterm"}
    show = "echo $PLAIN/$AN_API_KEY/$GH_TOKEN/$client_secret/$DB_PASSWORD/$TERM"
    config = from_environment(state_dir=str(state))
    async with await SandboxedBash.open(
        cwd=workspace, config=config, environment=environment, policy=Policy(inherit_env=True)
    ) as inheriting:
        assert (await run(inheriting, show)).stdout.text == "seen/////dumb\n"
        given = {"GH_TOKEN": "mine", "TERM": "vt100"}
        assert (await run(inheriting, show, env=given)).stdout.text == "seen//mine///vt100\n"
    async with await SandboxedBash.open(cwd=workspace, config=config, environment=environment) as clean:
        assert (await run(clean, show)).stdout.text == "/////dumb\n"


@pytest.mark.case("DR-20", "DR-23", "DR-32", "DR-33")
async def test_a_long_stream_shows_its_tail_and_is_kept_whole(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_output_bytes=500)
    result = await run(bash, "seq 1000; python3 -c 'print(\"x\" * 100_000, end=str())' >&2")
    assert result.stdout.truncated
    assert len(result.stdout.text) <= 500
    assert result.stdout.text.endswith("\n999\n1000\n")
    assert "1\n2\n" not in result.stdout.text
    assert (result.stderr.truncated, result.stderr.text) == (True, "x" * 500)
    for output, whole in ((result.stdout, "".join(f"{number}\n" for number in range(1, 1_001))), (result.stderr, "x" * 100_000)):
        assert output.spill_path is not None
        spill = Path(output.spill_path)
        assert spill.read_text() == whole
        assert re.fullmatch(r".*/bank/jobs/[0-9a-z]{8}/(stdout|stderr)\.0\.log", output.spill_path)
        assert stat.S_IMODE(spill.stat().st_mode) == 0o600
        assert stat.S_IMODE(spill.parent.stat().st_mode) == 0o700


@pytest.mark.case("DR-21")
async def test_a_stream_that_just_fits_is_not_truncated(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_output_bytes=500)
    exact, over_it = await run(bash, "printf %500s"), await run(bash, "printf %501s")
    assert (len(exact.stdout.text), exact.stdout.truncated, exact.stdout.spill_path) == (500, False, None)
    assert (len(over_it.stdout.text), over_it.stdout.truncated) == (500, True)


async def test_a_tail_begins_at_a_character(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_output_bytes=10)
    result = await run(bash, "printf 'ééééééé%s' x")
    assert (result.stdout.text, result.stdout.truncated) == ("éééé" + "x", True)


@pytest.mark.case("DR-22", "DR-26")
async def test_a_spill_that_is_gone_is_not_named(background_executor: Executor, workspace: Path, state: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_output_bytes=100)
    task = await begin(bash, f"seq 1000; {AWAIT_GO} exit 0")
    await until_read(bash, task, "1000\n")
    for file in state.rglob("stdout.0.log"):
        file.unlink()
    (workspace / "go").touch()
    # Output that is lost ends a task as killed: an exit code 0 would hide it (U-17).
    assert (await over(task)).status == "killed"
    read = await bash.read_output(task.id)
    assert (read.stdout_spill_path, read.stderr_spill_path) == (None, None)


async def test_a_stream_longer_than_a_spill_may_be_is_not_named(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_output_bytes=100, max_spill_bytes=65_536)
    result = await run(bash, "seq 100000")
    assert (result.exit_code, result.stdout.truncated, result.stdout.spill_path) == (0, True, None)
    assert result.stdout.text.endswith("\n99999\n100000\n")


@pytest.mark.case("DR-30")
async def test_a_command_that_signals_itself_is_neither_timed_out_nor_aborted(bash: SandboxedBash) -> None:
    result = await run(bash, "kill -TERM $$; sleep 60")
    assert (result.signal, result.exit_code, result.timed_out, result.aborted) == ("SIGTERM", None, False, False)
    task = await over(await begin(bash, "kill -TERM $$; sleep 60"))
    assert (task.status, task.signal) == ("killed", "SIGTERM")


async def test_a_command_sees_its_directory_and_nothing_else_of_the_host(bash: SandboxedBash, workspace: Path) -> None:
    (workspace.parent / "beside").write_text("private")
    result = await run(bash, "echo mine > inside; cat ../beside; ls /root")
    assert result.exit_code != 0
    assert "private" not in result.stdout.text
    assert (workspace / "inside").read_text() == "mine\n"
