"""The four tools as a model has them: on offer, in band, counted, never cached (1A.8, 1A.9, 1A.12; NL-23 to NL-27)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor
from stockade.errors import UnknownJob
from stockade.tools.checklist import Checklists, register_task_tools
from stockade.tools.commands import BackgroundCommands
from stockade.tools.schemas import CallContext
from support.agents import AWAIT_FILE, PATIENCE, host, policy, run, settle, start
from support.programs import python

FOUR = ("run_command_bg", "command_status", "command_output", "command_kill")


@pytest.mark.case("NL-23")
async def test_the_tools_are_opt_in_and_there_once(background_executor: Executor, workspace: Path) -> None:
    async with BackgroundCommands(background_executor) as commands:
        assert commands.tools.names == ()
        commands.set_policy(policy(workspace))
        assert commands.tools.names == ()
        commands.register_background_command_tools(policy(workspace))
        second = policy(workspace, allowed_executables=("/usr/bin/true",))
        commands.register_background_command_tools(second)
        assert commands.tools.names == FOUR
        assert commands.get_policy() is second
        assert "is not allowed" in (await commands.tools.call("run_command_bg", {"argv": ["/bin/sh"]}))["error"]


async def test_the_tools_have_exactly_the_arguments_of_the_contract(commands: BackgroundCommands) -> None:
    shapes = {tool.name: tool.shape for tool in commands.tools}
    assert shapes == {
        "run_command_bg": "{argv: string[], cwd?: string, timeoutMs?: integer}",
        "command_status": "{taskId: string, waitMs?: number}",
        "command_output": "{taskId: string, stream?: stdout|stderr, offset?: integer, limit?: integer}",
        "command_kill": "{taskId: string}",
    }
    for described in commands.tools.anthropic():
        assert described["input_schema"]["additionalProperties"] is False


@pytest.mark.case("NL-24")
async def test_refusals_are_in_band_and_results_carry_the_counters(commands: BackgroundCommands) -> None:
    call = commands.tools.call
    refused = await call("run_command_bg", {"argv": ["rm"]})
    assert refused.keys() == {"isError", "error"}
    assert refused["isError"] is True
    assert 'Executable "rm" is not allowed' in refused["error"]
    unknown = await call("command_status", {"taskId": "nope"})
    assert 'No background command "nope"' in unknown["error"]
    assert "run_command_bg" in unknown["error"]

    started = await call("run_command_bg", {"argv": ["/bin/sh", "-c", "echo hello"]})
    assert started.keys() == {"taskId", "argv", "startedAt", "running", "finished"}
    assert (started["argv"], started["running"], started["finished"]) == (["/bin/sh", "-c", "echo hello"], 1, 0)
    status = await call("command_status", {"taskId": started["taskId"], "waitMs": PATIENCE * 1_000})
    assert (status["state"], status["exitCode"], status["tailPreview"]) == ("exited", 0, "[stdout tail]\nhello\n")
    assert (status["running"], status["finished"]) == (0, 0)
    assert status.keys() == {
        "taskId", "label", "state", "exitCode", "durationMs", "stdoutBytes", "stderrBytes", "stdout", "stderr", "tailPreview",
        "running", "finished",
    }  # fmt: skip
    assert status["stdout"].keys() == {"artifactId", "label", "kind", "sizeBytes", "preview", "readBackHint"}
    assert "use one of those" in (await call("command_status", {"taskId": "nope"}))["error"]


@pytest.mark.case("NL-24")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("run_command_bg", None),
        ("run_command_bg", []),
        ("run_command_bg", {}),
        ("run_command_bg", {"argv": "ls -l"}),
        ("run_command_bg", {"argv": ["ls", 1]}),
        ("run_command_bg", {"argv": ["ls"], "timeoutMs": 0}),
        ("run_command_bg", {"argv": ["ls"], "timeoutMs": "400"}),
        ("run_command_bg", {"argv": ["ls"], "env": {"A": "b"}}),
        ("run_command_bg", {"argv": ["ls"], "run_in_background": True}),
        ("command_status", {"taskId": 5}),
        ("command_status", {"taskId": "x", "waitMs": "soon"}),
        ("command_output", {"taskId": "x", "stream": "both"}),
        ("command_output", {"task_id": "x"}),
        ("command_kill", {"taskId": "x", "signal": "SIGKILL"}),
    ],
)
async def test_misshapen_arguments_are_told_the_shape_and_the_way_out(commands: BackgroundCommands, tool: str, arguments: object) -> None:
    refused = await commands.tools.call(tool, arguments)
    assert refused.keys() == {"isError", "error"}
    shape = next(each.shape for each in commands.tools if each.name == tool)
    for part in (f"{tool}: ", f"Expected {shape}.", "Recovery: pass {"):
        assert part in refused["error"]
    assert commands.counts() == (0, 0)


async def test_without_a_policy_the_shape_still_comes_first(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace) as commands:
        commands._policy = None
        assert "Expected {argv" in (await commands.tools.call("run_command_bg", {}))["error"]
        assert "setBackgroundCommandPolicy" in (await commands.tools.call("run_command_bg", {"argv": ["rm"]}))["error"]


async def test_an_unknown_tool_is_refused_in_band(commands: BackgroundCommands) -> None:
    assert "run_command_bg" in (await commands.tools.call("run_command", {}))["error"]


@pytest.mark.case("NL-25")
async def test_the_same_question_gets_a_fresh_answer(commands: BackgroundCommands, workspace: Path) -> None:
    started = await commands.tools.call("run_command_bg", {"argv": python(AWAIT_FILE + "await_file('go')")})
    question = {"taskId": started["taskId"]}
    assert (await commands.tools.call("command_status", question))["state"] in ("queued", "running")
    (workspace / "go").touch()
    async with asyncio.timeout(PATIENCE):
        while (await commands.tools.call("command_status", question))["state"] != "exited":
            pass  # each answer is a look of its own, and lets the command go on


@pytest.mark.case("NL-26")
async def test_the_checklist_carries_the_counters(background_executor: Executor, workspace: Path) -> None:
    checklists = Checklists()
    async with BackgroundCommands(background_executor, checklists=checklists) as commands:
        commands.register_background_command_tools(policy(workspace))
        register_task_tools(commands.tools, session=commands.session, checklists=checklists)

        async def listed() -> tuple[int, int]:
            answer = await commands.tools.call("tasks_list", {})
            return answer["commandsRunning"], answer["commandsFinished"]

        assert await listed() == (0, 0)
        started = await commands.tools.call("run_command_bg", {"argv": python(AWAIT_FILE + "await_file('go')")})
        assert await listed() == (1, 0)
        (workspace / "go").touch()
        async with asyncio.timeout(PATIENCE):
            while await listed() != (0, 1):
                await background_executor.list(limit=1)  # looks at nothing that counts as seen
        status = await commands.tools.call("command_status", {"taskId": started["taskId"]})
        assert (status["state"], status["finished"]) == ("exited", 0)
        assert await listed() == (0, 0)


@pytest.mark.case("NL-27")
async def test_commands_of_one_session_are_not_counted_in_another(background_executor: Executor, workspace: Path) -> None:
    checklists = Checklists()
    a, b = CallContext("session A"), CallContext("session B")
    async with BackgroundCommands(background_executor, checklists=checklists) as commands:
        commands.register_background_command_tools(policy(workspace))
        register_task_tools(commands.tools, session=commands.session, checklists=checklists)
        started = await commands.tools.call("run_command_bg", {"argv": ["/usr/bin/sleep", "60"]}, a)
        assert started["running"] == 1
        lists = [await commands.tools.call("tasks_list", {}, context) for context in (a, b)]
        assert [each["commandsRunning"] for each in lists] == [1, 0]
        killed = await commands.tools.call("command_kill", {"taskId": started["taskId"]}, b)
        assert (killed["state"], killed["running"], killed["finished"]) == ("killed", 0, 0)
        assert commands.counts("session A") == (0, 0)


async def test_what_counts_as_having_looked(commands: BackgroundCommands) -> None:
    """1A.8: a status, a wait, a kill and a read of the output, each after the end; none of them before."""
    for look in (
        commands.status,
        commands.wait,
        commands.kill,
        commands.read_output,
        lambda task: commands.read_output(task, "stderr"),
    ):
        handle = await commands.start(["/usr/bin/cat"], cwd=".")
        await commands.read_output(handle.task_id)
        assert sum(commands.counts()) == 1
        async with asyncio.timeout(PATIENCE):
            while commands.counts() != (0, 1):
                await asyncio.sleep(0)
        await look(handle.task_id)
        assert commands.counts() == (0, 0)


@pytest.mark.case("NX-05")
async def test_another_hosts_command_is_unknown(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace) as ours, host(background_executor, workspace) as theirs:
        foreign = (await run(theirs, ["/usr/bin/true"])).task_id
        with pytest.raises(UnknownJob, match="has not started any"):
            await ours.status(foreign)
        own = [(await run(ours, ["/usr/bin/true"])).task_id for _ in range(2)]
        for attempt in (ours.status, ours.wait, ours.kill, ours.read_output):
            with pytest.raises(UnknownJob) as unknown:
                await attempt(foreign)
            said = str(unknown.value)
            assert f'"{foreign}"' in said
            assert "use one of those" in said
            assert all(task in said for task in own)
        hosts_job = await background_executor.start(["/usr/bin/true"])
        with pytest.raises(UnknownJob):
            await ours.status(hosts_job.id)
        await hosts_job.wait()


@pytest.mark.case("NX-15")
async def test_a_model_can_shorten_the_budget_and_not_widen_it(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace, default_timeout_ms=500) as commands:
        for wanted, budget in ((60_000, "500ms budget"), (200, "200ms budget"), (None, "500ms budget")):
            started = await commands.tools.call("run_command_bg", {"argv": ["/usr/bin/sleep", "60"], "timeoutMs": wanted})
            status = await commands.tools.call("command_status", {"taskId": started["taskId"], "waitMs": PATIENCE * 1_000})
            assert status["state"] == "timeout"
            assert budget in status["error"]
        task = await start(commands, ["/usr/bin/sleep", "60"], timeout_ms=60_000)  # the host itself may
        assert (await commands.wait(task, 700)).state == "running"
        await commands.kill(task)


async def test_a_wait_is_clamped_and_a_null_is_left_out(commands: BackgroundCommands) -> None:
    task = await start(commands, ["/usr/bin/true"])
    status = await commands.tools.call("command_status", {"taskId": task, "waitMs": 1e300})
    assert status["state"] == "exited"
    assert await commands.tools.call("command_status", {"taskId": task, "waitMs": None}) == status
    assert await commands.tools.call("command_status", {"taskId": task, "waitMs": -5}) == status


async def test_a_cancelled_call_does_not_end_the_command(commands: BackgroundCommands) -> None:
    """U-32."""
    task = await start(commands, ["/usr/bin/sleep", "60"])
    waiting = asyncio.create_task(commands.tools.call("command_status", {"taskId": task, "waitMs": 60_000}))
    await commands.wait(task, 50)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not (await commands.status(task)).settled
    await commands.kill(task)
    assert (await settle(commands, task)).state == "killed"


async def call_all(commands: BackgroundCommands, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return [await commands.tools.call(name, arguments) for name in FOUR]


async def test_no_tool_ever_raises(commands: BackgroundCommands) -> None:
    for arguments in ({}, {"taskId": "\0"}, {"taskId": "x" * 10_000}, {"argv": [""]}, {"argv": ["/bin/sh", "\0"]}, {"argv": ["\ud800"]}):
        for answer in await call_all(commands, arguments):
            assert answer["isError"] is True
            assert len(answer["error"]) < 2_000
