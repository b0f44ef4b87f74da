"""The seam of contract D, on an implementation that knows nothing of sandboxes (1B.2; DS-01 to DS-05)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys

import pytest

from stockade.errors import Closed, InvalidRequest, UnknownJob
from stockade.seam import BashContext, BashTask
from support.bash import ScriptedBash, begin, over, run


@pytest.mark.case("DS-01")
async def test_another_implementation_does_for_the_seam() -> None:
    bash, context = ScriptedBash(), BashContext()
    withdraw = context.provide(bash)
    assert context.executor is bash
    task = await begin(bash, "work")
    assert bash.get(task.id) is task
    assert bash.get("another") is None
    assert bash.list() == (task,)
    assert await bash.kill(task.id) is True
    assert await bash.kill(task.id) is False
    assert (await run(bash, "hi")).stdout.text == "hi\n"
    withdraw()
    assert context.executor is None


async def test_a_context_has_one_executor() -> None:
    """D-1."""
    context = BashContext()
    context.provide(ScriptedBash())
    with pytest.raises(InvalidRequest, match="has a bash executor already"):
        context.provide(ScriptedBash())


@pytest.mark.case("DS-02", "DS-03")
async def test_a_listener_is_told_once_and_until_it_is_removed() -> None:
    bash, told = ScriptedBash(), list[str]()
    remove = bash.on_task_done(lambda task: told.append(f"{task.id} {task.status}"))
    first, second = await begin(bash, "one"), await begin(bash, "two")
    bash.finish(first, exit_code=0)
    bash.finish(first, exit_code=0)
    assert told == ["scripted-1 completed"]
    remove()
    remove()
    bash.finish(second, exit_code=0)
    assert told == ["scripted-1 completed"]


@pytest.mark.case("DS-04")
async def test_a_listener_goes_with_its_scope() -> None:
    bash, told = ScriptedBash(), list[BashTask]()
    with contextlib.ExitStack() as scope:
        bash.on_task_done(told.append, scope=scope)
        bash.finish(await begin(bash, "one"), exit_code=0)
    bash.finish(await begin(bash, "two"), exit_code=0)
    assert [task.command for task in told] == ["one"]


@pytest.mark.case("DS-05")
async def test_a_closed_executor_is_silent_even_about_what_closing_killed() -> None:
    bash, told = ScriptedBash(), list[BashTask]()
    bash.on_task_done(told.append)
    task = await begin(bash, "work")
    await asyncio.gather(bash.close(), bash.close())
    assert (await over(task)).status == "killed"
    assert told == []
    with pytest.raises(Closed, match="make a new one"):
        await begin(bash, "more")


async def test_a_listener_that_fails_starves_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """D-5."""
    bash, told = ScriptedBash(), list[BashTask]()

    def fails(task: BashTask) -> None:
        raise RuntimeError("its own affair")

    bash.on_task_done(fails)
    bash.on_task_done(told.append)
    with caplog.at_level(logging.ERROR, "stockade"):
        bash.finish(await begin(bash, "work"), exit_code=0)
    assert len(told) == 1
    assert "a listener failed for bash task scripted-1" in caplog.text


async def test_an_unknown_task_is_named() -> None:
    bash = ScriptedBash()
    with pytest.raises(UnknownJob, match='unknown bash task "none"'):
        await bash.read_output("none")
    with pytest.raises(UnknownJob, match='unknown bash task "none"'):
        await bash.kill("none")
    assert bash.owner_of("none") is None


def test_the_seam_loads_nothing_that_runs_processes() -> None:
    source = (
        "import sys, stockade.seam\n"
        "loaded = [each for each in sys.modules if each.startswith(('stockade', 'pydantic'))]\n"
        "assert sorted(loaded) == ['stockade', 'stockade.errors', 'stockade.seam'], loaded"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
