"""The bash tools of contract D: texts, arguments, owners, notices (1B.4; DT-01 to DT-48, DT-61, DT-62, DI-01 to DI-03).

The texts are shown by an executor that does as it is told; what needs a command runs one, in a real sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor
from stockade.seam import AbortSignal, BashContext, BashTask, BashTaskId, BashTaskRead, CollectedOutput
from stockade.tools.bash_executor import SandboxedBash
from stockade.tools.bash_text import PROMPT, read_text, result_text, status_line
from stockade.tools.bash_tools import BashTools, SessionDisposed
from stockade.tools.schemas import CallContext
from stockade.tools.toolset import Toolset
from support.bash import AWAIT_GO, ScriptedBash, over, result_of, sandboxed, until_read

ALICE, BOB, NOBODY = CallContext("alice"), CallContext("bob"), CallContext()


@dataclass
class Conversation:
    """A live session."""

    cwd: str | None = None
    notices: list[str] = field(default_factory=list)
    failure: Exception | None = None

    def notify(self, notice: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.notices.append(notice)


def offered(bash: Any, **sessions: Conversation) -> Toolset:
    tools = Toolset()
    BashTools(tools, bash, sessions=sessions.get)
    return tools


async def call(tools: Toolset, name: str = "bash", context: CallContext = ALICE, **arguments: Any) -> str:
    if name == "bash":
        arguments = {"description": "A test", **arguments}
    result = await tools.call(name, arguments, context)
    return str(result["error"] if result.get("isError") else result["text"])


async def fails(tools: Toolset, name: str = "bash", context: CallContext = ALICE, **arguments: Any) -> str:
    if name == "bash":
        arguments = {"command": "true", "description": "A test", **arguments}
    result = await tools.call(name, arguments, context)
    assert result.get("isError") is True, result
    return str(result["error"])


@pytest.mark.case("DT-01", "DT-02", "DT-03", "DT-04")
async def test_a_result_is_the_output_and_a_marker(bash: SandboxedBash) -> None:
    tools = offered(bash)
    assert await call(tools, command="echo hi") == "hi\n"
    assert await call(tools, command="true") == "(no output)"
    assert await call(tools, command="echo out; echo err >&2") == "out\n[stderr]\nerr\n"
    assert await call(tools, command="printf out; printf err >&2") == "out\n[stderr]\nerr"
    failing = await tools.call("bash", {"command": "echo failing; exit 3", "description": "Fails"}, ALICE)
    assert failing == {"text": "failing\n[exit code: 3]"}


@pytest.mark.case("DT-05", "DT-06")
async def test_a_timeout_is_marked_first_and_always(bash: SandboxedBash) -> None:
    tools = offered(bash)
    assert await call(tools, command="exec sleep 60", timeoutMs=400) == "(no output)\n[timed out after 400ms]\n[killed by signal: SIGTERM]"
    trapped = 'exec python3 -c "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print(1, flush=True); time.sleep(60)"'
    assert await call(tools, command=trapped, timeoutMs=1_500) == "1\n[timed out after 1500ms]"


@pytest.mark.case("DT-07")
async def test_a_truncated_result_names_the_whole(background_executor: Executor, workspace: Path) -> None:
    said = await call(offered(sandboxed(background_executor, workspace, max_output_bytes=100)), command="seq 1000")
    *_, last, notice = said.splitlines()
    assert last == "1000"
    assert notice.startswith("[output truncated; full output: /")
    assert Path(notice.removeprefix("[output truncated; full output: ")[:-1]).stat().st_size == 3_893


@pytest.mark.case("DT-08", "DT-09")
async def test_a_call_may_name_a_directory(bash: SandboxedBash, workspace: Path) -> None:
    (workspace / "below").mkdir()
    tools = offered(bash)
    assert await call(tools, command="pwd", workdir="below") == f"{workspace}/below\n"
    assert "ENOENT" in await fails(tools, workdir="missing")


@pytest.mark.case("DT-10")
async def test_an_aborted_call_is_an_error(bash: SandboxedBash) -> None:
    tools, signal = offered(bash), AbortSignal()
    running = asyncio.create_task(fails(tools, context=CallContext("alice", signal), command="sleep 60"))
    await asyncio.sleep(0)
    signal.abort("stopped by the user")
    assert "aborted: stopped by the user" in await running
    assert "aborted before spawn: stopped by the user" in await fails(tools, context=CallContext("alice", signal))


@pytest.mark.case("DT-11", "DT-12", "DT-23")
@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("bash", {"description": "d"}, "command is missing"),
        ("bash", {"command": "true"}, "description is missing"),
        ("bash", {"command": 1, "description": "d"}, "command: "),
        ("bash", {"command": "true", "description": []}, "description: "),
        ("bash", {"command": "true", "description": "d", "timeoutMs": "5"}, "timeoutMs: "),
        ("bash", {"command": "true", "description": "d", "workdir": 5}, "workdir: "),
        ("bash", {"command": "true", "description": "d", "run_in_background": "yes"}, "run_in_background: "),
        ("bash", {"command": " ", "description": "d"}, "command: "),
        ("bash", {"command": "true", "description": ""}, "description: "),
        ("bash", {"command": "true", "description": "d", "timeoutMs": -1}, "timeoutMs: "),
        ("bash", {"command": "true", "description": "d", "timeoutMs": float("nan")}, "timeoutMs: "),
        ("bash_output", {}, "task_id is missing"),
        ("bash_output", {"task_id": 5}, "task_id: "),
        ("bash_kill", {"task_id": ""}, "task_id: "),
        ("bash_kill", "bash-1", "one object"),
    ],
)
async def test_misshapen_arguments_are_refused_by_name(name: str, arguments: object, named: str) -> None:
    executor = ScriptedBash()
    result = await offered(executor).call(name, arguments, ALICE)
    assert result["isError"] is True
    assert named in result["error"]
    assert (executor.ran, executor.started) == ([], [])


@pytest.mark.case("DT-61", "DT-62")
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("extra", ["env", "stdin", "owner", "signal"])
async def test_what_is_not_a_models_to_choose_is_refused(extra: str, background: bool) -> None:
    executor = ScriptedBash()
    assert f"there is no argument '{extra}'" in await fails(offered(executor), run_in_background=background, **{extra: "x"})
    assert (executor.ran, executor.started) == ([], [])


@pytest.mark.case("DT-13", "DT-14", "DT-15", "DT-16")
async def test_the_tools_come_and_go_with_their_layer() -> None:
    tools, context = Toolset(), BashContext()
    BashTools(tools, context).close()
    BashTools(tools, None)
    assert tools.names == ()
    withdraw = context.provide(ScriptedBash())
    layer = BashTools(tools, context)
    assert tools.names == ("bash", "bash_output", "bash_kill")
    shapes = [tool.shape for tool in tools]
    assert shapes == [
        "{command: string, description: string, timeoutMs?: number, workdir?: string, run_in_background?: boolean}",
        "{task_id: string}",
        "{task_id: string}",
    ]
    assert (layer.prompt.order, "[exit code: N]" in PROMPT.text) == (105, True)
    layer.close()
    assert tools.names == ()
    withdraw()


@pytest.mark.case("DT-17", "DT-18")
async def test_a_background_task_is_polled(bash: SandboxedBash, workspace: Path) -> None:
    tools = offered(bash)
    said = await call(tools, command=f"echo first; {AWAIT_GO} echo second", run_in_background=True)
    assert said == "started background task bash-1"
    task = bash.list()[0]
    first = ""
    while "first" not in first:
        first = await call(tools, "bash_output", task_id="bash-1")
    assert first == "first\n[status: running]"
    (workspace / "go").touch()
    await over(task)
    assert await call(tools, "bash_output", task_id="bash-1") == "second\n[status: completed, exit code: 0]"
    assert await call(tools, "bash_output", task_id="bash-1") == "(no new output)\n[status: completed, exit code: 0]"


@pytest.mark.case("DT-19")
async def test_a_lossy_read_names_the_whole(background_executor: Executor, workspace: Path) -> None:
    bash = sandboxed(background_executor, workspace, max_output_bytes=100)
    tools = offered(bash)
    await call(tools, command="seq 1000; seq 1000 >&2", run_in_background=True)
    await over(bash.list()[0])
    *_, notice, status = (await call(tools, "bash_output", task_id="bash-1")).splitlines()
    assert notice.startswith("[some output was dropped from memory; full output: /")
    assert ", /" in notice
    assert status == "[status: completed, exit code: 0]"


@pytest.mark.case("DT-20")
def test_a_lossy_read_without_a_file_says_so() -> None:
    task = BashTask(BashTaskId("bash-1"), "c")
    assert read_text(BashTaskRead(task=task, delta="tail", lossy=True)) == (
        "tail\n[some output was dropped from memory; full output: (unavailable)]\n[status: running]"
    )


@pytest.mark.case("DT-21", "DT-22")
async def test_a_kill_says_what_it_did(bash: SandboxedBash) -> None:
    tools = offered(bash)
    await call(tools, command="echo up; exec sleep 60", run_in_background=True)
    await until_read(bash, bash.list()[0], "up")
    assert await call(tools, "bash_kill", task_id="bash-1") == "killed background task bash-1"
    await over(bash.list()[0])
    assert await call(tools, "bash_kill", task_id="bash-1") == "task bash-1 had already finished"
    assert await call(tools, "bash_output", task_id="bash-1") == "(no new output)\n[status: killed by SIGTERM]"
    for name in ("bash_output", "bash_kill"):
        assert 'unknown bash task "bash-9"' in await fails(tools, name, task_id="bash-9")


@pytest.mark.case("DT-24", "DI-03")
async def test_the_owner_is_told_once_that_a_task_is_over(bash: SandboxedBash, workspace: Path) -> None:
    alice, bob = Conversation(), Conversation()
    tools = offered(bash, alice=alice, bob=bob)
    await call(tools, command=f"{AWAIT_GO} exit 2", run_in_background=True)
    assert await call(tools, "bash_output", task_id="bash-1") == "(no new output)\n[status: running]"
    assert alice.notices == []
    (workspace / "go").touch()
    await over(bash.list()[0])
    assert alice.notices == ["background task bash-1 is over [status: completed, exit code: 2]; read its output with bash_output"]
    assert bob.notices == []


@pytest.mark.case("DT-25", "DT-26", "DT-27", "DT-28")
async def test_a_notice_that_reaches_nobody_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    executor = ScriptedBash()
    sessions = {"gone": Conversation(failure=SessionDisposed()), "broken": Conversation(failure=RuntimeError("no socket"))}
    tools = Toolset()
    BashTools(tools, executor, sessions=sessions.get)
    told: list[str] = []
    executor.on_task_done(lambda task: told.append(task.id))
    with caplog.at_level(logging.ERROR, "stockade"):
        for owner in ("gone", "never", None):
            await call(tools, context=CallContext(owner), command="work", run_in_background=True)
        for task in executor.list():
            executor.finish(task, exit_code=0)
        assert caplog.text == ""
        await call(tools, context=CallContext("broken"), command="work", run_in_background=True)
        executor.finish(executor.list()[-1], exit_code=0)
    assert "no socket" in caplog.text
    assert len(told) == 4


@pytest.mark.case("DT-29", "DT-30", "DT-31", "DT-32", "DT-33", "DT-34")
async def test_a_task_is_its_owners(bash: SandboxedBash) -> None:
    tools = offered(bash)
    await call(tools, command="sleep 60", run_in_background=True)
    await call(tools, context=NOBODY, command="true", run_in_background=True)
    await call(tools, context=CallContext(""), command="true", run_in_background=True)
    await over(bash.list()[1])

    async def is_refused(task_id: str, *callers: CallContext) -> None:
        for caller in callers:
            for name in ("bash_output", "bash_kill"):
                assert await fails(tools, name, caller, task_id=task_id) == f"task {task_id} belongs to another session"

    await is_refused("bash-1", BOB, NOBODY, CallContext(""))
    await is_refused("bash-3", ALICE, NOBODY)  # the empty string is an owner
    for caller in (ALICE, BOB, NOBODY):
        assert "completed" in await call(tools, "bash_output", caller, task_id="bash-2")
    assert await call(tools, "bash_kill", CallContext("alice"), task_id="bash-1") == "killed background task bash-1"
    await over(bash.list()[0])
    tools = offered(bash)  # another layer on the same executor
    await is_refused("bash-1", BOB)
    assert "killed" in await call(tools, "bash_output", task_id="bash-1")


@pytest.mark.case("DT-35", "DT-36", "DT-37", "DT-38", "DT-39")
async def test_a_session_has_a_directory_of_its_own() -> None:
    executor = ScriptedBash()
    tools = offered(executor, alice=Conversation(cwd="/a"), bob=Conversation(cwd="/b"), carol=Conversation())
    for context, workdir in (
        (ALICE, None),
        (ALICE, "/abs"),
        (ALICE, "below"),
        (BOB, "below"),
        (CallContext("carol"), None),
        (NOBODY, None),
    ):
        await call(tools, context=context, command="pwd", workdir=workdir)
        await call(tools, context=context, command="pwd", workdir=workdir, run_in_background=True)
    expected = ["/a", "/abs", "/a/below", "/b/below", "/the/default", "/the/default"]
    assert [spec.workdir for spec in executor.ran] == expected
    assert [spec.workdir for spec in executor.started] == expected
    assert [spec.owner for spec in executor.started] == ["alice", "alice", "alice", "bob", "carol", None]


CUT = CollectedOutput("tail", truncated=True, spill_path="/spill")
GONE = CollectedOutput("tail\n", truncated=True)


@pytest.mark.case("DT-40", "DT-41", "DT-42", "DT-43", "DT-44", "DT-45", "DT-46")
@pytest.mark.parametrize(
    ("result", "text"),
    [
        (result_of("out"), "out"),
        (result_of("", "err"), "[stderr]\nerr"),
        (result_of("out\n", "err", exit_code=1), "out\n[stderr]\nerr\n[exit code: 1]"),
        (result_of(exit_code=None, signal="SIGKILL"), "(no output)\n[killed by signal: SIGKILL]"),
        (result_of("out", timed_out=True, timeout_ms=1_500.5), "out\n[timed out after 1500.5ms]"),
        (result_of(stdout=CUT, exit_code=2), "tail\n[output truncated; full output: /spill]\n[exit code: 2]"),
        (result_of("out", stderr=GONE), "out\n[stderr]\ntail\n[output truncated; full output: (unavailable)]"),
    ],
)
def test_results_are_rendered_to_the_letter(result: Any, text: str) -> None:
    assert result_text(result) == text


@pytest.mark.case("DT-47", "DT-48")
def test_a_status_is_shown_even_where_little_is_known() -> None:
    assert status_line(BashTask(BashTaskId("b"), "c", "killed")) == "[status: killed]"
    assert status_line(BashTask(BashTaskId("b"), "c", "killed", None, "SIGTERM")) == "[status: killed by SIGTERM]"
    assert status_line(BashTask(BashTaskId("b"), "c", "completed")) == "[status: completed, exit code: 0]"


@pytest.mark.case("DI-01", "DI-02")
async def test_an_agents_turns_build_on_each_other(bash: SandboxedBash) -> None:
    tools = offered(bash, alice=Conversation())
    script = ["echo 'exit 3' > job.sh", "cat job.sh", "sh job.sh", "rm job.sh; ls"]
    assert [await call(tools, command=command) for command in script] == [
        "(no output)",
        "exit 3\n",
        "(no output)\n[exit code: 3]",
        "(no output)",
    ]
