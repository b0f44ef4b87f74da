"""Listeners: once each, in order, contained, removable, silent after the end."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from stockade.jobs.listeners import Listeners, Notices, release
from stockade.jobs.states import JobState

WAIT = 20.0


def test_listeners_are_told_in_the_order_in_which_they_came(make: Any) -> None:
    listeners = Listeners()
    told: list[Any] = []
    for name in ("a", "b", "c"):
        listeners.add(lambda record, name=name: told.append((name, record.id)))
    listeners.tell(make(JobState.FINISHED))
    assert told == [("a", "job-0"), ("b", "job-0"), ("c", "job-0")]


def test_what_a_listener_raises_is_logged_and_reaches_nobody(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    listeners = Listeners()
    told: list[Any] = []
    listeners.add(lambda record: 1 / 0)
    listeners.add(told.append)
    record = make(JobState.FINISHED)
    with caplog.at_level(logging.ERROR):
        listeners.tell(record)
    assert told == [record]
    assert "a listener failed for job job-0" in caplog.text


def test_a_removed_listener_is_told_nothing_even_when_removed_in_the_middle(make: Any) -> None:
    listeners = Listeners()
    told: list[Any] = []
    removers: list[Any] = []
    listeners.add(lambda record: removers[0]())
    removers.append(listeners.add(told.append))
    listeners.tell(make(JobState.FINISHED))
    removers[0]()
    assert told == []


def test_a_listener_with_a_scope_hears_what_that_owner_may_see(make: Any) -> None:
    listeners = Listeners()
    told: list[Any] = []
    listeners.add(told.append, scope="me")
    mine, yours, open_ = (make(JobState.FINISHED, owner=owner) for owner in ("me", "you", None))
    for record in (mine, yours, open_):
        listeners.tell(record)
    assert told == [mine, open_]


def test_silence_is_final(make: Any) -> None:
    listeners = Listeners()
    told: list[Any] = []
    listeners.add(lambda record: listeners.silence())
    listeners.add(told.append)
    listeners.tell(make(JobState.FINISHED))
    listeners.add(told.append)
    listeners.tell(make(JobState.FINISHED))
    assert told == []


def test_listeners_are_called_on_a_thread_of_their_own_and_a_cancelled_waiter_is_passed_over(make: Any) -> None:
    listeners = Listeners()
    gone: Future[Any] = Future()
    gone.cancel()
    release(gone, make(JobState.FINISHED))
    seen: list[tuple[Any, bool]] = []
    listeners.add(lambda record: seen.append((record, threading.current_thread() is threading.main_thread())))
    notices = Notices(listeners)
    record = make(JobState.FINISHED)
    notices.post(record)
    notices.close(WAIT)
    notices.close(WAIT)
    assert seen == [(record, False)]
