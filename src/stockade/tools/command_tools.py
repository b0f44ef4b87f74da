"""The four tools of contract N over a host of background commands (1A.12): one schema and one operation each.

A model may shorten the time budget and never widen it; environment, label, output cap and signal are not its to choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from stockade.bank.windows import DEFAULT_CHARS, MAX_CHARS, clamp
from stockade.tools import command_checks
from stockade.tools.schemas import WHOLE, CallContext, Effects, Params, Tool
from stockade.tools.wire import CommandStatus

if TYPE_CHECKING:
    from stockade.tools.commands import BackgroundCommands

RUN: Final = "run_command_bg"
STATUS: Final = "command_status"
OUTPUT: Final = "command_output"
KILL: Final = "command_kill"
NAMES: Final = (RUN, STATUS, OUTPUT, KILL)

MAX_WAIT_MS: Final = 600_000  # U-33
_NO_SUCH_TIME: Final = 1 << 53

_ANY_EXECUTABLE: Final = 'pass {"argv": ["git", "status"]}: the executable first, then one entry per argument, never one command string'

TaskId = Annotated[str, Field(description="The taskId that run_command_bg returned.")]


class RunParams(Params):
    """Arguments of `run_command_bg`."""

    argv: Annotated[list[str], Field(description="The executable, then one entry per argument. There is no shell.")]
    cwd: Annotated[str | None, Field(description="Where to run, inside the permitted root and relative to it. Its top if left out.")] = None
    timeout_ms: Annotated[
        int | None, Field(ge=1, description="A shorter time budget than the policy's, in milliseconds; never a longer one."), WHOLE
    ] = None


class StatusParams(Params):
    """Arguments of `command_status`."""

    task_id: TaskId
    wait_ms: Annotated[
        float | None, Field(description=f"Wait so many milliseconds for the end, at most {MAX_WAIT_MS}. Left out: answer now.")
    ] = None


class OutputParams(Params):
    """Arguments of `command_output`."""

    task_id: TaskId
    stream: Annotated[Literal["stdout", "stderr"], Field(description="Which stream to read.")] = "stdout"
    offset: Annotated[int, Field(description="First character to return."), WHOLE] = 0
    limit: Annotated[int, Field(description=f"Characters to return, at most {MAX_CHARS}."), WHOLE] = DEFAULT_CHARS


class KillParams(Params):
    """Arguments of `command_kill`."""

    task_id: TaskId


def command_tools(commands: BackgroundCommands) -> tuple[Tool[Any], ...]:
    """The four tools, in their order."""

    async def run(params: RunParams, context: CallContext) -> Mapping[str, Any]:
        policy = commands.get_policy()
        if policy is None:
            raise command_checks.no_policy()
        budget = policy.default_timeout_ms
        timeout_ms = None if params.timeout_ms is None else min(params.timeout_ms, budget)
        handle = await commands.start(
            params.argv,
            cwd="." if params.cwd is None else params.cwd,
            timeout_ms=timeout_ms,
            session_id=context.session_id,
        )
        return {**handle.wire(), **commands.counts(context.session_id).wire()}

    async def status(params: StatusParams, context: CallContext) -> Mapping[str, Any]:
        if params.wait_ms is None:
            return with_counts(await commands.status(params.task_id), context)
        bound = min(max(params.wait_ms, 0.0), float(MAX_WAIT_MS))
        return with_counts(await commands.wait(params.task_id, bound), context)

    async def output(params: OutputParams, context: CallContext) -> Mapping[str, Any]:
        offset = clamp(params.offset, 0, _NO_SUCH_TIME)
        page = await commands.read_output(params.task_id, params.stream, offset, clamp(params.limit, 1, MAX_CHARS))
        return page.wire()

    async def kill(params: KillParams, context: CallContext) -> Mapping[str, Any]:
        return with_counts(await commands.kill(params.task_id), context)

    def with_counts(status: CommandStatus, context: CallContext) -> Mapping[str, Any]:
        return {**status.wire(), **commands.counts(context.session_id).wire()}

    an_id = f'pass {{"taskId": "…"}} with an id that {RUN} returned'
    return (
        Tool(
            RUN,
            "Starts a command in the background and returns its taskId at once. argv is run as it is, without a shell, sealed from the "
            "host; only permitted executables are started. Its complete output is kept: look with command_status, read with "
            "command_output, end it with command_kill.",
            RunParams,
            run,
            advice=_ANY_EXECUTABLE,
            effects=Effects(destructive=True, open_world=True),
        ),
        Tool(
            STATUS,
            "How a background command stands: its state, exit code, the last lines of its output and, once it has ended, references to "
            "the whole of it. With waitMs it waits that long for the end.",
            StatusParams,
            status,
            advice=an_id,
            effects=Effects(read_only=True),
        ),
        Tool(
            OUTPUT,
            "Reads a window of a background command's stdout or stderr, while it runs and afterwards. While hasMore is true, read on "
            "with offset advanced by the length of the content received.",
            OutputParams,
            output,
            advice=an_id,
            effects=Effects(read_only=True, idempotent=True),
        ),
        Tool(
            KILL,
            "Ends a background command with everything it has started, and returns its status. One that has ended is left as it is; "
            "output up to the end stays readable.",
            KillParams,
            kill,
            advice=an_id,
            effects=Effects(destructive=True, idempotent=True),
        ),
    )
