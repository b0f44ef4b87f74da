"""The store: committed before it says so, in few commits, final once settled, alive on a full disk."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from stockade.errors import Closed, StateError
from stockade.jobs import schema
from stockade.jobs.reader import StoreReader
from stockade.jobs.reserve import Reserve
from stockade.jobs.states import JobState
from stockade.jobs.store import Store
from stockade.launcher.outcome import Exited

WAIT = 20.0


def test_a_record_is_on_disk_when_its_future_ends(store: Store, make: Any) -> None:
    record = make(JobState.FINISHED)
    store.submit(record).result(WAIT)
    with StoreReader.open(store.path) as reader:
        assert reader.get(record.id) == record


def test_a_later_version_replaces_an_unsettled_one(store: Store, make: Any) -> None:
    record = make(JobState.QUEUED)
    for state in (JobState.QUEUED, JobState.STARTING, JobState.RUNNING):
        store.submit(record.with_(state=state)).result(WAIT)
    with StoreReader.open(store.path) as reader:
        assert reader.get(record.id) == record.with_(state=JobState.RUNNING)
        assert reader.count() == 1


def test_submissions_that_wait_share_a_commit(store: Store, make: Any) -> None:
    blocker = sqlite3.connect(store.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")  # the writer waits for us, and all the others for the writer
    futures = [store.submit(make()) for _ in range(400)]
    blocker.execute("COMMIT")
    blocker.close()
    for future in futures:
        future.result(WAIT)
    assert store.commits <= 4


def test_the_database_itself_refuses_to_change_a_settled_record(store: Store, make: Any) -> None:
    record = make(JobState.FINISHED)
    store.submit(record).result(WAIT)
    for changed in (record.with_(stdout_bytes=5), record.with_(label="other"), record.with_(owner="thief")):
        with pytest.raises(StateError, match="immutable"):
            store.submit(changed).result(WAIT)
    with sqlite3.connect(store.path) as other:
        for statement in ("UPDATE jobs SET body = 'x'", "UPDATE jobs SET settled = 0", "UPDATE jobs SET owner = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="immutable"):
                other.execute(statement)
    other.close()
    store.submit(record).result(WAIT)  # the same again is no change
    with StoreReader.open(store.path) as reader:
        assert reader.get(record.id) == record


def test_a_settled_record_is_final_within_one_group_too(store: Store, make: Any) -> None:
    blocker = sqlite3.connect(store.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    record = make(JobState.FINISHED)
    futures = [store.submit(make()), store.submit(record), store.submit(record.with_(stdout_bytes=9)), store.submit(make())]
    blocker.execute("COMMIT")
    blocker.close()
    assert [type(future.exception(WAIT)) for future in futures] == [type(None), type(None), StateError, type(None)]
    with StoreReader.open(store.path) as reader:
        assert reader.get(record.id) == record


def test_acknowledgement_and_retention_are_the_only_changes(store: Store, make: Any) -> None:
    settled, running = make(JobState.FINISHED), make(JobState.RUNNING)
    store.submit_all([settled, running]).result(WAIT)
    store.acknowledge(settled.id).result(WAIT)
    store.acknowledge(running.id).result(WAIT)
    with StoreReader.open(store.path) as reader:
        assert reader.get(settled.id) == settled.with_(acknowledged=True)
        assert reader.get(running.id) == running
        with pytest.raises(StateError, match="unsettled"):
            store.delete(running.id).result(WAIT)
        store.delete(settled.id).result(WAIT)
        assert (reader.get(settled.id), reader.get(running.id)) == (None, running)


def test_close_writes_what_waits_and_refuses_what_comes_later(database: str, make: Any) -> None:
    store = Store.open(database)
    records = [make(JobState.FINISHED) for _ in range(300)]
    futures = [store.submit(record) for record in records]
    assert store.close(WAIT) == 0
    assert store.close(WAIT) == 0
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(Closed):
        store.submit(make())
    with StoreReader.open(database) as reader:
        assert reader.count() == 300


def test_an_older_database_is_brought_up_to_date_with_its_records(database: str, make: Any) -> None:
    record = make(JobState.FINISHED)
    with Store.open(database) as old:
        old.submit(record).result(WAIT)

    def v2(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE jobs ADD COLUMN colour TEXT DEFAULT 'green'")

    with Store.open(database, migrations=(*schema.MIGRATIONS, v2)) as new:
        with sqlite3.connect(database) as other:
            assert other.execute("SELECT colour, (SELECT user_version FROM pragma_user_version) FROM jobs").fetchall() == [("green", 2)]
        other.close()
        with StoreReader.open(database, versions=new.version) as reader:
            assert reader.get(record.id) == record


def test_a_migration_that_fails_leaves_the_old_database(database: str, make: Any) -> None:
    record = make(JobState.FINISHED)
    with Store.open(database) as old:
        old.submit(record).result(WAIT)

    def v2(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE jobs ADD COLUMN colour TEXT")
        connection.execute("this is no SQL")

    with pytest.raises(StateError, match="cannot be written"):
        Store.open(database, migrations=(*schema.MIGRATIONS, v2))
    with Store.open(database), StoreReader.open(database) as reader:
        assert reader.get(record.id) == record


def test_a_newer_database_is_refused_and_left_alone(database: str) -> None:
    Store.open(database, migrations=(*schema.MIGRATIONS, lambda connection: None)).close()
    with open(database, "rb") as file:
        before = file.read()
    for open_it in (Store.open, StoreReader.open):
        with pytest.raises(StateError, match=r"schema version 2.*versions up to 1") as caught:
            open_it(database)
        assert "newer Stockade" in str(caught.value.hint)
    with open(database, "rb") as file:
        assert file.read() == before


def test_many_threads_write_and_nothing_is_lost(store: Store, make: Any) -> None:
    records = [make(JobState.FINISHED) for _ in range(600)]
    barrier = threading.Barrier(6)

    def write(mine: list[Any]) -> None:
        barrier.wait(WAIT)
        for future in [store.submit(record) for record in mine]:
            future.result(WAIT)

    threads = [threading.Thread(target=write, args=(records[number::6],)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    with StoreReader.open(store.path) as reader:
        assert [reader.get(record.id) for record in records] == records
    assert store.commits < 600


def test_a_full_disk_fails_the_future_and_is_made_good_when_there_is_room(small_disk: Any, make: Any) -> None:
    """f02: the store lives, says what is unwritten, and writes it without a restart."""
    with Store.open(str(small_disk.root / "registry.sqlite3")) as store:
        early = make(JobState.FINISHED)
        store.submit(early).result(WAIT)
        small_disk.fill()
        failed: list[Future[None]] = []
        late = []
        while len([future for future in failed if future.exception(WAIT)]) < 3:
            late.append(make(JobState.FINISHED, notes=("x" * 3000,)))
            failed.append(store.submit(late[-1]))
        assert "cannot be written" in str(failed[-1].exception(WAIT))
        assert store.unwritten >= 1
        assert store.is_unwritten(late[-1].id)
        assert not store.flush(WAIT)
        with StoreReader.open(store.path) as reader:
            assert reader.get(early.id) == early
            small_disk.free()
            assert store.flush(WAIT)
            assert store.unwritten == 0
            assert [reader.get(record.id) for record in late] == late


def test_on_a_full_disk_ended_jobs_are_written_into_the_room_that_was_kept_back(small_disk: Any, make: Any) -> None:
    """The next life must not call a job lost that ended while the disk was full."""
    path = str(small_disk.root / "registry.sqlite3")
    running, begun = make(), make()
    with Store.open(path) as store:
        reserve = os.stat(f"{path}.reserve")
        assert (reserve.st_size, reserve.st_blocks * 512) == (256 << 10, 256 << 10)
        store.submit(running).result(WAIT)
        small_disk.fill()
        assert store.submit(begun).exception(WAIT) is not None  # not worth it
        assert os.path.exists(f"{path}.reserve")
        ended = running.with_(state=JobState.FINISHED, outcome=Exited(0), ended_at=2000.0)
        store.submit(ended).result(WAIT)
        assert not os.path.exists(f"{path}.reserve")
        with StoreReader.open(path) as reader:
            assert reader.get(ended.id) == ended
    small_disk.free()
    with Store.open(path):
        assert os.path.getsize(f"{path}.reserve") == 256 << 10
    with StoreReader.open(path) as reader:
        assert reader.get(ended.id) == ended


def test_the_room_is_kept_back_again_when_there_is_some(small_disk: Any) -> None:
    reserve = Reserve(str(small_disk.root / "reserve"), period=0)
    reserve.fill()
    assert reserve.give_up()
    assert not reserve.give_up()
    small_disk.fill()
    reserve.fill()
    assert os.listdir(small_disk.root) == ["ballast"]
    small_disk.free()
    reserve.fill()
    assert os.path.getsize(small_disk.root / "reserve") == 256 << 10
    assert Reserve(str(small_disk.root / "reserve")).give_up()  # one of an earlier life


def test_what_never_found_room_is_counted_at_the_end(small_disk: Any, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(str(small_disk.root / "registry.sqlite3"))
    small_disk.fill()
    record = make(JobState.FINISHED, notes=("x" * 500_000,))
    assert store.submit(record).exception(WAIT) is not None
    assert store.close(WAIT) == 1
    assert store.close(WAIT) == 1
    assert caplog.text.count(f"was closed without a change of job {record.id}: exit 0") == 1
    small_disk.free()
    with Store.open(store.path) as again, StoreReader.open(again.path) as reader:
        assert again.repaired is None
        assert reader.count() == 0


def test_a_full_disk_refuses_to_open_with_the_way_out(small_disk: Any) -> None:
    small_disk.fill()
    with pytest.raises(StateError, match=r"cannot be written.*full") as caught:
        Store.open(str(small_disk.root / "registry.sqlite3"))
    assert "make room" in str(caught.value.hint)


def test_a_read_only_directory_is_a_clear_error(small_disk: Any, make: Any) -> None:
    path = str(small_disk.root / "registry.sqlite3")
    with Store.open(path) as store:
        store.submit(make(JobState.FINISHED)).result(WAIT)
    small_disk.remount("ro")
    with pytest.raises(StateError, match=r"cannot be written"):
        Store.open(path)
    with pytest.raises(StateError, match=r"cannot be read") as caught:
        StoreReader.open(path)
    assert "writable" in str(caught.value.hint)
    small_disk.remount("rw")


def test_a_store_leaves_no_thread_and_no_descriptor(database: str) -> None:
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    Store.open(database).close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
