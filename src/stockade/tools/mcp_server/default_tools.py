"""The `default` surface: a shell line, what it wrote, and its end, in four tools that a model can keep in its head.

A command belongs to the client that started it (the context's session); others do not even learn that there is one. What a model
sees is text: see `answers`. Exit codes are part of it, and no error; an error is what kept the tool from doing its work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field

from stockade.bank.windows import StreamReader
from stockade.errors import InvalidRequest, NotInteractive, StateError, UnknownJob
from stockade.executor import Executor
from stockade.jobs.records import JobRecord
from stockade.policy.command import Terminal
from stockade.policy.model import Policy
from stockade.policy.quantities import format_bytes, format_seconds
from stockade.tools.bash_tools import Filled, Verbatim
from stockade.tools.cli.render import printable
from stockade.tools.mcp_server import answers, windows
from stockade.tools.mcp_server.handles import Handles
from stockade.tools.schemas import WHOLE, CallContext, Effects, Tool
from stockade.tools.toolset import Toolset

T = TypeVar("T")

BASH: Final = "bash"
OUTPUT: Final = answers.OUTPUT
INPUT: Final = "bash_input"
KILL: Final = "bash_kill"
SHELL: Final = "/bin/bash"
STREAM: Final = "output"  # both streams, in the order in which they were written

SHOWN: Final = 30_000  # characters of output in one answer, unless the call says otherwise
MOST_SHOWN: Final = 60_000
WAIT: Final = 50.0  # seconds; several clients give a call up after 60
MAX_WAIT: Final = 600.0
ANSWER_WAIT: Final = 1.0  # seconds that what was written has to be answered
LISTED: Final = 8  # commands that a refusal names
RECALLED: Final = 1_000  # jobs of earlier lives that keep their short ids

# Nobody sits at a terminal: no colours, no pagers, no questions, and output as it comes.
UNATTENDED: Final = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "CI": "1",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "DEBIAN_FRONTEND": "noninteractive",
}
SIGNALS: Final = {"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGKILL": 9, "SIGTERM": 15}

MaxOutput = Annotated[
    int | None,
    Field(ge=1_000, le=MOST_SHOWN, description=f"Characters of output to show, 1000 to {MOST_SHOWN}; {SHOWN} if left out."),
    WHOLE,
]
Handle = Annotated[Filled, Field(description="The id that bash gave.")]
_WAIT: Final = f"Seconds to wait for the end, at most {MAX_WAIT:g}"


class BashParams(Verbatim):
    """Arguments of `bash`."""

    command: Annotated[Filled, Field(description="The shell line.")]
    description: Annotated[str | None, Field(description="What it does, in a few words.")] = None
    timeout_s: Annotated[float | None, Field(gt=0, description="Seconds after which it is ended; never more than the limit.")] = None
    wait_s: Annotated[float | None, Field(ge=0, le=MAX_WAIT, description=f"{_WAIT}; then it goes on in the background.")] = None
    background: Annotated[bool, Field(description="Return at once; the command goes on.")] = False
    stdin: Annotated[str | None, Field(description="Its standard input, all of it; empty if left out.")] = None
    interactive: Annotated[bool, Field(description=f"Keep its standard input open, to be written with {INPUT}.")] = False
    tty: Annotated[bool, Field(description=f"Give it a terminal of 24 lines and 80 columns, typed into with {INPUT}.")] = False
    cwd: Annotated[str | None, Field(description="Where to run; relative to the workspace, where it starts otherwise.")] = None
    max_output: MaxOutput = None


class OutputParams(Verbatim):
    """Arguments of `bash_output`."""

    id: Handle
    from_line: Annotated[int | None, Field(ge=1, description="Read from this line on; 1 is the first."), WHOLE] = None
    from_byte: Annotated[int | None, Field(ge=0, description="Read from this byte on, where a line is too long to be shown."), WHOLE] = None
    tail: Annotated[int | None, Field(ge=1, le=10_000, description="Read the last so many lines."), WHOLE] = None
    grep: Annotated[
        str | None, Field(min_length=1, max_length=200, description="Only lines that contain this text (no pattern), whatever its case.")
    ] = None
    wait_s: Annotated[float | None, Field(ge=0, le=MAX_WAIT, description=f"{_WAIT}, before reading.")] = None
    max_output: MaxOutput = None


class InputParams(Verbatim):
    """Arguments of `bash_input`."""

    id: Handle
    text: Annotated[str, Field(description="What to write; a line ends with \\n. On a terminal \\u0003 is Ctrl-C, \\u0004 is Ctrl-D.")] = ""
    close: Annotated[bool, Field(description="Then end its standard input.")] = False
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT, description=f"{_WAIT}, before reading what it wrote.")] = ANSWER_WAIT
    max_output: MaxOutput = None


class KillParams(Verbatim):
    """Arguments of `bash_kill`."""

    id: Handle
    signal: Annotated[
        Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGKILL"],
        Field(description="What it gets first; what is left after the grace is killed."),
    ] = "SIGTERM"


class DefaultTools:
    """The tools over one open executor, for all clients of one server."""

    def __init__(self, executor: Executor, policy: Policy, *, wait: float = WAIT) -> None:
        """`policy` is what each command runs under; `wait` how many seconds a call waits for its end by itself."""
        self._executor = executor
        self._policy = policy.replace(merge_streams=True, env={**UNATTENDED, **policy.env})
        self._wait = wait
        self._handles = Handles()
        self._shown: dict[str, int] = {}  # by job: the byte up to which its output has been shown
        self.tools = Toolset()
        self.tools.register(*self._offered())

    async def recall(self) -> None:
        """Finds the commands of earlier lives on the same state directory again."""
        records = await self._executor.list(limit=RECALLED)
        self._handles.recall(record.id for record in reversed(records) if record.owner is not None)

    async def records(self, owner: str | None, *, limit: int) -> list[tuple[str, JobRecord]]:
        """The commands of a client with their short ids, newest first."""
        found = await self._executor.list(caller=owner, owner=owner, limit=limit)
        return [(self._handles.add(record.id), record) for record in found]

    async def look(self, handle: str, owner: str | None, question: Callable[[StreamReader], T]) -> T:
        """The answer to a question on a command's output. Raises: UnknownJob, where it is none of that client's."""
        record = await self._known(handle, owner)
        return await self._executor.look(record.id, STREAM, question, caller=owner)

    async def kill_all(self, owner: str) -> None:
        """Ends every command of a client."""
        await self._executor.kill_all(caller=owner)

    # Operations

    async def _bash(self, params: BashParams, context: CallContext) -> Mapping[str, Any]:
        called_off = asyncio.Event()
        job = await self._executor.start_with_policy(
            [SHELL, "-c", params.command],
            self._policy,
            owner=context.session_id,
            abort=called_off,
            cwd=params.cwd,
            stdin=None if params.stdin is None else params.stdin.encode(),
            interactive=params.interactive,
            tty=Terminal() if params.tty else None,
            timeout=params.timeout_s,
            label=params.description or params.command,
        )
        handle = self._handles.add(job.id)
        wait = 0.0 if params.background else params.wait_s if params.wait_s is not None else self._patience(params)
        try:
            record = await self._executor.wait(job.id, wait, caller=context.session_id)
            remark = None
            if not record.settled:
                chosen = params.background or params.interactive or params.tty
                remark = "in the background" if chosen else f"moved to the background: it goes on after the wait of {wait:g} s"
            return await self._told(record, handle, params.max_output, remark=remark)
        except asyncio.CancelledError:  # its id will never be told
            called_off.set()
            await asyncio.shield(self._executor.wait(job.id, caller=context.session_id))
            raise

    async def _output(self, params: OutputParams, context: CallContext) -> Mapping[str, Any]:
        ways = {"from_line": params.from_line, "from_byte": params.from_byte, "tail": params.tail}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1 or (params.grep is not None and given not in ([], ["from_line"])):
            raise InvalidRequest(
                f"{OUTPUT}: {', '.join([*given, *(['grep'] if params.grep is not None else [])])} do not go together",
                field=given[0],
                hint="give one of from_line, from_byte, tail and grep, or grep with from_line; none of them reads what is new",
            )
        record = await self._known(params.id, context.session_id)
        handle = self._handles.add(record.id)
        if params.wait_s and not record.settled:
            record = await self._executor.wait(record.id, params.wait_s, caller=context.session_id)
        limit = params.max_output or SHOWN
        if params.grep is not None:
            grep, first = params.grep, params.from_line or 1
            found = await self._look(record, lambda reader: windows.containing(reader, grep, limit, first=first))
            body = answers.NO_OUTPUT if found is None else answers.found(found, grep, handle)
        elif given:
            window = await self._look(record, lambda reader: _asked(reader, params, limit))
            body = answers.NO_OUTPUT if window is None else answers.output(window, handle) or _beyond(window)
        else:
            return await self._told(record, handle, params.max_output)
        return {"text": answers.answer(self._status(record, handle, with_id=True), body)}

    async def _input(self, params: InputParams, context: CallContext) -> Mapping[str, Any]:
        record = await self._known(params.id, context.session_id)
        handle = self._handles.add(record.id)
        try:
            if params.text:
                await self._executor.write_stdin(record.id, params.text.encode(), caller=context.session_id)
            if params.close:
                await self._executor.close_stdin(record.id, caller=context.session_id)
        except NotInteractive:
            raise InvalidRequest(
                f"{INPUT}: {handle} takes no input", field="id", hint=f"start it with {BASH} and interactive or tty, or give it stdin there"
            ) from None
        record = await self._executor.wait(record.id, params.wait_s, caller=context.session_id)
        return await self._told(record, handle, params.max_output)

    async def _kill(self, params: KillParams, context: CallContext) -> Mapping[str, Any]:
        record = await self._known(params.id, context.session_id)
        handle = self._handles.add(record.id)
        if record.settled:
            remark = "had ended before"
        else:
            record = await self._executor.kill(record.id, signal=SIGNALS[params.signal], caller=context.session_id)
            remark = "no process of it is left" if record.settled else "it is being ended"
        return await self._told(record, handle, None, remark=remark)

    def _patience(self, params: BashParams) -> float:
        """Who is to be written to first shows what it has to say; it would not end by itself."""
        return min(self._wait, ANSWER_WAIT) if params.interactive or params.tty else self._wait

    # Words

    async def _told(self, record: JobRecord, handle: str, limit: int | None, *, remark: str | None = None) -> Mapping[str, Any]:
        """How a command stands, and what it has written since it was last looked at."""
        if record.error is not None and record.started_at is None and record.error.code != "lost":
            hint = f"\nhint: {record.error.hint}" if record.error.hint else ""
            return {"isError": True, "error": f"could not be run: {record.error.message}{hint}"}
        start = self._shown.get(record.id, 0)
        window = await self._look(record, lambda reader: windows.since(reader, start, limit or SHOWN))
        body = "" if window is None else answers.output(window, handle)
        if window is not None:
            self._shown[record.id] = window.excerpt.end
        if not body:
            body = answers.NO_NEW_OUTPUT if start else answers.NO_OUTPUT
        first = self._status(record, handle, with_id=remark is not None or bool(start), remark=remark)
        more = () if record.settled else (f'[read on: {OUTPUT}(id="{handle}", wait_s=30); end it: {KILL}(id="{handle}")]',)
        return {"text": answers.answer(first, body, *answers.notes(record), *more)}

    def _status(self, record: JobRecord, handle: str, *, with_id: bool, remark: str | None = None) -> str:
        return answers.status(record, handle, time.time(), with_id=with_id, remark=remark)

    async def _look(self, record: JobRecord, question: Callable[[StreamReader], T]) -> T | None:
        """None where it never came to have output."""
        try:
            return await self._executor.look(record.id, STREAM, question)
        except (UnknownJob, StateError):
            if record.settled:
                return None
            raise

    async def _known(self, handle: str, owner: str | None) -> JobRecord:
        job_id = self._handles.job(handle.strip())
        if job_id is not None:
            try:
                record = await self._executor.get(job_id, caller=owner)
            except UnknownJob:
                pass
            else:
                if record.owner == owner:
                    return record
        raise await self._unknown(handle, owner)

    async def _unknown(self, handle: str, owner: str | None) -> UnknownJob:
        known = await self.records(owner, limit=50)
        now = time.time()
        running = [
            f"{name} ({printable(record.label or 'command')}, {answers.duration(now - record.created_at)})"
            for name, record in known
            if not record.settled
        ]
        ended = [f"{name} ({record.sentence()})" for name, record in known if record.settled]
        parts = [f"running: {', '.join(running[:LISTED]) or 'none'}"]
        parts += [f"ended: {', '.join(ended[:LISTED])}"] if ended else []
        return UnknownJob(f"no command has the id {handle[:80]!r}; {'; '.join(parts)}", field="id")

    # Schemas

    def _offered(self) -> tuple[Tool[Any], ...]:
        an_id = f'pass {{"id": "…"}} with an id that {BASH} gave'
        return (
            Tool(
                BASH,
                f"Runs a shell line with bash in a sandbox, and shows how it ended and what it wrote (stdout and stderr together). "
                f"It is ended with everything it has started. A command that lasts longer than {self._wait:g} s (wait_s) goes on in "
                f"the background: read it with {OUTPUT}, end it with {KILL}. All of its output is kept, and {SHOWN:,} characters are "
                f"shown. {_limits(self._policy)}",
                BashParams,
                self._bash,
                advice='pass {"command": "ls -l"}',
                effects=Effects(destructive=True, open_world=True),
            ),
            Tool(
                OUTPUT,
                "Shows how a command stands, running or ended, and what it has written since it was last looked at; or any part of its "
                "output: from a line on, the last lines, the lines that contain a text.",
                OutputParams,
                self._output,
                advice=an_id,
                effects=Effects(read_only=True),
            ),
            Tool(
                INPUT,
                "Writes to the standard input of a command that runs with interactive or tty, and shows what it wrote after that.",
                InputParams,
                self._input,
                advice=f'pass {{"id": "…", "text": "1 + 1\\n"}} with an id that {BASH} gave',
                effects=Effects(destructive=True, open_world=True),
            ),
            Tool(
                KILL,
                "Ends a command with every process that it has started, and returns when none is left.",
                KillParams,
                self._kill,
                advice=an_id,
                effects=Effects(destructive=True, idempotent=True),
            ),
        )


def _asked(reader: StreamReader, params: OutputParams, limit: int) -> windows.Window:
    if params.tail is not None:
        return windows.last_lines(reader, params.tail, limit)
    return windows.onwards(reader, limit, line=params.from_line, byte=params.from_byte)


def _beyond(window: windows.Window) -> str:
    return f"(nothing there: the output has {window.total_lines:,} lines, {window.total_bytes:,} bytes)"


def _limits(policy: Policy) -> str:
    limits = policy.limits
    parts = [
        "no time limit" if limits.wall_time is None else f"at most {format_seconds(limits.wall_time)}",
        "no memory limit" if limits.memory is None else f"{format_bytes(limits.memory)} of memory",
        f"{limits.processes} processes",
        f"{format_bytes(limits.output)} of output",
    ]
    network = "its own loopback" if policy.network == "loopback" else "none"
    writable = [path for path in (policy.workspace, *policy.rw) if path is not None]
    readable = f"; read-only: {', '.join(policy.ro)}" if policy.ro else ""
    return f"Limits: {', '.join(parts)}. Network: {network}. Writable: {', '.join([*writable, '/tmp', '~'])}{readable}."
