"""Ranges of host ids, told apart across executors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stockade.launcher.idslots import FIRST_ID, SLOT_SIZE, IdSlots, range_map


def test_two_executors_never_hold_the_same_slot(tmp_path: Path) -> None:
    ours, theirs = IdSlots(str(tmp_path)), IdSlots(str(tmp_path))
    try:
        taken = [ours.take() for _ in range(50)], [theirs.take() for _ in range(50)]
        assert len({*taken[0], *taken[1]}) == 100
    finally:
        ours.close()
        theirs.close()


def test_threads_of_one_executor_never_hold_the_same_slot(tmp_path: Path) -> None:
    """A lock on the file keeps executors apart, not threads, and each sandbox is made on a thread."""
    slots = IdSlots(str(tmp_path))
    begin = threading.Barrier(16)

    def take() -> list[int]:
        begin.wait()
        return [slots.take() for _ in range(20)]

    try:
        with ThreadPoolExecutor(16) as threads:
            taken = [slot for each in [threads.submit(take) for _ in range(16)] for slot in each.result()]
        assert len(set(taken)) == len(taken) == 320
    finally:
        slots.close()


def test_a_slot_that_was_given_back_is_taken_first(tmp_path: Path) -> None:
    slots = IdSlots(str(tmp_path))
    try:
        first, second = slots.take(), slots.take()
        slots.give_back(first)
        assert slots.take() == first != second
    finally:
        slots.close()


def test_slots_of_a_closed_executor_are_free(tmp_path: Path) -> None:
    dead = IdSlots(str(tmp_path))
    slot = dead.take()
    dead.close()
    heir = IdSlots(str(tmp_path))
    try:
        assert heir.take() == slot
    finally:
        heir.close()


def test_ranges_do_not_touch_each_other() -> None:
    assert range_map(0) == (0, FIRST_ID, SLOT_SIZE)
    assert range_map(1)[1] == FIRST_ID + SLOT_SIZE
