"""The shell tools of contract T: background shells, foreground bash, directories (1D; TB-01 to TB-07, TH-01 to TH-13, TU-02, TU-03).

Where a test says that something was stopped, it or its neighbour shows that it would have been seen going on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor
from stockade.errors import Closed, InvalidRequest, UnknownJob
from stockade.tools.builtins import create_builtin_tools
from stockade.tools.schemas import CallContext
from stockade.tools.shells import BackgroundShells
from stockade.tools.toolset import Toolset
from support.agents import PATIENCE
from support.bash import AWAIT_GO
from support.programs import python
from support.waiting import SLOWNESS

POLLS = 100
# A shell and its child, both deaf to SIGTERM.
DEAF_FAMILY = "trap '' TERM; sh -c 'trap \"\" TERM; echo child; sleep 60' & echo ready; wait; sleep 60"


@pytest.fixture
async def shells() -> AsyncIterator[BackgroundShells]:
    """A registry that is closed at the end."""
    shells = BackgroundShells()
    yield shells
    await shells.close_all()


@pytest.fixture
async def tools(background_executor: Executor, workspace: Path, shells: BackgroundShells) -> Toolset:
    """The tools with that registry, in the workspace."""
    return await create_builtin_tools(background_executor, background=shells, base_dir=workspace, kill_grace_ms=100)


async def bash(tools: Toolset, command: str, **arguments: Any) -> dict[str, Any]:
    return await tools.call("bash", {"command": command, **arguments})


async def begin(tools: Toolset, command: str, **arguments: Any) -> str:
    result = await bash(tools, command, run_in_background=True, **arguments)
    assert "isError" not in result, result
    return str(result["metadata"]["backgroundId"])


async def until(tools: Toolset, shell_id: str, text: str, *, status: str | None = None) -> dict[str, Any]:
    """Polls until the output so far has `text` in it, and the status is that one."""
    found = ""
    for _ in range(POLLS):
        result = await tools.call("bash_output", {"id": shell_id})
        found += result["output"]
        if text in found and status in (None, result["metadata"]["status"]):
            return {**result, "output": found}
        await asyncio.sleep(0.05)  # as the example does
    raise AssertionError(found)


async def ended(shells: BackgroundShells, shell_id: str) -> Any:
    """Its info once it is over."""
    async with asyncio.timeout(PATIENCE):
        while True:
            info = next(each for each in shells.list() if each.id == shell_id)
            if not info.running:
                return info
            await asyncio.sleep(0.01)


@pytest.mark.case("TB-01")
async def test_a_background_shell_is_polled_until_it_has_exited(tools: Toolset) -> None:
    shell_id = await begin(tools, "echo hello from the background")
    result = await until(tools, shell_id, "hello from the background", status="exited")
    assert result["metadata"] == {"status": "exited", "exitCode": 0}
    assert result["output"].endswith("[status: exited with code 0]")


@pytest.mark.case("TB-02")
async def test_a_family_that_ignores_the_signal_is_killed(tools: Toolset, shells: BackgroundShells) -> None:
    shell_id = await begin(tools, DEAF_FAMILY)
    await until(tools, shell_id, "child")
    killed = await tools.call("kill_shell", {"id": shell_id})
    assert killed["metadata"] == {"killed": True}
    later = await tools.call("bash_output", {"id": shell_id})
    assert (later["metadata"]["status"], later["metadata"]["exitCode"]) == ("killed", -1)
    assert later["output"].endswith("[status: killed]")
    assert [(info.running, info.killed, info.exit_code) for info in shells.list()] == [(False, True, -1)]
    again = await tools.call("kill_shell", {"id": shell_id})
    assert again["metadata"] == {"killed": True}


@pytest.mark.case("TB-03")
async def test_the_host_lists_and_kills_what_only_a_registry_offers(
    background_executor: Executor, workspace: Path, tools: Toolset, shells: BackgroundShells
) -> None:
    plain = await create_builtin_tools(background_executor, base_dir=workspace)
    assert plain.names == ("bash",)
    assert "there is no argument 'run_in_background'" in (await bash(plain, "true", run_in_background=True))["error"]
    assert tools.names == ("bash", "bash_output", "kill_shell")
    await begin(tools, "sleep 60")
    first = shells.list()[0]
    assert (first.command, first.running, first.exit_code, first.killed) == ("sleep 60", True, None, False)
    assert (await shells.killShell(first.id)).running is False
    assert shells.list()[0].running is False


@pytest.mark.case("TB-04")
async def test_a_signal_that_nobody_here_sent_is_an_exit(tools: Toolset, shells: BackgroundShells) -> None:
    shell_id = await begin(tools, "kill -KILL $$")
    info = await ended(shells, shell_id)
    assert (info.status, info.exit_code, info.killed) == ("exited", -1, False)
    result = await tools.call("bash_output", {"id": shell_id})
    assert result == {"output": "[status: exited with code -1]", "metadata": {"status": "exited", "exitCode": -1}}
    assert (await tools.call("kill_shell", {"id": shell_id}))["metadata"] == {"killed": False}


@pytest.mark.case("TB-05")
async def test_no_timeout_applies_in_the_background(tools: Toolset, workspace: Path) -> None:
    shell_id = await begin(tools, f"{AWAIT_GO} echo late", timeout=1)
    (workspace / "go").touch()
    assert (await until(tools, shell_id, "late", status="exited"))["metadata"]["exitCode"] == 0


@pytest.mark.case("TB-06")
async def test_closing_ends_all_shells_together(tools: Toolset, shells: BackgroundShells, background_executor: Executor) -> None:
    ids = [await begin(tools, DEAF_FAMILY) for _ in range(4)]
    for shell_id in ids:
        await until(tools, shell_id, "child")
    assert background_executor.counters().running == 4
    await asyncio.gather(shells.closeAll(), shells.close_all())
    assert [(info.id, info.status) for info in shells.list()] == [(shell_id, "killed") for shell_id in ids]
    assert background_executor.counters().running == 0
    assert "make a new BackgroundShells" in (await bash(tools, "true", run_in_background=True))["error"]
    assert (await bash(tools, "echo still")).get("output") == "still\n"


@pytest.mark.case("TB-07")
async def test_an_unknown_shell_is_an_error_in_tools_and_raised_to_the_host(tools: Toolset, shells: BackgroundShells) -> None:
    for name in ("bash_output", "kill_shell"):
        result = await tools.call(name, {"id": "none"})
        assert (result["isError"], "unknown background shell none" in result["error"]) == (True, True)
    with pytest.raises(UnknownJob, match="unknown background shell none"):
        await shells.kill_shell("none")


async def test_a_shells_streams_are_one_in_order(tools: Toolset) -> None:
    shell_id = await begin(tools, "echo one; echo two >&2; echo three")
    result = await until(tools, shell_id, "three", status="exited")
    assert result["output"].replace("[status: running]", "") == "one\ntwo\nthree\n[status: exited with code 0]"


async def test_a_shell_whose_executor_closes_is_killed(
    workspace: Path, state: Path, background_executor: Executor, shells: BackgroundShells
) -> None:
    tools = await create_builtin_tools(background_executor, background=shells, base_dir=workspace)
    shell_id = await begin(tools, "sleep 60")
    await background_executor.close()
    await shells.close_all()
    info = await ended(shells, shell_id)
    assert (info.command, info.status, info.exit_code) == ("sleep 60", "killed", -1)
    assert (await bash(tools, "true"))["isError"] is True


async def test_a_start_that_races_the_end_leaves_nothing(tools: Toolset, shells: BackgroundShells, background_executor: Executor) -> None:
    starts = [asyncio.create_task(bash(tools, "sleep 60", run_in_background=True)) for _ in range(4)]
    await asyncio.sleep(0)
    await shells.close_all()
    await asyncio.gather(*starts)
    assert [info.running for info in shells.list()].count(True) == 0
    assert background_executor.counters().running == 0
    with pytest.raises(Closed):
        shells.check_open()


# Foreground


@pytest.mark.case("TU-03", "TH-05")
async def test_a_command_succeeds_or_is_an_error_with_its_code(tools: Toolset, workspace: Path) -> None:
    assert await bash(tools, "echo out; echo err >&2") == {"output": "out\nerr\n", "metadata": {"shell": "/bin/sh -c", "exitCode": 0}}
    failed = await bash(tools, "echo before; exit 3")
    assert failed == {"isError": True, "error": "before\nexited with code 3", "metadata": {"shell": "/bin/sh -c", "exitCode": 3}}
    (workspace / "below").mkdir()
    assert (await bash(tools, "pwd", workdir="below"))["output"] == f"{workspace}/below\n"
    signaled = await bash(tools, "kill -TERM $$")
    assert (signaled["error"], signaled["metadata"]["exitCode"]) == ("exited with code -1", -1)
    assert (await bash(tools, r"printf '\377'"))["output"] == "\ufffd"
    assert (await bash(tools, "cat"))["output"] == ""  # input is at its end, not the host's
    for command in ("", " \n", "a\0b"):
        assert "failed inside" not in (await bash(tools, command))["error"]
    assert "workdir: it contains a NUL byte" in (await bash(tools, "true", workdir="a\0b"))["error"]


MARK = "(sleep 0.6; touch marker) & sleep 0.9; echo done"


@pytest.mark.case("TH-01", "TH-02", "TH-04")
async def test_a_timeout_ends_the_whole_job(tools: Toolset, workspace: Path) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    result = await bash(tools, f"echo so far; {MARK}", timeout=300)
    assert loop.time() - began < 1.5
    assert result["error"] == "so far\ntimed out after 300ms"
    assert (result["metadata"]["timedOut"], result["metadata"]["killedTree"]) == (True, True)
    # The control takes as long as the marker needs; after it, a survivor would have written one.
    control = workspace / "control"
    control.mkdir()
    assert (await bash(tools, MARK, workdir="control"))["output"] == "done\n"
    assert (control / "marker").exists()
    assert not (workspace / "marker").exists()


@pytest.mark.case("TH-03")
async def test_a_cancelled_call_ends_its_job(tools: Toolset, workspace: Path, background_executor: Executor) -> None:
    call = asyncio.create_task(bash(tools, "touch up; sleep 60; touch marker"))
    while not await asyncio.to_thread((workspace / "up").exists):
        await asyncio.wait({call}, timeout=0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert background_executor.counters().running == 0
    signal = asyncio.Event()
    aborted = asyncio.create_task(tools.call("bash", {"command": "sleep 60"}, CallContext(abort=signal)))
    await asyncio.sleep(0)
    signal.set()
    assert (await aborted)["error"].endswith("aborted: aborted")


@pytest.mark.case("TH-06")
async def test_a_shell_of_the_hosts_choice_is_used_verbatim(background_executor: Executor, workspace: Path) -> None:
    tools = await create_builtin_tools(background_executor, base_dir=workspace, shell=python("")[:-1])
    result = await bash(tools, "import sys; print(sys.argv)")
    assert result == {"output": "['-c']\n", "metadata": {"shell": "/usr/bin/python3 -c", "exitCode": 0}}
    for shell in ([], "bash -c", [""]):
        with pytest.raises(InvalidRequest, match="no argv prefix"):
            await create_builtin_tools(background_executor, shell=shell)
    missing = await create_builtin_tools(background_executor, base_dir=workspace, shell=["/bin/none", "-c"])
    assert "/bin/none" in (await bash(missing, "true"))["error"]


@pytest.mark.case("TH-07", "TU-02")
async def test_bash_can_be_switched_off(background_executor: Executor, shells: BackgroundShells, workspace: Path) -> None:
    options = {"background": shells, "base_dir": workspace}
    for off in ({"enabled": False}, {"tools": {"bash": False}}, {"enabled": False, "tools": {"bash": True}}):
        assert (await create_builtin_tools(background_executor, **options, **off)).names == ()  # type: ignore[arg-type]
    some = await create_builtin_tools(
        background_executor, background=shells, base_dir=workspace, tools={"kill_shell": False, "unknown": False}
    )
    assert some.names == ("bash", "bash_output")


@pytest.mark.case("TH-08", "TH-09", "TH-11")
async def test_the_base_directory_is_where_commands_run(
    background_executor: Executor, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    based = await create_builtin_tools(background_executor, base_dir=workspace)
    assert (await bash(based, "pwd; echo kept > here"))["output"] == f"{workspace}\n"
    assert (workspace / "here").read_text() == "kept\n"
    elsewhere = workspace / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for empty in (None, ""):
        tools = await create_builtin_tools(background_executor, base_dir=empty)
        assert (await bash(tools, "pwd"))["output"] == f"{elsewhere}\n"


@pytest.mark.case("TH-12", "TH-13", "TH-14")
async def test_confinement_refuses_what_leads_outside_and_serves_the_rest(background_executor: Executor, workspace: Path) -> None:
    base = workspace / "base"
    (base / "inside").mkdir(parents=True)
    (workspace / "base-evil").mkdir()
    (base / "link").symlink_to(workspace / "base-evil")
    (base / "within").symlink_to("inside")
    tools = await create_builtin_tools(background_executor, base_dir=base, confine_to_base_dir=True)
    for workdir in (None, "inside", str(base / "inside"), ".", "within"):
        assert (await bash(tools, "true", workdir=workdir)).get("isError") is None, workdir
    for workdir in ("..", "/etc", "../base-evil", "link", "link/missing", "missing/../../base-evil", "/root/missing"):
        refused = await bash(tools, "touch /tmp/x", workdir=workdir)
        assert "outside of the base directory" in refused["error"], workdir
        assert workdir in refused["error"]
    assert "ENOENT" in (await bash(tools, "true", workdir="missing"))["error"]
    began = time.monotonic()
    for workdir in ("a/" * 1_000_000, "../" * 1_000_000, "/" * 2_000_000 + "etc"):  # to follow these took minutes on a thread of all jobs
        refused = await bash(tools, "true", workdir=workdir)
        assert len(refused["error"]) < 2_000
    assert time.monotonic() - began < 5 * SLOWNESS
    with pytest.raises(InvalidRequest, match="confine_to_base_dir needs base_dir"):
        await create_builtin_tools(background_executor, confine_to_base_dir=True)


async def test_what_is_outside_of_the_base_directory_is_not_seen_even_unconfined(tools: Toolset) -> None:
    assert "outside the permitted root" in (await bash(tools, "true", workdir="/root"))["error"]


async def test_numbers_that_are_none_are_refused(background_executor: Executor, tools: Toolset) -> None:
    for value in (0, -1, float("nan"), True):
        with pytest.raises(InvalidRequest, match="kill_grace_ms must be a positive finite number"):
            await create_builtin_tools(background_executor, kill_grace_ms=value)
        assert "timeout: " in (await bash(tools, "true", timeout=value))["error"]


@pytest.mark.case("S1", "S2")
async def test_many_calls_at_once_see_only_their_own(tools: Toolset, background_executor: Executor) -> None:
    late = [bash(tools, "echo mine; sleep 60", timeout=300) for _ in range(15)]
    plain = [bash(tools, f"echo {number}; echo {number} >&2") for number in range(15)]
    results = await asyncio.gather(*late, *plain)
    assert {result["error"] for result in results[:15]} <= {"mine\ntimed out after 300ms", "timed out after 300ms"}
    assert [result["output"] for result in results[15:]] == [f"{number}\n{number}\n" for number in range(15)]
    assert background_executor.counters().running == 0


@pytest.mark.case("S3")
async def test_more_output_than_a_pipe_holds_is_no_deadlock(tools: Toolset) -> None:
    result = await bash(tools, "head -c 6000000 /dev/zero | tr '\\0' x; echo end; exec sleep 60", timeout=2_000)
    assert result["error"].endswith("xend\ntimed out after 2000ms")
    assert result["error"].startswith("[the first 5800004 bytes are left out]\n")


@pytest.mark.case("S5", "S6")
async def test_many_checks_and_many_cancelled_calls_leave_nothing(background_executor: Executor, workspace: Path) -> None:
    tools = await create_builtin_tools(background_executor, base_dir=workspace, confine_to_base_dir=True, kill_grace_ms=100)
    refused = await asyncio.gather(*(bash(tools, "true", workdir=f"../{number}") for number in range(500)))
    assert all("outside of the base directory" in result["error"] for result in refused)
    calls = [asyncio.create_task(bash(tools, "sleep 60")) for _ in range(20)]
    await asyncio.wait(calls, timeout=0.2)
    for call in calls:
        call.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True))
    assert background_executor.counters().running == 0
