"""The job tools `job_output`, `job_list` and `job_kill`, and the notices to owners (J-11, J-12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Protocol

from pydantic import Field

from stockade.errors import InvalidRequest
from stockade.tools.bash_tools import Filled, SessionDisposed, Verbatim
from stockade.tools.job_runtime import JobRuntime, JobSnapshot
from stockade.tools.schemas import CallContext, Effects, Tool
from stockade.tools.toolset import Toolset

OUTPUT: Final = "job_output"
LIST: Final = "job_list"
KILL: Final = "job_kill"
NAMES: Final = (OUTPUT, LIST, KILL)

WAIT_MS: Final = 30_000
MAX_WAIT_MS: Final = 600_000
MAX_WAKES: Final = 3  # in a row, without a word of the user's
NOTICE_BYTES: Final = 1_000
NO_JOBS: Final = "(no background jobs)"
NO_OUTPUT: Final = "(no new output)"


class OutputParams(Verbatim):
    """Arguments of `job_output`."""

    job_id: Annotated[Filled, Field(description="The job to read.")]
    wait: Annotated[bool, Field(description="Wait for its end first.")] = False
    timeout_ms: Annotated[float | None, Field(gt=0, description="How long to wait, in milliseconds.")] = None


class ListParams(Verbatim):
    """Arguments of `job_list`: none."""


class KillParams(Verbatim):
    """Arguments of `job_kill`."""

    job_id: Annotated[Filled, Field(description="The job to end.")]
    reason: Annotated[str | None, Field(description="Why.")] = None


class JobTools:
    """The three tools on offer, from here until `close`."""

    def __init__(self, tools: Toolset, runtime: JobRuntime, *, wait_ms: float = WAIT_MS, max_wait_ms: float = MAX_WAIT_MS) -> None:
        """Raises: InvalidRequest where the default wait is longer than the longest."""
        if wait_ms > max_wait_ms:
            raise InvalidRequest(f"wait_ms {wait_ms:g} is longer than max_wait_ms {max_wait_ms:g}", field="wait_ms")
        self._tools, self._runtime = tools, runtime
        self._wait_ms, self._max_wait_ms = wait_ms, max_wait_ms
        an_id = 'pass {"job_id": "…"} with an id that job_list shows'
        tools.register(
            Tool(
                OUTPUT,
                "A background job's new output and its status; with wait it waits for the end first.",
                OutputParams,
                self._output,
                advice=an_id,
                effects=Effects(read_only=True),
            ),
            Tool(LIST, "The background jobs that you may see.", ListParams, self._list, effects=Effects(read_only=True, idempotent=True)),
            Tool(
                KILL,
                "Asks for the end of a background job; its output stays readable.",
                KillParams,
                self._kill,
                advice=an_id,
                effects=Effects(destructive=True, idempotent=True),
            ),
        )

    def close(self) -> None:
        """Takes the tools off the offer."""
        self._tools.unregister(*NAMES)

    async def _output(self, params: OutputParams, context: CallContext) -> Mapping[str, Any]:
        if params.wait:
            bound = self._wait_ms if params.timeout_ms is None else min(params.timeout_ms, self._max_wait_ms)
            await self._runtime.wait(params.job_id, context.session_id, bound, abort=context.abort)
        text, seen = await self._runtime.read(params.job_id, context.session_id)
        text = text or NO_OUTPUT
        return {"text": text + ("" if text.endswith("\n") else "\n") + seen.status_line}

    async def _list(self, params: ListParams, context: CallContext) -> Mapping[str, Any]:
        jobs = self._runtime.list(context.session_id)
        return {"text": "\n".join(f"{job.id} [{job.kind}] {job.status} — {job.label}" for job in jobs) or NO_JOBS}

    async def _kill(self, params: KillParams, context: CallContext) -> Mapping[str, Any]:
        if await self._runtime.kill(params.job_id, context.session_id, params.reason) == "requested":
            return {"text": f"requested cancellation of job {params.job_id}"}
        snapshot = self._runtime.get(params.job_id, context.session_id)
        return {"text": f"job {params.job_id} had already finished {snapshot.status_line}"}


class NoticedSession(Protocol):
    """A live conversation that jobs may speak to."""

    @property
    def is_idle(self) -> bool:
        """True while it waits for its user."""

    def wake(self, notice: str) -> object:
        """Begins a turn with the notice. Raises: SessionDisposed."""

    def inject(self, notice: str) -> object:
        """Puts the notice into the conversation, for the next turn. Raises: SessionDisposed."""


class JobNotices:
    """Tells each owner of the ends that it has not seen, once each; an idle one is woken, three times in a row at most (J-12)."""

    def __init__(self, runtime: JobRuntime, sessions: Callable[[str], NoticedSession | None], *, max_bytes: int = NOTICE_BYTES) -> None:
        self._sessions = sessions
        self._max_bytes = max_bytes
        self._wakes: dict[str, int] = {}
        self.close: Final = runtime.on_done(self._on_done)

    def user_input(self, owner: str) -> None:
        """The user has said something: the owner may be woken again."""
        self._wakes.pop(owner, None)

    def _on_done(self, job: JobSnapshot) -> None:
        session = None if job.owner is None or job.reported else self._sessions(job.owner)
        if session is None or job.owner is None:
            return
        notice = notice_text(job, self._max_bytes)
        woken = self._wakes.get(job.owner, 0)
        try:
            if session.is_idle and not job.quiet and woken < MAX_WAKES:
                self._wakes[job.owner] = woken + 1
                session.wake(notice)
            else:
                session.inject(notice)
        except SessionDisposed:
            pass  # nobody is left to be told


def notice_text(job: JobSnapshot, max_bytes: int) -> str:
    """The notice, with as much of the label as fits: the id and what to do are never cut."""
    head, tail = f"background job {job.id} is over {job.status_line}", f'; read its output with {OUTPUT} {{"job_id": "{job.id}"}}'
    room = max_bytes - len((head + tail + ": ").encode())
    label = job.label.encode()[: max(0, room)].decode("utf-8", "ignore")
    return f"{head}: {label}{tail}" if label else head + tail
