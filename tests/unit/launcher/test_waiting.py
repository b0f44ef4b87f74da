"""A cancellation waits for work that cannot be taken back, and is not forgotten."""

from __future__ import annotations

import asyncio

import pytest

from stockade.launcher.waiting import wait_done


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
