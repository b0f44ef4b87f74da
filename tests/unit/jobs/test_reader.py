"""The reader: at any time, from any process, without holding up the writer."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import pytest

from stockade.errors import StateError
from stockade.jobs.reader import StoreReader
from stockade.jobs.records import DamagedRecord
from stockade.jobs.states import JobState
from stockade.jobs.store import Store

WAIT = 20.0


def test_pages_are_newest_first_whole_and_without_repetition(store: Store, make: Any) -> None:
    records = [make(JobState.FINISHED) for _ in range(25)]
    store.submit_all(records).result(WAIT)
    with StoreReader.open(store.path) as reader:
        seen: list[Any] = []
        before, pages = None, 0
        while pages == 0 or before is not None:
            page = reader.list(limit=10, before=before)
            seen += page.records
            before, pages = page.next, pages + 1
        assert (seen, pages) == (records[::-1], 3)


def test_filters_choose_by_state_owner_session_and_visibility(store: Store, make: Any) -> None:
    mine = make(JobState.FINISHED, owner="me", session="s")
    yours = make(JobState.RUNNING, owner="you", session="s")
    open_ = make(JobState.RUNNING)
    empty = make(JobState.FAILED, owner="")
    store.submit_all([mine, yours, open_, empty]).result(WAIT)
    with StoreReader.open(store.path) as reader:
        assert reader.list(states=[JobState.RUNNING]).records == (open_, yours)
        assert reader.list(states=[]).records == ()
        assert reader.list(owner="").records == (empty,)
        assert reader.list(session="s").records == (yours, mine)
        assert reader.list(caller="me").records == (open_, mine)
        assert reader.list(caller="").records == (empty, open_)
        assert reader.list(caller=None).records == (open_,)
        assert reader.unsettled() == (yours, open_)


def test_a_key_finds_its_owners_job_alone(store: Store, make: Any) -> None:
    mine, open_ = make(owner="me", key="k"), make(key="k")
    store.submit_all([mine, open_]).result(WAIT)
    with StoreReader.open(store.path) as reader:
        assert (reader.by_key("me", "k"), reader.by_key(None, "k"), reader.by_key("you", "k")) == (mine, open_, None)


def test_a_reader_sees_each_commit_and_holds_up_none(store: Store, make: Any) -> None:
    with StoreReader.open(store.path) as reader:
        for number in range(50):
            store.submit(make(JobState.FINISHED)).result(WAIT)
            assert reader.count() == number + 1


def test_one_reader_serves_many_threads(store: Store, make: Any) -> None:
    records = [make(JobState.FINISHED) for _ in range(100)]
    store.submit_all(records).result(WAIT)
    wrong: list[Any] = []
    with StoreReader.open(store.path) as reader:

        def read() -> None:
            wrong.extend(record for record in records if reader.get(record.id) != record)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    assert wrong == []


def test_a_damaged_record_is_named_and_hides_no_other(store: Store, make: Any) -> None:
    whole, torn = make(JobState.FINISHED), make()
    store.submit_all([whole, torn]).result(WAIT)
    with sqlite3.connect(store.path) as other:
        other.execute("UPDATE jobs SET body = replace(body, 'true', CAST(x'FFFE' AS TEXT)) WHERE id = ?", (torn.id,))
    other.close()
    with StoreReader.open(store.path) as reader:
        with pytest.raises(DamagedRecord, match=torn.id):
            reader.get(torn.id)
        assert reader.list().records == (whole,)


def test_what_is_no_registry_is_a_clear_error(database: str, tmp_path: Any) -> None:
    with pytest.raises(StateError, match="cannot be read"):
        StoreReader.open(database)
    (tmp_path / "text").write_text("hello, this is a text file of some length\n" * 40)
    with pytest.raises(StateError, match="cannot be read"):
        StoreReader.open(str(tmp_path / "text"))
    sqlite3.connect(tmp_path / "foreign").close()
    with sqlite3.connect(tmp_path / "foreign") as foreign:
        foreign.execute("CREATE TABLE jobs(id)")
    foreign.close()
    with pytest.raises(StateError, match="not a registry"):
        StoreReader.open(str(tmp_path / "foreign"))


def test_a_closed_reader_says_so(store: Store) -> None:
    reader = StoreReader.open(store.path)
    reader.close()
    reader.close()
    with pytest.raises(StateError, match="closed"):
        reader.count()
