"""The registry: what is seen, when, by whom, and how often."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from stockade.errors import Closed, InvalidRequest, TooManyJobs, UnknownJob
from stockade.ids import InstanceId
from stockade.jobs.reader import StoreReader
from stockade.jobs.recent import Counters
from stockade.jobs.records import HOST, JobError, JobRecord, JobRequest
from stockade.jobs.recovery import recover
from stockade.jobs.registry import Registry
from stockade.jobs.states import ForbiddenTransition, JobState
from stockade.jobs.store import Store
from stockade.launcher.outcome import Exited, Killed
from support.waiting import until

WAIT = 20.0

RequestOf = Callable[..., JobRequest]


def run(registry: Registry, request: JobRequest) -> JobRecord:
    """One job through its whole life, committed."""
    record = registry.create(request).record
    registry.advance(record.id, JobState.STARTING)
    registry.advance(record.id, JobState.RUNNING)
    return registry.settle(record.id, Exited(0)).result(WAIT)


class Blocked:
    """Holds the database's write lock, so that commits wait for us."""

    def __init__(self, store: Store) -> None:
        self._connection = sqlite3.connect(store.path, isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()


def test_a_job_goes_through_its_life_with_times_of_both_clocks(store: Store, request_of: RequestOf) -> None:
    """f04: the wall clock jumps backwards by a day in the middle; the duration does not notice."""
    wall, steady = iter([1000.0, 1001.0, 1001.0 - 86400]), iter([50.0, 52.5])
    registry = Registry(store, InstanceId("life-1"), now=lambda: next(wall), monotonic=lambda: next(steady))
    created = registry.create(request_of("make", label="build", owner="me", session="s"))
    assert created.fresh
    assert (created.record.state, created.record.created_at) == (JobState.QUEUED, 1000.0)
    job_id = created.record.id
    registry.advance(job_id, JobState.STARTING)
    registry.advance(job_id, JobState.RUNNING, isolation={"memory": "sampled"})
    registry.note(job_id, "a late kill")
    settled = registry.settle(job_id, Exited(3), stdout_bytes=7, references={"stdout": "ref"}).result(WAIT)
    assert settled == created.record.with_(
        state=JobState.FINISHED,
        outcome=Exited(3),
        started_at=1001.0,
        ended_at=1001.0 - 86400,
        duration=2.5,
        stdout_bytes=7,
        references={"stdout": "ref"},
        isolation={"memory": "sampled"},
        notes=("a late kill",),
    )
    assert registry.get(job_id, "me") == settled
    with StoreReader.open(store.path) as reader:
        assert reader.get(job_id) == settled
    registry.close(WAIT)


def test_a_settled_state_is_seen_after_its_commit_and_not_before(store: Store, registry: Registry, request_of: RequestOf) -> None:
    """U-23; N defect 1: there is no window in which a settled job has no references."""
    told: list[JobRecord] = []
    registry.on_settled(told.append)
    job_id = registry.create(request_of()).record.id
    registry.advance(job_id, JobState.STARTING)
    registry.advance(job_id, JobState.RUNNING)
    assert store.flush(WAIT)
    waiter = registry.settled(job_id)
    with Blocked(store):
        done = registry.settle(job_id, Exited(0), references={"stdout": "ref"})
        assert registry.get(job_id, HOST).state is JobState.RUNNING
        assert registry.counters(None) == Counters(1, 0)
        assert (done.done(), waiter.done(), told) == (False, False, [])
        seen_early = registry.acknowledge(registry.get(job_id, HOST))
        assert not seen_early.acknowledged
    settled = waiter.result(WAIT)
    assert settled.references == {"stdout": "ref"}
    assert done.result(WAIT) == settled == registry.get(job_id, HOST)
    assert registry.counters(None) == Counters(0, 1)


def test_a_job_is_settled_once(registry: Registry, request_of: RequestOf) -> None:
    """f09, U-25: whoever comes second is told, and changes nothing."""
    settled = run(registry, request_of())
    with pytest.raises(ForbiddenTransition, match="is settled"):
        registry.settle(settled.id, Killed("caller", "too late"))
    with pytest.raises(ForbiddenTransition):
        registry.advance(settled.id, JobState.STOPPING)
    with pytest.raises(ForbiddenTransition):
        registry.note(settled.id, "late")
    assert registry.get(settled.id, HOST) == settled


def test_of_many_threads_that_settle_one_wins_and_everybody_is_told_once(registry: Registry, request_of: RequestOf) -> None:
    told: list[str] = []
    registry.on_settled(lambda record: told.append(record.id))
    ids = []
    for _ in range(20):
        job_id = registry.create(request_of()).record.id
        registry.advance(job_id, JobState.STARTING)
        registry.advance(job_id, JobState.RUNNING)
        ids.append(job_id)
    barrier = threading.Barrier(6)
    won: list[Future[JobRecord]] = []
    waiters: list[Future[JobRecord]] = []

    def race(code: int) -> None:
        for job_id in ids:
            barrier.wait(WAIT)
            waiters.append(registry.settled(job_id))
            try:
                won.append(registry.settle(job_id, Exited(code)))
            except ForbiddenTransition:
                pass

    threads = [threading.Thread(target=race, args=(code,)) for code in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    results = {future.result(WAIT).id: future.result(WAIT) for future in won}
    assert len(won) == len(results) == 20
    assert [waiter.result(WAIT) for waiter in waiters] == [results[waiter.result(WAIT).id] for waiter in waiters]
    assert len(waiters) == 120
    until(lambda: len(told) >= 20, "the listener has been told of all")  # after the waiters, on a thread of its own
    registry.close(WAIT)
    assert sorted(told) == sorted(ids)


def test_moves_that_the_table_does_not_have_are_refused(registry: Registry, request_of: RequestOf) -> None:
    job_id = registry.create(request_of()).record.id
    with pytest.raises(ForbiddenTransition):
        registry.advance(job_id, JobState.RUNNING)
    with pytest.raises(ForbiddenTransition):
        registry.settle(job_id, Exited(0))
    with pytest.raises(ForbiddenTransition, match="by being settled"):
        registry.advance(job_id, JobState.FAILED)
    with pytest.raises(ValueError, match="owner"):
        registry.advance(job_id, JobState.STARTING, owner="thief")
    assert registry.get(job_id, HOST).state is JobState.QUEUED
    failed = registry.settle(job_id, JobError(code="launch_failed", message="no")).result(WAIT)
    assert (failed.state, failed.duration) == (JobState.FAILED, None)


def test_a_job_killed_before_it_ran_is_finished_as_killed(registry: Registry, request_of: RequestOf) -> None:
    job_id = registry.create(request_of()).record.id
    registry.advance(job_id, JobState.STOPPING)
    settled = registry.settle(job_id, Killed("caller", "killed by the caller before it started")).result(WAIT)
    assert (settled.state, settled.started_at, settled.duration) == (JobState.FINISHED, None, None)


def test_a_job_whose_launcher_died_is_lost(registry: Registry, request_of: RequestOf) -> None:
    job_id = registry.create(request_of()).record.id
    assert registry.settle(job_id, JobError(code="lost", message="gone")).result(WAIT).state is JobState.LOST


def test_a_foreign_job_is_as_unknown_as_none_and_the_way_out_is_named(registry: Registry, request_of: RequestOf) -> None:
    """U-28, N-I1."""
    with pytest.raises(UnknownJob, match=r"unknown job 'nope'.*\n.*no job has been started"):
        registry.get("nope", "me")
    mine, yours, open_ = (run(registry, request_of(owner=owner)) for owner in ("me", "you", None))
    for job_id in ("nope", yours.id):
        with pytest.raises(UnknownJob) as caught:
            registry.get(job_id, "me")
        assert caught.value.message == f"unknown job {job_id!r}"
        assert caught.value.hint == f"use one of those: {open_.id}, {mine.id}"
        with pytest.raises(UnknownJob):
            registry.settled(job_id, "me")
        assert registry.peek(job_id, "me") is None
    with pytest.raises(UnknownJob):
        registry.get(mine.id, None)
    assert registry.get(yours.id, HOST) == yours
    assert registry.owner_of(yours.id) == "you"
    assert registry.get(open_.id, "me") == open_


def test_the_list_of_known_ids_is_bounded(registry: Registry, request_of: RequestOf) -> None:
    for _ in range(25):
        registry.create(request_of())
    with pytest.raises(UnknownJob, match="and 5 more"):
        registry.get("nope", None)


def test_the_limit_counts_its_owners_unsettled_jobs_and_refuses_before_an_id(registry: Registry, request_of: RequestOf) -> None:
    """U-7."""
    asked: list[int] = []

    def new_id() -> str:
        asked.append(1)
        return f"id-{len(asked)}"

    first = registry.create(request_of(owner="me"), limit=2, new_id=new_id).record
    registry.create(request_of(owner="me"), limit=2, new_id=new_id)
    registry.create(request_of(owner="you"), limit=2, new_id=new_id)
    with pytest.raises(TooManyJobs, match="2 jobs are not settled and at most 2 may be: id-1, id-2") as caught:
        registry.create(request_of(owner="me"), limit=2, new_id=new_id)
    assert "kill one" in str(caught.value.hint)
    assert "start this again" in str(caught.value.hint)
    assert len(asked) == 3
    registry.settle(first.id, JobError(code="x", message="y")).result(WAIT)
    assert registry.create(request_of(owner="me"), limit=2, new_id=new_id).fresh


def test_an_id_that_is_taken_in_this_or_an_earlier_life_is_not_given_again(database: str, request_of: RequestOf) -> None:
    with Store.open(database) as store:
        registry = Registry(store, InstanceId("life-1"))
        registry.create(request_of(), new_id=lambda: "bash-1")
        registry.close(WAIT)
    with Store.open(database) as store:
        registry = Registry(store, InstanceId("life-2"))
        ids = iter(["bash-1", "bash-2", "bash-2", "bash-3"])
        assert [registry.create(request_of(), new_id=lambda: next(ids)).record.id for _ in range(2)] == ["bash-2", "bash-3"]
        for wrong in ("bash-1", "../etc"):
            with pytest.raises(InvalidRequest):
                registry.create(request_of(), new_id=lambda wrong=wrong: wrong)
        registry.close(WAIT)


def test_a_key_starts_one_job_whatever_happens_in_between(database: str, request_of: RequestOf) -> None:
    request = request_of("deploy", owner="me", key="k1")
    with Store.open(database) as store:
        registry = Registry(store, InstanceId("life-1"), recent=1)
        first = registry.create(request)
        again = registry.create(request, limit=1)
        assert (again.record, again.fresh, again.written.result(WAIT)) == (first.record, False, None)
        with pytest.raises(InvalidRequest, match="another argv") as caught:
            registry.create(request_of("destroy", owner="me", key="k1"))
        assert caught.value.field == "key"
        assert registry.create(request_of("deploy", owner="you", key="k1")).fresh
        assert registry.create(request_of("deploy", key="k1")).fresh
        settled = registry.settle(first.record.id, JobError(code="x", message="y")).result(WAIT)
        run(registry, request_of())
        run(registry, request_of())
        assert registry.create(request).record == settled
        registry.close(WAIT)
    with Store.open(database) as store:
        registry = Registry(store, InstanceId("life-2"), recovered=recover(store, InstanceId("life-2")))
        assert registry.create(request).record == settled
        registry.close(WAIT)


def test_a_reader_that_is_busy_holds_up_no_job(registry: Registry, request_of: RequestOf) -> None:
    """Starts read the database (keys, ids); what the event loop calls must not wait for them."""
    job_id = registry.create(request_of(owner="me")).record.id
    created: list[JobRecord] = []
    reader = registry._archive._reader
    assert reader is not None
    with reader._lock:  # somebody's long read
        start = threading.Thread(target=lambda: created.append(registry.create(request_of(key="k")).record))
        start.start()
        until(lambda: registry._creating.locked(), "the start waits for the reader")
        done: list[JobRecord] = []

        def live_out() -> None:
            registry.advance(job_id, JobState.STARTING)
            registry.advance(job_id, JobState.RUNNING)
            assert registry.peek(job_id, "me") is not None
            assert registry.counters(HOST) == Counters(1, 0)
            with pytest.raises(UnknownJob):
                registry.advance("nosuchjob", JobState.STARTING)
            done.append(registry.settle(job_id, Exited(0)).result(WAIT))
            done.append(registry.acknowledge(done[0]))

        living = threading.Thread(target=live_out)
        living.start()
        living.join(WAIT)
        assert [record.acknowledged for record in done] == [False, True]
        assert created == []
    start.join(WAIT)
    assert [record.key for record in created] == ["k"]


def test_a_start_that_waits_while_the_registry_closes_is_refused(registry: Registry, request_of: RequestOf) -> None:
    refused: list[BaseException] = []

    def start() -> None:
        with pytest.raises(Closed) as caught:
            registry.create(request_of(key="k"))
        refused.append(caught.value)

    reader = registry._archive._reader
    assert reader is not None
    with reader._lock:
        starting = threading.Thread(target=start)
        starting.start()
        until(lambda: registry._creating.locked(), "the start waits for the reader")
        registry.refuse_starts()
    starting.join(WAIT)
    assert len(refused) == 1
    assert registry.unsettled() == ()


def test_a_key_stands_for_what_the_program_is_given_too(registry: Registry, request_of: RequestOf) -> None:
    first = registry.create(request_of("deploy", key="k", input="aa"))
    assert registry.create(request_of("deploy", key="k", input="aa")).record == first.record
    with pytest.raises(InvalidRequest, match="with another environment or stdin"):
        registry.create(request_of("deploy", key="k", input="bb"))
    old = registry.create(request_of("deploy", key="old"))  # a record of before there was such a digest
    assert registry.create(request_of("deploy", key="old", input="bb")).record == old.record


def test_of_many_threads_with_one_key_one_starts(registry: Registry, request_of: RequestOf) -> None:
    barrier = threading.Barrier(8)
    created: list[Any] = []

    def start() -> None:
        barrier.wait(WAIT)
        created.append(registry.create(request_of("once", key="k")))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert (len({one.record.id for one in created}), sum(one.fresh for one in created)) == (1, 1)


def test_counters_are_kept_by_owner_and_session_and_fall_by_acknowledgement(registry: Registry, request_of: RequestOf) -> None:
    """1A.8, U-26, U-27."""
    one = run(registry, request_of(owner="me", session="s1"))
    run(registry, request_of(owner="me", session="s2"))
    run(registry, request_of(owner="you", session="s1"))
    registry.create(request_of(owner="me", session="s1"))
    registry.create(request_of(owner="me"))
    assert registry.counters("me", "s1") == Counters(1, 1)
    assert registry.counters("me", None) == Counters(1, 0)
    assert registry.counters("me") == Counters(2, 2)
    assert registry.counters(HOST, "s1") == Counters(1, 2)
    assert registry.counters(HOST) == Counters(2, 3)
    assert registry.acknowledge(one) == one.with_(acknowledged=True)
    assert registry.acknowledge(one) == registry.acknowledge(registry.get(one.id, "me"))
    assert registry.counters("me", "s1") == Counters(1, 0)
    assert registry.get(one.id, "me").acknowledged
    assert registry.store.flush(WAIT)
    with StoreReader.open(registry.store.path) as reader:
        assert reader.get(one.id) == one.with_(acknowledged=True)


def test_jobs_that_memory_let_go_are_read_and_counted_all_the_same(store: Store, request_of: RequestOf) -> None:
    registry = Registry(store, InstanceId("life-1"), recent=3)
    settled = [run(registry, request_of(str(number))) for number in range(10)]
    assert [registry.peek(record.id, HOST) is not None for record in settled] == [False] * 7 + [True] * 3
    assert [registry.get(record.id, None) for record in settled] == settled
    assert registry.settled(settled[0].id).result(0) == settled[0]
    assert registry.counters(None) == Counters(0, 10)
    assert registry.acknowledge(registry.get(settled[0].id, None)).acknowledged
    assert registry.get(settled[0].id, None).acknowledged
    assert registry.counters(None) == Counters(0, 9)
    registry.close(WAIT)


def test_a_list_shows_what_is_now_by_page(registry: Registry, request_of: RequestOf) -> None:
    ended = [run(registry, request_of(owner="me")) for _ in range(3)]
    running = registry.create(request_of(owner="me")).record
    run(registry, request_of(owner="you"))
    page = registry.list("me", limit=2)
    assert page.records == (running, ended[2])
    rest = registry.list("me", limit=2, before=page.next)
    assert (rest.records, rest.next) == ((ended[1], ended[0]), None)
    assert registry.list("me", states=[JobState.QUEUED]).records == (running,)
    assert registry.unsettled("you") == ()
    assert registry.unsettled("me") == (running,)


def test_many_loops_wait_for_one_job_and_one_that_gives_up_disturbs_no_other(registry: Registry, request_of: RequestOf) -> None:
    """U-33, U-35."""
    job_id = registry.create(request_of()).record.id
    registry.advance(job_id, JobState.STARTING)
    registry.advance(job_id, JobState.RUNNING)
    waiting = threading.Barrier(4)
    got: list[JobRecord] = []

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.wrap_future(registry.settled(job_id))
        patient = asyncio.wrap_future(registry.settled(job_id))
        waiting.wait(WAIT)
        async with asyncio.timeout(WAIT):
            got.append(await patient)

    threads = [threading.Thread(target=lambda: asyncio.run(wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting.wait(WAIT)
    settled = registry.settle(job_id, Exited(0)).result(WAIT)
    for thread in threads:
        thread.join(WAIT)
    assert got == [settled] * 3


def test_a_listener_may_start_a_job_and_wait_for_its_commit(registry: Registry, request_of: RequestOf) -> None:
    started: Future[JobRecord] = Future()

    def chain(record: JobRecord) -> None:
        if not started.done():
            created = registry.create(request_of("next"))
            created.written.result(WAIT)
            started.set_result(created.record)

    registry.on_settled(chain)
    run(registry, request_of())
    assert started.result(WAIT).argv == ("next",)


def test_after_close_nothing_starts_nobody_is_told_and_all_is_readable(store: Store, request_of: RequestOf) -> None:
    """U-29, and D: listeners are silent while the executor is being closed."""
    registry = Registry(store, InstanceId("life-1"), recent=1)
    told: list[JobRecord] = []
    early = run(registry, request_of())
    registry.on_settled(told.append)
    job_id = registry.create(request_of()).record.id
    registry.advance(job_id, JobState.STOPPING)
    registry.refuse_starts()
    with pytest.raises(Closed, match="new executor"):
        registry.create(request_of())
    waiter = registry.settled(job_id)
    registry.settle(job_id, Killed("shutdown", "the executor was closed"))
    assert registry.close(WAIT) == 0
    assert registry.close(WAIT) == 0
    assert waiter.result(WAIT).state is JobState.FINISHED
    assert told == []
    assert registry.get(early.id, None) == early
    assert registry.list(None).records == (waiter.result(WAIT), early)
    assert registry.acknowledge(early).acknowledged


def test_what_is_settled_after_the_close_is_still_told_to_its_waiters(store: Store, request_of: RequestOf) -> None:
    registry = Registry(store, InstanceId("life-1"))
    job_id = registry.create(request_of()).record.id
    waiter = registry.settled(job_id)
    store.close(WAIT)
    settled = registry.settle(job_id, JobError(code="closed", message="too late")).result(WAIT)
    assert waiter.result(WAIT) == settled
    registry.close(WAIT)


def test_retention_forgets_settled_jobs_alone(registry: Registry, request_of: RequestOf) -> None:
    settled = run(registry, request_of())
    running = registry.create(request_of()).record
    registry.forget(settled.id).result(WAIT)
    assert registry.counters(None) == Counters(1, 0)
    with pytest.raises(UnknownJob):
        registry.get(settled.id, HOST)
    with pytest.raises(ForbiddenTransition):
        registry.forget(running.id)


def test_jobs_that_recovery_lost_count_as_unseen(store: Store, make: Any) -> None:
    store.submit_all([make(JobState.RUNNING, owner="me"), make(JobState.FINISHED, owner="me")]).result(WAIT)
    registry = Registry(store, InstanceId("life-2"), recovered=recover(store, InstanceId("life-2")))
    assert registry.counters("me") == Counters(0, 1)
    registry.close(WAIT)


def test_on_a_full_disk_jobs_end_and_the_registry_stays_true(
    small_disk: Any, request_of: RequestOf, caplog: pytest.LogCaptureFixture
) -> None:
    """f02: waiters are released, the truth is kept in memory, and it is written when there is room again."""
    store = Store.open(str(small_disk.root / "registry.sqlite3"))
    registry = Registry(store, InstanceId("life-1"), recent=2)
    told: list[str] = []
    registry.on_settled(lambda record: told.append(record.id))
    small_disk.fill()
    with caplog.at_level(logging.ERROR):
        # The room that was kept back takes the first; then that is filled too.
        first = run(registry, request_of("first"))
        assert store.unwritten == 0
        small_disk.fill()
        settled = [first, *(run(registry, request_of("x" * 30_000, str(number))) for number in range(6))]
    assert "cannot be written" in caplog.text
    assert store.unwritten == 6
    assert [registry.get(record.id, HOST) for record in settled] == settled
    assert registry.list(HOST).records == tuple(reversed(settled))
    assert registry.counters(None) == Counters(0, 7)
    small_disk.free()
    assert store.flush(WAIT)
    late = run(registry, request_of())
    with StoreReader.open(store.path) as reader:
        assert reader.list().records == (late, *reversed(settled))
    assert registry.list(HOST).records == (late, *reversed(settled))
    assert registry.close(WAIT) == 0
    assert told[:7] == [record.id for record in settled]


@pytest.fixture
def crowded(store: Store, make: Any) -> Iterator[tuple[Registry, list[JobRecord]]]:
    records = [make(JobState.FINISHED, owner="me", argv=("echo", "x" * 100)) for _ in range(10_000)]
    store.submit_all(records).result(WAIT)
    registry = Registry(store, InstanceId("life-2"))
    yield registry, records
    registry.close(WAIT)


def test_one_of_ten_thousand_settled_jobs_is_found_at_once(crowded: tuple[Registry, list[JobRecord]]) -> None:
    registry, records = crowded
    took = []
    for record in records[::50]:
        began = time.perf_counter()
        assert registry.get(record.id, "me") == record
        took.append(time.perf_counter() - began)
    print(f"median {statistics.median(took) * 1e6:.0f} µs")
    assert statistics.median(took) < 0.005  # the bench holds it to 1 ms; this is for a machine that does much else
    assert len(registry.list("me").records) == 100
