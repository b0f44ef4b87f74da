"""SIGKILL at any moment: what was said to be committed is there, and whole (f01)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stockade.ids import InstanceId
from stockade.jobs.directory import StateDirectory
from stockade.jobs.reader import StoreReader
from stockade.jobs.recovery import recover
from stockade.jobs.states import JobState
from stockade.jobs.store import Store
from stockade.launcher.outcome import Exited

ROUNDS = 24

# Four threads each take jobs through their life and say which steps are committed; the last waits for nobody.
WRITER = """
import itertools, sys, threading
from stockade.ids import JobId
from stockade.jobs.directory import StateDirectory
from stockade.jobs.records import JobRecord
from stockade.jobs.states import JobState
from stockade.jobs.store import Store
from stockade.launcher.outcome import Exited

root, round = sys.argv[1:]
directory = StateDirectory.open(root)
store = Store.open(directory.layout.database)
say = threading.Lock()

def live(thread):
    for number in itertools.count():
        record = JobRecord(id=JobId(f"r{round}t{thread}n{number}"), instance=directory.instance, argv=("x" * (number % 700 + 1),),
                           state=JobState.RUNNING, created_at=number, stdout_bytes=number)
        done = store.submit(record)
        if thread:
            done.result(20)
            with say:
                print("running", record.id, number, flush=True)
        settled = record.with_(state=JobState.FINISHED, outcome=Exited(number % 256), ended_at=number + 1)
        store.submit(settled).result(20)
        with say:
            print("finished", record.id, number, flush=True)

for thread in range(4):
    threading.Thread(target=live, args=(thread,), daemon=True).start()
threading.Event().wait()
"""


def test_sigkill_at_any_moment_loses_nothing_that_was_committed(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    root = str(tmp_path / "state")
    chance = random.Random(20)
    finished: dict[str, int] = {}
    for round_ in range(ROUNDS):
        child = spawn(WRITER, root, str(round_))
        said: list[str] = []
        for _ in range(chance.randrange(1, 120)):
            said.append(child.stdout.readline())
        child.kill()  # between two instructions of its choice: its threads go on writing until this hits
        said += child.stdout.readlines()
        child.wait(20)
        running: dict[str, int] = {}
        for line in said:
            if line.endswith("\n"):
                state, job_id, number = line.split()
                (finished if state == "finished" else running)[job_id] = int(number)
        with StateDirectory.open(root) as directory, Store.open(directory.layout.database) as store:
            assert store.repaired is None
            lost = {record.id for record in recover(store, directory.instance)}
            with StoreReader.open(store.path) as reader:
                assert reader.unsettled() == ()
                for job_id, count in finished.items() if round_ == ROUNDS - 1 else [*finished.items()][-50:]:
                    record = reader.get(job_id)
                    assert record is not None
                    assert (record.outcome, record.stdout_bytes) == (Exited(count % 256), count)
                for job_id in running.keys() - finished.keys():
                    record = reader.get(job_id)
                    assert record is not None
                    assert record.settled
                    assert (record.state is JobState.LOST) == (job_id in lost)
    assert len(finished) > ROUNDS


SETTLER = """
import sys
from stockade.ids import InstanceId
from stockade.jobs.recovery import recover
from stockade.jobs.store import Store
store = Store.open(sys.argv[1])
print("open", flush=True)
recover(store, InstanceId("life-2"))
"""


def test_sigkill_during_recovery_leaves_all_or_none_lost(database: str, make: Any, spawn: Callable[..., Any]) -> None:
    with Store.open(database) as store:
        store.submit_all([make(JobState.RUNNING) for _ in range(1500)]).result(20)
    for _ in range(4):
        child = spawn(SETTLER, database)
        child.stdout.readline()
        child.kill()
        child.wait(20)
        with StoreReader.open(database) as reader:
            assert len(reader.unsettled()) in (0, 1500)
    with Store.open(database) as store:
        recover(store, InstanceId("life-3"))
        with StoreReader.open(database) as reader:
            assert reader.unsettled() == ()
            assert reader.count() == 1500


def test_readers_of_another_process_work_while_the_executor_runs_and_after_it_died(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    root = str(tmp_path / "state")
    child = spawn(WRITER, root, "0")
    job_id = child.stdout.readline().split()[1]
    with StoreReader.open(f"{root}/registry.sqlite3") as reader:
        assert reader.get(job_id) is not None
        child.kill()
        child.wait(20)
        assert reader.get(job_id) is not None
    with StoreReader.open(f"{root}/registry.sqlite3") as reader:
        assert reader.get(job_id) is not None


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING])
def test_jobs_of_a_dead_executor_are_lost_and_say_so(store: Store, make: Any, state: JobState) -> None:
    ended, left = make(JobState.FINISHED), make(state, instance=InstanceId("life-0"), stdout_bytes=7)
    ours = make(state, instance=InstanceId("life-1"))
    store.submit_all([ended, left, ours]).result(20)
    lost = recover(store, InstanceId("life-1"), account=lambda record: record.with_(stdout_bytes=9), now=lambda: 5000.0)
    assert [(record.id, record.state, record.stdout_bytes, record.ended_at) for record in lost] == [(left.id, JobState.LOST, 9, 5000.0)]
    assert lost[0].error is not None
    assert lost[0].error.code == "lost"
    assert f"died with the job last recorded as {state}" in lost[0].error.message
    assert "banked" in str(lost[0].error.hint)
    with StoreReader.open(store.path) as reader:
        assert [reader.get(record.id) for record in (ended, left, ours)] == [ended, lost[0], ours]
    assert recover(store, InstanceId("life-1")) == []


def test_a_bank_that_cannot_be_read_does_not_stop_recovery(store: Store, make: Any) -> None:
    def account(record: Any) -> Any:
        raise OSError("no such directory")

    store.submit(make(JobState.RUNNING)).result(20)
    (lost,) = recover(store, InstanceId("life-2"), account=account)
    assert lost.notes == ("what was banked could not be counted: no such directory",)
