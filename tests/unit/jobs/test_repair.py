"""Damaged and foreign databases are set aside, never deleted, and every readable record is saved."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stockade.errors import StateError
from stockade.jobs.reader import StoreReader
from stockade.jobs.states import JobState
from stockade.jobs.store import Store

WAIT = 20.0
PAGE = 4096


@pytest.fixture
def records(database: str, make: Any) -> list[Any]:
    """Three hundred settled records, a third of them acknowledged, in a database that was closed well."""
    made = [make(JobState.FINISHED, argv=("x" * (number % 400 + 1),)) for number in range(300)]
    with Store.open(database) as store:
        store.submit_all(made).result(WAIT)
        for record in made[::3]:
            store.acknowledge(record.id)
    return [record.with_(acknowledged=number % 3 == 0) for number, record in enumerate(made)]


def saved(database: str) -> dict[str, Any]:
    with Store.open(database), StoreReader.open(database) as reader:
        return {record.id: record for record in reader.list(limit=1000).records}


def overwrite(database: str, position: int, data: bytes) -> None:
    with open(database, "r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_whole_database_is_left_alone(database: str, records: list[Any]) -> None:
    with Store.open(database) as store:
        assert store.repaired is None
    assert list(saved(database).values()) == records[::-1]


def test_a_truncated_database_gives_what_is_left_of_it(database: str, records: list[Any], tmp_path: Path) -> None:
    size = os.stat(database).st_size
    shutil.copy(database, tmp_path / "before")
    os.truncate(database, size // 2 // PAGE * PAGE + 100)
    with Store.open(database) as store:
        assert store.repaired is not None
        assert store.repaired.kept_as == f"{database}.corrupt-1"
        assert 60 < store.repaired.records < 300
        assert os.stat(f"{database}.corrupt-1").st_size == size // 2 // PAGE * PAGE + 100
    known = {record.id: record for record in records}
    for job_id, record in saved(database).items():
        assert record.with_(acknowledged=False) == known[job_id].with_(acknowledged=False)


@pytest.mark.parametrize("seed", range(12))
def test_overwritten_pages_cost_only_the_records_on_them(database: str, records: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    pages = os.stat(database).st_size // PAGE
    hit = chance.sample(range(pages), 3)
    for page in hit:
        overwrite(database, page * PAGE, chance.randbytes(PAGE))
    with open(database, "rb") as file:
        raw = file.read()
    with Store.open(database) as store:
        assert store.repaired is not None
    with open(f"{database}.corrupt-1", "rb") as file:
        assert file.read() == raw
    known = {record.id: record.with_(acknowledged=False) for record in records}
    found = saved(database)
    assert all(known[job_id] == record.with_(acknowledged=False) for job_id, record in found.items())
    # Whatever stands whole in the bytes that are left was saved.
    assert found.keys() >= {job_id for job_id in known if _body_is_in(raw, known[job_id])}
    assert len(found) > 200


def _body_is_in(raw: bytes, record: Any) -> bool:
    from stockade.jobs.records import dumps

    return dumps(record).encode() in raw


def test_a_destroyed_header_costs_nothing(database: str, records: list[Any]) -> None:
    overwrite(database, 0, b"\xaa" * 100)
    found = saved(database)
    assert {job_id: record.with_(acknowledged=False) for job_id, record in found.items()} == {
        record.id: record.with_(acknowledged=False) for record in records
    }


def test_one_flipped_byte_within_a_record_costs_that_record_and_keeps_its_bytes(database: str, records: list[Any]) -> None:
    with open(database, "rb") as file:
        position = file.read().index(b'"id":"job-77"') + 1
    overwrite(database, position, b"X")
    with Store.open(database) as store:
        assert store.repaired is not None
        assert "job-77" in store.repaired.reason
        assert (store.repaired.records, store.repaired.unreadable) == (299, 1)
    with sqlite3.connect(database) as other:
        ((job_id, body, reason),) = other.execute("SELECT id, body, reason FROM unreadable").fetchall()
    other.close()
    assert (job_id, b'"Xd":"job-77"' in body, "sum" in reason) == ("job-77", True, True)
    assert list(saved(database).values()) == [record for record in records[::-1] if record.id != "job-77"]


def test_the_log_of_a_crash_is_read_where_the_database_itself_is_gone(database: str, make: Any) -> None:
    store = Store.open(database)
    record = make(JobState.FINISHED)
    store.submit(record).result(WAIT)
    shutil.copy(f"{database}-wal", f"{database}.log")
    store.close()
    for torn in ("empty", "gone"):
        os.truncate(database, 0)
        if torn == "gone":
            os.unlink(database)
        shutil.copy(f"{database}.log", f"{database}-wal")
        assert saved(database) == {record.id: record}


@pytest.mark.parametrize("content", [b"my shopping list\n" * 300, b"\0" * PAGE, random.Random(1).randbytes(3 * PAGE)])
def test_a_file_that_is_no_database_is_set_aside(database: str, content: bytes) -> None:
    Path(database).write_bytes(content)
    assert saved(database) == {}
    assert Path(f"{database}.corrupt-1").read_bytes() == content


def test_a_database_of_another_program_is_set_aside(database: str) -> None:
    with sqlite3.connect(database) as foreign:
        foreign.execute("CREATE TABLE jobs(title)")
        foreign.execute("INSERT INTO jobs VALUES('baker')")
    foreign.close()
    with Store.open(database) as store:
        assert store.repaired is not None
        assert store.repaired.reason == "a database of another program"
    with sqlite3.connect(f"{database}.corrupt-1") as kept:
        assert kept.execute("SELECT title FROM jobs").fetchall() == [("baker",)]
    kept.close()


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_what_is_no_file_is_set_aside_and_not_followed(database: str, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if kind == "directory":
        os.mkdir(database)
    elif kind == "link":
        os.symlink(victim, database)
    else:
        os.mkfifo(database)
    assert saved(database) == {}
    assert os.path.lexists(f"{database}.corrupt-1")
    assert victim.read_text() == "precious"


def test_earlier_files_that_were_set_aside_are_kept(database: str) -> None:
    for number in (1, 2, 3):
        Path(database).write_text(f"number {number}")
        Store.open(database).close()
        assert Path(f"{database}.corrupt-{number}").read_text() == f"number {number}"


def test_a_crash_between_the_two_renames_is_made_good(database: str, records: list[Any]) -> None:
    os.rename(database, f"{database}.rebuilt")
    assert list(saved(database).values()) == records[::-1]


def test_a_half_made_copy_is_made_again(database: str, records: list[Any]) -> None:
    Path(f"{database}.rebuilt").write_bytes(b"half")
    overwrite(database, 0, b"\xaa" * 100)
    assert len(saved(database)) == len(records)
    assert not os.path.exists(f"{database}.rebuilt")


def test_without_room_nothing_is_set_aside(small_disk: Any, make: Any) -> None:
    path = str(small_disk.root / "registry.sqlite3")
    records = [make(JobState.FINISHED, argv=("x" * 900,)) for _ in range(100)]
    with Store.open(path) as store:
        store.submit_all(records).result(WAIT)
    overwrite(path, 0, b"\xaa" * 100)
    small_disk.fill()
    with pytest.raises(StateError, match=r"damaged.*cannot be repaired") as caught:
        Store.open(path)
    assert "make room" in str(caught.value.hint)
    assert not os.path.exists(f"{path}.corrupt-1")
    small_disk.free()
    assert len(saved(path)) == 100
