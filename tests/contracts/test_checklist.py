"""The checklist tools, as a model calls them and as the host looks in (1A.10; NT-01 to NT-21)."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from stockade.tools.checklist import (
    MAX_TASKS,
    MAX_TEXT,
    NAMES,
    Checklists,
    Task,
    TaskState,
    clear_task_state,
    get_task_state,
    register_task_tools,
)
from stockade.tools.schemas import CallContext
from stockade.tools.sessions import HostSession
from stockade.tools.toolset import Toolset

NO_COUNTERS = {"delegatesPending": 0, "delegatesReady": 0, "commandsRunning": 0, "commandsFinished": 0}


@pytest.fixture
def checklists() -> Checklists:
    """A store whose clock says 1, 2, 3 …"""
    ticks = itertools.count(1)
    return Checklists(clock=lambda: next(ticks))


@pytest.fixture
def host() -> HostSession:
    return HostSession("here")


@pytest.fixture
def tools(checklists: Checklists, host: HostSession) -> Toolset:
    return registered(checklists, host)


@pytest.fixture
def shared_session() -> Iterator[str]:
    """A session of the store that all hosts of the process share."""
    yield "tests-of-the-shared-store"
    clear_task_state("tests-of-the-shared-store")


def registered(checklists: Checklists, host: HostSession | None = None) -> Toolset:
    toolset = Toolset()
    register_task_tools(toolset, session=host, checklists=checklists)
    return toolset


def item(number: int, title: str, status: str = "pending", *, created: int = 1, updated: int | None = None, **note: str) -> dict[str, Any]:
    """The item as tools show it."""
    moments = {"createdAt": created, "updatedAt": created if updated is None else updated}
    return {"id": f"t{number}", "title": title, "status": status, **note, **moments}


async def refused(tools: Toolset, name: str, arguments: object, context: CallContext | None = None) -> str:
    result = await tools.call(name, arguments, context)
    assert set(result) == {"isError", "error"}, result
    return str(result["error"])


async def titles(tools: Toolset, session: str | None = None) -> list[str]:
    result = await tools.call("tasks_list", {}, CallContext(session))
    return [each["title"] for each in result["items"]]


async def add(tools: Toolset, *wanted: str, session: str | None = None) -> dict[str, Any]:
    return await tools.call("tasks_create", {"titles": list(wanted)}, CallContext(session))


@pytest.mark.case("NT-01")
async def test_no_tool_is_there_until_it_is_registered(checklists: Checklists) -> None:
    toolset = Toolset()
    assert toolset.names == ()
    assert "there is no tool 'tasks_list'" in await refused(toolset, "tasks_list", {})
    register_task_tools(toolset, checklists=checklists)
    assert "tasks_list" in toolset


@pytest.mark.case("NT-02")
async def test_exactly_three_tools_however_often_they_are_registered(checklists: Checklists) -> None:
    toolset = registered(checklists)
    await add(toolset, "kept")
    register_task_tools(toolset, checklists=checklists)
    assert toolset.names == NAMES == ("tasks_create", "tasks_update", "tasks_list")
    assert await titles(toolset) == ["kept"]


@pytest.mark.case("NT-03")
async def test_ids_are_t1_t2_and_so_on(tools: Toolset) -> None:
    assert await add(tools, "one", "two") == {
        "items": [item(1, "one"), item(2, "two")],
        "counts": {"pending": 2, "in_progress": 0, "done": 0, "closed": 0},
        **NO_COUNTERS,
    }


@pytest.mark.case("NT-04")
async def test_creating_appends_and_drops_blanks(tools: Toolset) -> None:
    await add(tools, "one")
    result = await add(tools, "", "  two \n", "\t", "three")
    assert result["items"] == [item(1, "one"), item(2, "two", created=2), item(3, "three", created=2)]


@pytest.mark.case("NT-04")
@pytest.mark.parametrize("wanted", [[], ["", "  ", "\n"]])
async def test_nothing_to_add_is_refused(tools: Toolset, checklists: Checklists, wanted: list[str]) -> None:
    error = await refused(tools, "tasks_create", {"titles": wanted})
    assert "at least one title" in error
    assert "tasks_create" in error
    assert checklists.state("here") == TaskState()


@pytest.mark.case("NT-05")
async def test_an_update_sets_status_and_note(tools: Toolset) -> None:
    await add(tools, "one", "two")
    await tools.call("tasks_update", {"id": "t2", "status": "in_progress", "note": "  begun "})
    result = await tools.call("tasks_update", {"id": "t2", "status": "done", "note": " "})
    assert result["items"] == [item(1, "one"), item(2, "two", "done", updated=3, note="begun")]
    result = await tools.call("tasks_update", {"id": "t2", "status": "done", "note": "found it"})
    assert result["items"][1] == item(2, "two", "done", updated=4, note="found it")


@pytest.mark.case("NT-06")
async def test_counts_are_those_of_the_whole_list(tools: Toolset) -> None:
    await add(tools, "one", "two", "three", "four", "five")
    for number, status in enumerate(("in_progress", "done", "done"), 1):
        await tools.call("tasks_update", {"id": f"t{number}", "status": status})
    result = await tools.call("tasks_update", {"id": "t4", "status": "closed", "note": "not needed"})
    assert result["counts"] == {"pending": 1, "in_progress": 1, "done": 2, "closed": 1}


@pytest.mark.case("NT-07")
async def test_a_repeated_list_is_fresh(tools: Toolset) -> None:
    assert await titles(tools) == []
    await add(tools, "one")
    assert await titles(tools) == ["one"]
    await add(tools, "two")
    assert await titles(tools) == ["one", "two"]


@pytest.mark.case("NT-08")
async def test_an_unknown_id_is_answered_with_the_valid_ones(tools: Toolset) -> None:
    await add(tools, "one", "two")
    error = await refused(tools, "tasks_update", {"id": "t9", "status": "done"})
    assert "there is no task 't9'" in error
    assert "the ids are t1, t2" in error


@pytest.mark.case("NT-09")
@pytest.mark.parametrize("note", [{}, {"note": ""}, {"note": "  "}, {"note": None}])
async def test_closing_needs_a_note(tools: Toolset, note: dict[str, Any]) -> None:
    await add(tools, "one")
    error = await refused(tools, "tasks_update", {"id": "t1", "status": "closed", **note})
    assert "with a note, or finish the task and mark it done" in error
    result = await tools.call("tasks_update", {"id": "t1", "status": "closed", "note": "no longer needed"})
    assert result["items"] == [item(1, "one", "closed", updated=2, note="no longer needed")]


@pytest.mark.case("NT-10")
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("tasks_create", {}, ["titles is missing", "Expected {titles: string[]}"]),
        ("tasks_create", {"titles": "one"}, ["titles", "{titles: string[]}"]),
        ("tasks_create", {"titles": [1]}, ["titles.0", "{titles: string[]}"]),
        ("tasks_create", [], ["one object", "{titles: string[]}"]),
        ("tasks_update", {"id": "t1"}, ["status is missing", "pending|in_progress|done|closed", "tasks_list"]),
        ("tasks_update", {"id": "t1", "status": "finished"}, ["status", "pending|in_progress|done|closed", "tasks_list"]),
        ("tasks_update", {"id": 1, "status": "done"}, ["id", "pending, in_progress, done, closed", "tasks_list"]),
        ("tasks_list", {"all": True}, ["there is no argument 'all'", "tasks_list"]),
    ],
)
async def test_misshapen_arguments_are_refused_with_the_shape(tools: Toolset, name: str, arguments: object, said: list[str]) -> None:
    error = await refused(tools, name, arguments)
    assert [each for each in said if each not in error] == []


@pytest.mark.case("NT-11")
async def test_updating_an_empty_list_names_tasks_create(tools: Toolset, checklists: Checklists) -> None:
    error = await refused(tools, "tasks_update", {"id": "t1", "status": "done"})
    assert "tasks_create" in error
    assert checklists.clear("here") is False


@pytest.mark.case("NT-12")
async def test_sessions_are_independent(tools: Toolset) -> None:
    await add(tools, "mine", session="a")
    await add(tools, "yours", session="b")
    assert (await titles(tools, "a"), await titles(tools, "b"), await titles(tools)) == (["mine"], ["yours"], [])
    assert (await add(tools, "more", session="b"))["items"][1]["id"] == "t2"


@pytest.mark.case("NT-13")
async def test_the_host_sees_what_the_tool_shows(shared_session: str) -> None:
    toolset = Toolset()
    register_task_tools(toolset)
    await add(toolset, "one", "two", session=shared_session)
    shown = await toolset.call("tasks_update", {"id": "t1", "status": "done", "note": "easy"}, CallContext(shared_session))
    assert get_task_state(shared_session).wire() == {"items": shown["items"], "counts": shown["counts"]}
    assert get_task_state(shared_session).updated_at == shown["items"][0]["updatedAt"]


@pytest.mark.case("NT-14")
async def test_a_host_can_hold_the_end_back_until_all_is_done(tools: Toolset, checklists: Checklists) -> None:
    await add(tools, "one", "two")
    await tools.call("tasks_update", {"id": "t1", "status": "done"})
    assert [task.id for task in get_task_state("here", checklists=checklists).unfinished] == ["t2"]
    await tools.call("tasks_update", {"id": "t2", "status": "closed", "note": "moot"})
    assert get_task_state("here", checklists=checklists).unfinished == ()


@pytest.mark.case("NT-15")
async def test_an_unknown_session_is_empty_and_stays_unknown(tools: Toolset, checklists: Checklists) -> None:
    assert get_task_state("nobody") == TaskState(items=(), updated_at=0)
    assert await titles(tools, "nobody") == []
    assert checklists.clear("nobody") is False
    assert clear_task_state("nobody") is False


@pytest.mark.case("NT-16")
async def test_what_a_reader_holds_never_changes_the_list(tools: Toolset, checklists: Checklists) -> None:
    shown = await add(tools, "one")
    held = checklists.state("here")
    shown["items"][0]["title"] = "changed"
    shown["items"].clear()
    held.wire()["items"][0]["title"] = "changed"
    held.counts["pending"] = 9
    with pytest.raises(dataclasses.FrozenInstanceError):
        held.items[0].title = "changed"  # type: ignore[misc]
    await add(tools, "two")
    assert held == TaskState((Task("t1", "one", "pending", None, 1, 1),), 1)
    assert await titles(tools) == ["one", "two"]


@pytest.mark.case("NT-17")
async def test_clearing_is_true_once(tools: Toolset, checklists: Checklists) -> None:
    await add(tools, "one")
    assert (clear_task_state("here", checklists=checklists), clear_task_state("here", checklists=checklists)) == (True, False)
    assert await titles(tools) == []
    assert (await add(tools, "again"))["items"][0]["id"] == "t1"


@pytest.mark.case("NT-18")
async def test_placeholder_sessions_collapse_into_the_hosts_own(checklists: Checklists) -> None:
    host = HostSession()
    tools, others = registered(checklists, host), registered(checklists)
    await add(tools, "one", session="fallback-1")
    await add(tools, "two", session="fallback-22 ")
    await add(tools, "three", session="  ")
    host.session_id = "fallback-333"
    await add(tools, "four")
    assert await titles(tools) == ["one", "two", "three", "four"]
    assert host.default.startswith("checklist-default-")
    assert [task.title for task in checklists.state(host.default).items] == ["one", "two", "three", "four"]
    assert await titles(others) == []


@pytest.mark.case("NT-18")
async def test_what_only_resembles_a_placeholder_is_a_session(tools: Toolset) -> None:
    for session in ("0b9fd44e-4d0e-4f0c-8a51-6f2e9d2c8f33", "fallback-", "fallback-1a", "my-fallback-1", "fallback-1\n2"):
        await add(tools, "one", session=session)
        assert await titles(tools, session) == ["one"]
    assert await titles(tools) == []


@pytest.mark.case("NT-19")
async def test_a_declared_session_wins(tools: Toolset, checklists: Checklists, host: HostSession) -> None:
    await add(tools, "of the call", session="said")
    await add(tools, "of the host")
    host.session_id = None
    await add(tools, "of nobody")
    found = {session: [task.title for task in checklists.state(session).items] for session in ("said", "here", host.default)}
    assert found == {"said": ["of the call"], "here": ["of the host"], host.default: ["of nobody"]}


@pytest.mark.case("NT-20")
async def test_a_list_outlives_a_change_of_the_hosts_context(tools: Toolset, host: HostSession) -> None:
    await add(tools, "one")
    host.session_id = "elsewhere"
    assert await titles(tools) == []
    host.session_id = "here"
    assert await titles(tools) == ["one"]


@pytest.mark.case("NT-21")
async def test_hosts_share_the_list_of_a_session(shared_session: str) -> None:
    first, second = Toolset(), Toolset()
    register_task_tools(first)
    register_task_tools(second)
    await add(first, "one", session=shared_session)
    await add(second, "two", session=shared_session)
    assert await titles(first, shared_session) == ["one", "two"]


async def test_counters_of_all_sources_add_up_by_session(tools: Toolset, checklists: Checklists) -> None:
    async def later(session: str) -> tuple[int, int]:
        return (10, 20) if session == "here" else (0, 0)

    checklists.add_source("commands", lambda session: (1, 2) if session == "here" else (0, 0))
    remove = checklists.add_source("commands", later)
    checklists.add_source("delegates", lambda session: (3, 4))
    expected = {"delegatesPending": 3, "delegatesReady": 4, "commandsRunning": 11, "commandsFinished": 22}
    assert {name: (await add(tools, "one"))[name] for name in expected} == expected
    assert (await tools.call("tasks_list", {}, CallContext("there")))["commandsRunning"] == 0
    remove()
    remove()
    assert (await tools.call("tasks_list", {}))["commandsRunning"] == 1


async def test_a_source_that_fails_counts_nothing_and_is_logged(
    tools: Toolset, checklists: Checklists, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(session: str) -> tuple[int, int]:
        raise RuntimeError("no counters today")

    def misshapen(session: str) -> Any:
        return None

    checklists.add_source("commands", broken)
    checklists.add_source("commands", lambda session: (1, 1))
    checklists.add_source("delegates", misshapen)
    with caplog.at_level(logging.ERROR, "stockade"):
        result = await tools.call("tasks_list", {})
    assert {name: result[name] for name in NO_COUNTERS} == {**NO_COUNTERS, "commandsRunning": 1, "commandsFinished": 1}
    assert "no counters today" in caplog.text
    assert len(caplog.records) == 2


async def test_a_list_and_its_texts_are_bounded(tools: Toolset) -> None:
    assert f"{MAX_TEXT} is the most" in await refused(tools, "tasks_create", {"titles": ["x" * (MAX_TEXT + 1)]})
    await add(tools, *["x"] * MAX_TASKS)
    assert f"{MAX_TASKS} is the most" in await refused(tools, "tasks_create", {"titles": ["one more"]})
    assert f"the ids are t1 to t{MAX_TASKS}" in await refused(tools, "tasks_update", {"id": "x", "status": "done"})
    assert f"{MAX_TEXT} is the most" in await refused(tools, "tasks_update", {"id": "t1", "status": "done", "note": "x" * (MAX_TEXT + 1)})
