"""A checklist that outlives the conversation's memory: `tasks_create`, `tasks_update`, `tasks_list` (1A.10).

Lists are kept by session in a `Checklists` store and shared by every host that uses the store; `SHARED` is the one that hosts use
unless they say otherwise. A state is a frozen value: what a reader holds never changes and never changes the list.

Every answer is the whole list with its counts, and with the commands and delegates that run or wait to be looked at: this is how a
model that has forgotten what it started finds out.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from stockade.errors import InvalidRequest
from stockade.tools.schemas import CallContext, Effects, Params, Tool
from stockade.tools.sessions import HostSession
from stockade.tools.toolset import Toolset

Status = Literal["pending", "in_progress", "done", "closed"]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
NAMES: Final = ("tasks_create", "tasks_update", "tasks_list")

MAX_TASKS: Final = 1_000  # of one session: an answer repeats them all
MAX_TEXT: Final = 2_000  # characters of a title or a note

Counters = tuple[int, int]  # (still at work, ended and not yet looked at), of one session
CounterSource = Callable[[str], Counters | Awaitable[Counters]]
SourceKind = Literal["commands", "delegates"]

_LOG: Final = logging.getLogger("stockade")


@dataclass(frozen=True, slots=True)
class Task:
    """One line of a checklist; moments are milliseconds since the epoch."""

    id: str
    title: str
    status: Status
    note: str | None
    created_at: int
    updated_at: int

    def wire(self) -> dict[str, Any]:
        """The item as tools show it; `note` is there only where there is one."""
        note = {} if self.note is None else {"note": self.note}
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            **note,
            "createdAt": self.created_at,
            "updatedAt": self.updated_at,
        }


@dataclass(frozen=True, slots=True)
class TaskState:
    """The checklist of one session; a session without one has no items and `updated_at` 0."""

    items: tuple[Task, ...] = ()
    updated_at: int = 0

    @property
    def counts(self) -> dict[Status, int]:
        """How many items have each status, those with none included."""
        return {status: sum(item.status == status for item in self.items) for status in STATUSES}

    @property
    def unfinished(self) -> tuple[Task, ...]:
        """The items that are neither done nor closed: a host that may only end with all work done asks for these."""
        return tuple(item for item in self.items if item.status in ("pending", "in_progress"))

    def wire(self) -> dict[str, Any]:
        """The list and its counts as tools show them, in objects of the reader's own."""
        return {"items": [item.wire() for item in self.items], "counts": self.counts}


_EMPTY: Final = TaskState()


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


class Checklists:
    """The checklists of any number of sessions; safe in any thread. Reading never makes an entry."""

    def __init__(self, *, clock: Callable[[], int] = _milliseconds) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, TaskState] = {}
        self._sources: dict[SourceKind, list[CounterSource]] = {"commands": [], "delegates": []}

    def state(self, session: str) -> TaskState:
        """The list of `session`; never raises."""
        return self._states.get(session, _EMPTY)

    def clear(self, session: str) -> bool:
        """Forgets the list of `session`; True where there was one."""
        with self._lock:
            return self._states.pop(session, None) is not None

    def create(self, session: str, titles: Sequence[str]) -> TaskState:
        """Appends a pending item for each title that is not blank.

        Raises: InvalidRequest where none is left, or one is too long, or the list would be.
        """
        wanted = [stripped for title in titles if (stripped := title.strip())]
        if not wanted:
            raise InvalidRequest(
                "titles: there is no title to add",
                field="titles",
                hint='call tasks_create again with at least one title that is not blank, such as {"titles": ["write the tests"]}',
            )
        for title in wanted:
            _check_length(title, field="titles", tool="tasks_create")
        with self._lock:
            before = self.state(session)
            if len(before.items) + len(wanted) > MAX_TASKS:
                raise InvalidRequest(
                    f"titles: the list has {len(before.items)} tasks and would have {len(before.items) + len(wanted)}; "
                    f"{MAX_TASKS} is the most",
                    field="titles",
                    hint="add fewer and larger tasks, and finish those that are open with tasks_update",
                )
            now = self._clock()
            first = max((int(item.id[1:]) for item in before.items), default=0) + 1
            added = tuple(Task(f"t{number}", title, "pending", None, now, now) for number, title in enumerate(wanted, first))
            return self._keep(session, TaskState((*before.items, *added), now))

    def update(self, session: str, task_id: str, status: Status, note: str | None = None) -> TaskState:
        """Gives the item `task_id` a status, and a note where one is given that is not blank.

        Raises: InvalidRequest where there is no such item, or it is closed without a note.
        """
        said = (note or "").strip()
        _check_length(said, field="note", tool="tasks_update")
        with self._lock:
            before = self.state(session)
            if not before.items:
                raise InvalidRequest(
                    f"id: there is no task {task_id!r:.80}, the list is empty", field="id", hint="add tasks with tasks_create first"
                )
            if task_id not in {item.id for item in before.items}:
                raise InvalidRequest(
                    f"id: there is no task {task_id!r:.80}",
                    field="id",
                    hint=f"the ids are {_listed([item.id for item in before.items])}; use one of those, tasks_list shows the tasks",
                )
            if status == "closed" and not said:
                raise InvalidRequest(
                    f"note: {task_id} cannot be closed without a note that says why",
                    field="note",
                    hint="call tasks_update again with a note, or finish the task and mark it done",
                )
            now = self._clock()
            items = tuple(
                replace(item, status=status, note=said or item.note, updated_at=now) if item.id == task_id else item
                for item in before.items
            )
            return self._keep(session, TaskState(items, now))

    def _keep(self, session: str, state: TaskState) -> TaskState:
        self._states[session] = state
        return state

    def add_source(self, kind: SourceKind, source: CounterSource) -> Callable[[], None]:
        """Has `source` asked, by session, in every answer; returns what removes it. Several sources of a kind add up (U-27)."""
        sources = self._sources[kind]
        with self._lock:
            sources.append(source)

        def remove() -> None:
            with self._lock:
                if source in sources:
                    sources.remove(source)

        return remove

    async def counters(self, session: str) -> dict[str, int]:
        """What runs and what waits to be looked at in `session`; a source that fails counts 0 and is logged (U-27)."""
        running, finished = await self._sum("commands", session)
        pending, ready = await self._sum("delegates", session)
        return {"delegatesPending": pending, "delegatesReady": ready, "commandsRunning": running, "commandsFinished": finished}

    async def _sum(self, kind: SourceKind, session: str) -> Counters:
        answers = [await _asked(kind, source, session) for source in tuple(self._sources[kind])]
        return sum(first for first, _ in answers), sum(second for _, second in answers)


SHARED: Final = Checklists()


def get_task_state(session: str, *, checklists: Checklists = SHARED) -> TaskState:
    """The checklist of `session`, for host code; an unknown session's is empty."""
    return checklists.state(session)


def clear_task_state(session: str, *, checklists: Checklists = SHARED) -> bool:
    """Forgets the checklist of `session`; True where there was one, so a second call gives False."""
    return checklists.clear(session)


class CreateParams(Params):
    """Arguments of `tasks_create`."""

    titles: Annotated[list[str], Field(description="One short title for each task; they are added at the end of the list.")]


class UpdateParams(Params):
    """Arguments of `tasks_update`."""

    id: Annotated[str, Field(description="The task's id, such as t1.")]
    status: Annotated[Status, Field(description="closed means given up or no longer needed, and needs a note.")]
    note: Annotated[str | None, Field(description="What came of it, or why it was closed; replaces an earlier note.")] = None


class ListParams(Params):
    """`tasks_list` takes no arguments."""


def checklist_tools(session: HostSession, *, checklists: Checklists = SHARED) -> tuple[Tool[Any], ...]:
    """The three tools, for a host whose calls belong to `session`."""

    async def answer(of: str, state: TaskState) -> Mapping[str, Any]:
        return {**state.wire(), **await checklists.counters(of)}

    async def create(params: CreateParams, context: CallContext) -> Mapping[str, Any]:
        of = session.resolve(context)
        return await answer(of, checklists.create(of, params.titles))

    async def update(params: UpdateParams, context: CallContext) -> Mapping[str, Any]:
        of = session.resolve(context)
        return await answer(of, checklists.update(of, params.id, params.status, params.note))

    async def show(params: ListParams, context: CallContext) -> Mapping[str, Any]:
        of = session.resolve(context)
        return await answer(of, checklists.state(of))

    return (
        Tool(
            "tasks_create",
            "Adds tasks to this conversation's checklist. Existing tasks stay. Returns the whole list.",
            CreateParams,
            create,
            advice='pass {"titles": ["first task", "second task"]}, one entry for each task, to tasks_create',
        ),
        Tool(
            "tasks_update",
            "Sets the status of a task, and its note. Returns the whole list.",
            UpdateParams,
            update,
            advice=f'pass {{"id": "t1", "status": "done"}}, where status is one of {", ".join(STATUSES)}; tasks_list shows the ids',
        ),
        Tool(
            "tasks_list",
            "Shows the checklist, and how many background commands and delegates run or have ended and were not looked at yet.",
            ListParams,
            show,
            advice="pass {} to tasks_list",
            effects=Effects(read_only=True, idempotent=True),
        ),
    )


def register_task_tools(toolset: Toolset, *, session: HostSession | None = None, checklists: Checklists = SHARED) -> None:
    """Offers the three tools; once is enough, and a second call without a `session` of its own changes nothing.

    `session` is what the host's other tools use too, so that all of them mean the same conversation; None: one of their own.
    """
    if session is None and all(name in toolset for name in NAMES):
        return  # a new session would lose the sight of the list that the host has
    toolset.register(*checklist_tools(session or HostSession(), checklists=checklists))


async def _asked(kind: SourceKind, source: CounterSource, session: str) -> Counters:
    try:
        answer = source(session)
        first, second = await answer if inspect.isawaitable(answer) else answer
        return int(first), int(second)
    except Exception:  # noqa: BLE001 - a broken counter may not take the checklist with it
        _LOG.exception("the counters of %s could not be had for session %r; they count as 0", kind, session)
        return 0, 0


def _check_length(text: str, *, field: str, tool: str) -> None:
    if len(text) > MAX_TEXT:
        raise InvalidRequest(
            f"{field}: {text[:40]!r}… has {len(text)} characters, and {MAX_TEXT} is the most",
            field=field,
            hint=f"call {tool} again with a shorter one",
        )


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids) if len(ids) <= 20 else f"{ids[0]} to {ids[-1]}"
