"""The three tools of contract D over a bash executor: `bash`, `bash_output`, `bash_kill` (1B.4), for whatever executor it is.

A task belongs to the session that started it: its token is the gate, and the executor keeps it. Environment, input, owner and signal
are not a model's to choose.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Protocol

from pydantic import AfterValidator, ConfigDict, Field

from stockade.errors import NotAllowed
from stockade.seam import BashContext, BashExecRequest, BashExecSpec, BashExecutor, BashTask, OwnerToken, abort_reason
from stockade.tools.bash_text import PROMPT, notice_text, read_text, result_text
from stockade.tools.job_bash import start_bash_job
from stockade.tools.job_runtime import JobRuntime
from stockade.tools.schemas import CallContext, Effects, Params, Tool, refusal
from stockade.tools.toolset import Toolset

BASH: Final = "bash"
OUTPUT: Final = "bash_output"
KILL: Final = "bash_kill"
NAMES: Final = (BASH, OUTPUT, KILL)


class SessionDisposed(Exception):
    """Raised by a session that is asked to take a notice and is gone."""


class AgentSession(Protocol):
    """A live conversation: where its commands run by default, and who is told that a task is over."""

    @property
    def cwd(self) -> str | None:
        """Its working directory."""

    def notify(self, notice: str) -> object:
        """Takes a notice into the conversation. Raises: SessionDisposed."""


# The live session of a token; None where there is none any more.
SessionLookup = Callable[[str], AgentSession | None]


def _filled(value: str) -> str:
    if not value.strip():
        raise ValueError("it must not be blank")
    return value


Filled = Annotated[str, AfterValidator(_filled)]


class Verbatim(Params):
    """Base of arguments whose names on the wire are those of their fields, as contracts D and T have them."""

    model_config = ConfigDict(alias_generator=None)


class ForegroundParams(Verbatim):
    """Arguments of `bash` where nothing can be run in the background."""

    command: Annotated[Filled, Field(description="The shell command to run.")]
    description: Annotated[Filled, Field(description="What it does, in a few words; for display only.")]
    timeout_ms: Annotated[float | None, Field(alias="timeoutMs", gt=0, description="Time budget in milliseconds.")] = None
    workdir: Annotated[str | None, Field(description="Where to run; relative to the session's working directory.")] = None


class BashParams(ForegroundParams):
    """Arguments of `bash`."""

    run_in_background: Annotated[bool, Field(description="Return at once with an id instead of waiting for the end.")] = False


class TaskParams(Verbatim):
    """Arguments of `bash_output` and `bash_kill`."""

    task_id: Annotated[Filled, Field(description="The id that bash returned.")]


class BashTools:
    """The tools, on offer from here until `close`. Without an executor there are none.

    With `jobs`, background commands are jobs of that runtime, read with its tools, and `bash` is the only tool here (J-14).
    """

    prompt: Final = PROMPT

    def __init__(
        self,
        tools: Toolset,
        executor: BashExecutor | BashContext | None,
        *,
        sessions: SessionLookup | None = None,
        jobs: JobRuntime | None = None,
        enable_run_in_background: bool = True,
    ) -> None:
        """`sessions` finds the live session of a token, for its working directory and for notices."""
        self._tools = tools
        self._sessions: SessionLookup = sessions if sessions is not None else lambda token: None
        self._jobs = jobs
        self._background = enable_run_in_background
        self._unlisten: Callable[[], None] = lambda: None
        self._names: tuple[str, ...] = ()
        found = executor.executor if isinstance(executor, BashContext) else executor
        if found is None:
            return
        self._executor = found
        offered = self._offered()
        self._names = tuple(tool.name for tool in offered)
        tools.register(*offered)
        if jobs is None:
            self._unlisten = found.on_task_done(self._on_done)

    def close(self) -> None:
        """Takes the tools off the offer; tasks go on, and keep their owners (D-9)."""
        self._tools.unregister(*self._names)
        self._unlisten()

    def _offered(self) -> tuple[Tool[Any], ...]:
        background = (
            f" With run_in_background it returns an id at once; read with {OUTPUT}, end with {KILL}."
            if self._jobs is None
            else " With run_in_background it returns a job id at once; read with job_output, end with job_kill."
        )
        bash = Tool(
            BASH,
            "Runs a shell command with bash, sealed from the host, and returns its output; exit codes other than 0 are in a marker line "
            "at the end." + (background if self._background else ""),
            BashParams if self._background else ForegroundParams,
            self._bash,
            advice='pass {"command": "ls -l", "description": "List files"}',
            effects=Effects(destructive=True, open_world=True),
        )
        if self._jobs is not None or not self._background:
            return (bash,)
        an_id = f'pass {{"task_id": "…"}} with an id that {BASH} returned'
        return (
            bash,
            Tool(
                OUTPUT,
                "What a background task wrote since it was last read, and its status.",
                TaskParams,
                self._output,
                advice=an_id,
                effects=Effects(read_only=True),
            ),
            Tool(
                KILL,
                "Ends a background task with everything it has started.",
                TaskParams,
                self._kill,
                advice=an_id,
                effects=Effects(destructive=True, idempotent=True),
            ),
        )

    async def _bash(self, params: ForegroundParams, context: CallContext) -> Mapping[str, Any]:
        in_background = isinstance(params, BashParams) and params.run_in_background
        if context.abort is not None and context.abort.is_set():
            return refusal(f"{BASH}: aborted before spawn: {abort_reason(context.abort)}")
        spec = self._executor.resolve(
            BashExecRequest(
                command=params.command,
                workdir=self._workdir(params.workdir, context),
                timeout_ms=params.timeout_ms,
                # Once its id is out, a background command is no longer the call's to end (J-13).
                signal=None if in_background else context.abort,
                owner=None if context.session_id is None else OwnerToken(context.session_id),
            )
        )
        if in_background:
            return await self._start(spec, params, context)
        result = await self._executor.run(spec)
        if result.aborted:
            reason = "" if context.abort is None else f": {abort_reason(context.abort)}"
            return refusal(f"{BASH}: the command was aborted{reason}")
        return {"text": result_text(result)}

    async def _start(self, spec: BashExecSpec, params: ForegroundParams, context: CallContext) -> Mapping[str, Any]:
        if self._jobs is not None:
            job = await start_bash_job(self._jobs, self._executor, spec, label=params.description)
            return {"text": f"started background job {job}"}
        task = await self._executor.start(spec)
        return {"text": f"started background task {task.id}"}

    async def _output(self, params: TaskParams, context: CallContext) -> Mapping[str, Any]:
        self._check_owner(params.task_id, context)
        return {"text": read_text(await self._executor.read_output(params.task_id))}

    async def _kill(self, params: TaskParams, context: CallContext) -> Mapping[str, Any]:
        self._check_owner(params.task_id, context)
        killed = await self._executor.kill(params.task_id)
        return {"text": f"killed background task {params.task_id}" if killed else f"task {params.task_id} had already finished"}

    def _check_owner(self, task_id: str, context: CallContext) -> None:
        owner = self._executor.owner_of(task_id)
        if owner is not None and owner != context.session_id:
            raise NotAllowed(f"task {task_id} belongs to another session", field="task_id")

    def _workdir(self, workdir: str | None, context: CallContext) -> str | None:
        session = None if context.session_id is None else self._sessions(context.session_id)
        cwd = None if session is None else session.cwd
        if workdir is None:
            return cwd
        return workdir if cwd is None else posixpath.join(cwd, workdir)

    def _on_done(self, task: BashTask) -> None:
        owner = self._executor.owner_of(task.id)
        session = None if owner is None else self._sessions(owner)
        if session is None:
            return
        try:
            session.notify(notice_text(task, OUTPUT))
        except SessionDisposed:
            pass  # nobody is left to be told
