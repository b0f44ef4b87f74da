"""A cancellation waits for work that cannot be taken back, and is not forgotten; what happens once wakes all who wait for it."""

from __future__ import annotations

import asyncio

import pytest

from stockade.launcher.waiting import Milestone, first, wait_done


async def test_the_end_of_the_work_is_waited_for_through_every_cancellation() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait_done(work))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    work.set_result(5)
    assert isinstance(await waiting, asyncio.CancelledError)
    assert work.result() == 5


async def test_work_that_fails_keeps_its_error_for_the_caller() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    work.set_exception(ValueError("x"))
    assert await wait_done(work) is None
    with pytest.raises(ValueError, match="x"):
        work.result()


async def test_a_milestone_wakes_everybody_in_the_next_turn_and_is_passed_without_one_afterwards() -> None:
    one, other = Milestone(), Milestone()
    waiting = [asyncio.create_task(one.wait()), asyncio.create_task(first(other, one))]
    await asyncio.sleep(0)
    one.reach()
    one.reach(ValueError("too late"))
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, True]
    assert not other.is_reached
    with pytest.raises(StopIteration):
        one.wait().send(None)


async def test_who_is_cancelled_takes_no_other_along() -> None:
    milestone = Milestone()
    cancelled, waiting = (asyncio.create_task(milestone.wait()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    assert (cancelled.cancelled(), waiting.done()) == (True, False)
    milestone.reach()
    await waiting


async def test_what_will_never_happen_is_an_error_for_each_who_waits() -> None:
    milestone = Milestone()
    waiting = asyncio.create_task(milestone.wait())
    await asyncio.sleep(0)
    milestone.reach(ValueError("x"))
    for late in (waiting, milestone.wait(), milestone.wait()):
        with pytest.raises(ValueError, match="x"):
            await late
    await first(milestone)
