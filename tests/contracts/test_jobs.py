"""Jobs of contract D's later form, their tools and their notices (1C.2; J-1 to J-14).

Most are producers that do as they are told; commands are real, in real sandboxes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stockade.errors import Closed, InvalidRequest, NotAllowed, StockadeError, TooManyJobs, UnknownJob
from stockade.seam import AbortSignal
from stockade.tools.bash_executor import SandboxedBash
from stockade.tools.bash_tools import BashTools
from stockade.tools.job_runtime import JobRuntime, JobSnapshot, Producer, Settlement
from stockade.tools.job_tools import JobNotices, JobTools, notice_text
from stockade.tools.schemas import CallContext
from stockade.tools.toolset import Toolset
from support.agents import PATIENCE
from support.bash import AWAIT_GO, ScriptedBash

ALICE, BOB = CallContext("alice"), CallContext("bob")


class Scripted:
    """A producer that the test ends."""

    def __init__(self, *, streams: bool = False, obeys: bool = True, refuses: Exception | None = None) -> None:
        self.streams, self.obeys, self.refuses = streams, obeys, refuses
        self.cancelled: list[str | None] = []
        self.unread = ""
        self._end: asyncio.Future[Settlement] = asyncio.get_running_loop().create_future()

    async def settled(self) -> Settlement:
        return await self._end

    def cancel(self, reason: str | None) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.cancelled.append(reason)
        if self.obeys:
            self.end("killed", "killed before exit")

    async def read(self) -> str:
        text, self.unread = self.unread, ""
        return text

    def end(self, status: Any = "completed", detail: str | None = None, output: str = "") -> None:
        if not self._end.done():
            self._end.set_result(Settlement(status, detail, output))

    def fail(self, error: Exception) -> None:
        self._end.set_exception(error)


@dataclass
class Conversation:
    """A live session that can be woken."""

    is_idle: bool = True
    heard: list[str] = field(default_factory=list)

    def wake(self, notice: str) -> None:
        self.heard.append(f"woken: {notice}")

    def inject(self, notice: str) -> None:
        self.heard.append(f"told: {notice}")


async def begin(runtime: JobRuntime, producer: Producer, kind: str = "work", **options: Any) -> JobSnapshot:
    async def starter() -> Producer:
        return producer

    return await runtime.start(kind, options.pop("label", "A job"), starter, **{"owner": "alice", **options})


async def settled(runtime: JobRuntime, job: JobSnapshot) -> JobSnapshot:
    """The job once it has settled, without a wait of the runtime's, which would report it."""
    async with asyncio.timeout(PATIENCE):
        while not runtime.get(job.id, job.owner).settled:
            await asyncio.sleep(0)
    return runtime.get(job.id, job.owner)


@pytest.mark.case("J-1", "J-2")
async def test_ids_count_by_kind_and_only_what_was_started() -> None:
    runtime = JobRuntime()

    async def fails() -> Producer:
        raise RuntimeError("no program")

    with pytest.raises(RuntimeError, match="no program"):
        await runtime.start("work", "A job", fails, owner="alice")
    assert runtime.list("alice") == ()
    producers = [Scripted() for _ in range(3)]
    jobs = [await begin(runtime, producer, kind) for producer, kind in zip(producers, ("work", "other", "work"), strict=True)]
    assert [job.id for job in jobs] == ["work-1", "other-1", "work-2"]
    assert {job.status for job in jobs} == {"running"}
    await runtime.close()


@pytest.mark.case("J-2")
async def test_what_is_wrong_is_found_in_order_and_before_anything_is_started() -> None:
    started: list[str] = []

    async def starter() -> Producer:
        started.append("started")
        return Scripted()

    runtime = JobRuntime(max_concurrent_jobs_per_owner=1, serves=lambda owner: owner != "unserved", is_live=lambda owner: owner != "dead")
    wrong = {"kind": " ", "label": "", "output_limit_bytes": 0}
    with pytest.raises(NotAllowed, match="no job controller"):
        await runtime.start(**wrong, starter=starter, owner="unserved")  # type: ignore[arg-type]
    for name in ("kind", "label", "output_limit_bytes"):
        with pytest.raises(InvalidRequest, match=f"^{name} must"):
            await runtime.start(**wrong, starter=starter, owner="dead")  # type: ignore[arg-type]
        wrong[name] = 5 if name == "output_limit_bytes" else "text"
    with pytest.raises(InvalidRequest, match="safe integer"):
        await runtime.start("kind", "label", starter, output_limit_bytes=1 << 53)
    with pytest.raises(NotAllowed, match="not a live session"):
        await runtime.start("kind", "label", starter, owner="dead")
    assert started == []


@pytest.mark.case("J-3")
async def test_an_owner_has_so_many_jobs_and_no_more() -> None:
    runtime = JobRuntime(max_concurrent_jobs_per_owner=2)
    producers = [Scripted(obeys=False) for _ in range(2)]
    first, _ = [await begin(runtime, producer) for producer in producers]
    await runtime.kill(first.id, "alice")
    with pytest.raises(TooManyJobs, match="at most 2 may") as refused:  # the one that is stopping counts
        await begin(runtime, Scripted())
    for way_out in ("job_kill", "wait", "retry"):
        assert way_out in str(refused.value)
    unowned = [Scripted(), Scripted()]
    for producer in unowned:
        await begin(runtime, producer, owner=None)
    with pytest.raises(TooManyJobs):
        await begin(runtime, Scripted(), owner=None)
    await begin(runtime, Scripted(), owner="bob")
    producers[0].end()
    await settled(runtime, first)
    await begin(runtime, Scripted())
    producers[1].end()
    await runtime.close()
    for limit in (0, True):
        with pytest.raises(InvalidRequest, match="at least 1"):
            JobRuntime(max_concurrent_jobs_per_owner=limit)


@pytest.mark.case("J-4", "J-8")
async def test_reads_are_the_owners_and_streams_are_read_once() -> None:
    runtime = JobRuntime()
    stream, final, open_to_all = Scripted(streams=True), Scripted(), Scripted()
    jobs = [await begin(runtime, stream), await begin(runtime, final), await begin(runtime, open_to_all, owner=None)]
    assert [job.id for job in runtime.list("alice")] == ["work-1", "work-2", "work-3"]
    assert [job.id for job in runtime.list("bob")] == ["work-3"]
    for caller in ("bob", None):
        with pytest.raises(NotAllowed, match=r"^job work-1 belongs to another session"):
            runtime.get("work-1", caller)
    with pytest.raises(UnknownJob, match=r"^unknown job work-9"):
        await runtime.read("work-9", "alice")
    stream.unread = "new"
    assert [(await runtime.read("work-1", "alice"))[0] for _ in range(2)] == ["new", ""]
    assert (await runtime.read("work-2", "alice"))[0] == ""
    final.end(output="the result")
    await settled(runtime, jobs[1])
    assert runtime.get("work-2", "alice").reported is False
    assert [(await runtime.read("work-2", "alice"))[0] for _ in range(2)] == ["the result"] * 2
    assert runtime.get("work-2", "alice").reported is True
    await runtime.close()


@pytest.mark.case("J-5")
async def test_a_kill_cancels_first_and_says_whether_it_was_needed() -> None:
    runtime = JobRuntime()
    stubborn, slow = Scripted(refuses=RuntimeError("not now")), Scripted(obeys=False)
    first, second = await begin(runtime, stubborn), await begin(runtime, slow)
    with pytest.raises(RuntimeError, match="not now"):
        await runtime.kill(first.id, "alice")
    assert runtime.get(first.id, "alice") == first
    assert await runtime.kill(second.id, "alice", "no longer needed") == "requested"
    stopping = runtime.get(second.id, "alice")
    assert (stopping.status, stopping.reported, slow.cancelled) == ("stopping", True, ["no longer needed"])
    slow.end("killed", "signal: SIGTERM")
    await settled(runtime, second)
    stubborn.end()
    await settled(runtime, first)
    assert await runtime.kill(first.id, "alice") == "already-finished"
    assert runtime.get(first.id, "alice").reported is True
    await runtime.close()


@pytest.mark.case("J-6")
async def test_a_wait_is_bounded_and_harms_nobody() -> None:
    runtime = JobRuntime()
    producer, signal = Scripted(), AbortSignal()
    job = await begin(runtime, producer)
    assert (await runtime.wait(job.id, "alice", 1)).status == "running"
    waiting = asyncio.create_task(runtime.wait(job.id, "alice", 60_000, abort=signal))
    await asyncio.sleep(0)
    signal.abort()
    with pytest.raises(StockadeError, match="the job goes on"):
        await waiting
    assert producer.cancelled == []
    producer.end()
    assert (await runtime.wait(job.id, "alice", 60_000, abort=signal)).status == "completed"  # the end wins
    for bound in (0, -1, float("inf"), float("nan"), True):
        with pytest.raises(InvalidRequest, match="timeout_ms must be a positive finite number"):
            await runtime.wait(job.id, "alice", bound)
    await runtime.close()


@pytest.mark.case("J-7", "J-10")
async def test_the_end_is_known_before_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    runtime = JobRuntime()
    told: list[str] = []

    def fails(what: object) -> None:
        raise RuntimeError("its own affair")

    runtime.on_done(fails)
    runtime.on_jobs_changed(fails)
    runtime.on_done(lambda job: told.append(f"{job.id} {job.status} {job.detail} {runtime.get(job.id, 'alice') == job}"))
    runtime.on_jobs_changed(lambda owner: told.append(f"changed: {owner}"))
    producer, broken = Scripted(obeys=False), Scripted()
    with caplog.at_level(logging.ERROR, "stockade"):
        job, failed = await begin(runtime, producer), await begin(runtime, broken)
        await runtime.kill(job.id, "alice")
        producer.end("killed", "signal: SIGTERM")
        await settled(runtime, job)
        broken.fail(RuntimeError("the disk is gone"))
        await settled(runtime, failed)
        await runtime.close_owner("alice")
    assert told == [
        *["changed: alice"] * 4,  # two new ones, one stopping, one settled
        "work-1 killed signal: SIGTERM True",
        "changed: alice",
        "work-2 failed the disk is gone True",
        "changed: alice",
    ]
    assert runtime.list("alice") == ()
    assert "a listener of jobs failed" in caplog.text


@pytest.mark.case("J-9")
async def test_an_owner_that_goes_takes_its_jobs_along() -> None:
    runtime, told = JobRuntime(), list[str]()
    runtime.on_done(lambda job: told.append(f"{job.id} {job.status} {job.reported}"))
    obedient, stubborn, other = Scripted(), Scripted(refuses=RuntimeError("no")), Scripted()
    for producer, owner in ((obedient, "alice"), (stubborn, "alice"), (other, "bob")):
        await begin(runtime, producer, owner=owner)
    await runtime.close_owner("alice")
    assert sorted(told) == ["work-1 killed True", "work-2 failed True"]
    assert (runtime.list("alice"), [job.id for job in runtime.list("bob")]) == ((), ["work-3"])
    await runtime.close()
    assert (len(told), other.cancelled) == (2, ["its owner is gone"])
    with pytest.raises(Closed, match="make a new one"):
        await begin(runtime, Scripted())


def offered(runtime: JobRuntime, bash: Any, **options: Any) -> Toolset:
    tools = Toolset()
    BashTools(tools, bash, jobs=runtime, **options)
    JobTools(tools, runtime)
    return tools


async def call(tools: Toolset, name: str, context: CallContext = ALICE, **arguments: Any) -> str:
    result = await tools.call(name, arguments, context)
    return str(result["error"] if result.get("isError") else result["text"])


async def in_background(tools: Toolset, command: str, context: CallContext = ALICE) -> str:
    return await call(tools, "bash", context, command=command, description=f"Runs {command[-8:].strip()}", run_in_background=True)


@pytest.mark.case("J-11")
async def test_a_command_is_a_job_of_its_session(bash: SandboxedBash, workspace: Path) -> None:
    runtime = JobRuntime()
    tools = offered(runtime, bash)
    assert tools.names == ("bash", "job_output", "job_list", "job_kill")
    assert await call(tools, "job_list") == "(no background jobs)"
    assert await in_background(tools, f"echo first; {AWAIT_GO} echo second; exit 3") == "started background job bash-1"
    assert await in_background(tools, "exec sleep 60") == "started background job bash-2"
    assert await call(tools, "job_list") == "bash-1 [bash] running — Runs ; exit 3\nbash-2 [bash] running — Runs sleep 60"
    assert await call(tools, "job_list", BOB) == "(no background jobs)"
    assert await call(tools, "job_output", BOB, job_id="bash-1") == "job bash-1 belongs to another session"
    assert await call(tools, "job_output", job_id="bash-2", wait=True, timeout_ms=1) == "(no new output)\n[status: running]"
    (workspace / "go").touch()
    assert await call(tools, "job_output", job_id="bash-1", wait=True) == "first\nsecond\n[status: completed, exit code: 3]"
    assert await call(tools, "job_kill", job_id="bash-1") == "job bash-1 had already finished [status: completed, exit code: 3]"
    assert await call(tools, "job_kill", job_id="bash-2", reason="enough") == "requested cancellation of job bash-2"
    ended = await call(tools, "job_output", job_id="bash-2", wait=True)
    assert ended in ("(no new output)\n[status: killed, signal: SIGTERM]", "(no new output)\n[status: killed, killed before exit]")
    assert await call(tools, "job_output", job_id="bash-9") == "unknown job bash-9"
    with pytest.raises(InvalidRequest, match="wait_ms"):
        JobTools(Toolset(), runtime, wait_ms=5, max_wait_ms=4)
    await runtime.close()


@pytest.mark.case("J-12")
async def test_an_owner_is_told_once_of_what_it_has_not_seen() -> None:
    runtime, alice = JobRuntime(max_concurrent_jobs_per_owner=20), Conversation()
    sessions = {"alice": alice}
    notices = JobNotices(runtime, sessions.get)

    async def ends(**options: Any) -> None:
        producer = Scripted()
        job = await begin(runtime, producer, **options)
        producer.end("completed", "exit code: 0")
        await settled(runtime, job)

    for _ in range(4):
        await ends()
    assert [heard.partition(":")[0] for heard in alice.heard] == ["woken", "woken", "woken", "told"]
    assert alice.heard[0] == (
        'woken: background job work-1 is over [status: completed, exit code: 0]: A job; read its output with job_output {"job_id": "work-1"}'
    )
    notices.user_input("alice")
    await ends()
    await ends(quiet=True)
    await ends(owner="gone")
    await ends(owner=None)
    alice.is_idle = False
    await ends()
    assert [heard.partition(":")[0] for heard in alice.heard[4:]] == ["woken", "told", "told"]
    # Killed, waited for, torn down: its owner knows.
    killed, waited = Scripted(), Scripted()
    await runtime.kill((await begin(runtime, killed)).id, "alice")
    waiting = asyncio.create_task(runtime.wait((await begin(runtime, waited)).id, "alice", 60_000))
    await asyncio.sleep(0)
    waited.end()
    await waiting
    await begin(runtime, Scripted())
    await runtime.close_owner("alice")
    assert len(alice.heard) == 7
    notices.close()
    await runtime.close()


@pytest.mark.case("J-12")
def test_a_notice_is_bounded_and_keeps_what_matters() -> None:
    job = JobSnapshot("work-1", "work", "é" * 500, "alice", "completed", "exit code: 0")
    notice = notice_text(job, 200)
    assert len(notice.encode()) <= 200
    assert notice.startswith("background job work-1 is over [status: completed, exit code: 0]: é")
    assert notice.endswith('; read its output with job_output {"job_id": "work-1"}')
    assert notice_text(job, 1).endswith('{"job_id": "work-1"}')


@pytest.mark.case("J-13")
async def test_only_a_call_that_is_off_already_starts_nothing(bash: SandboxedBash) -> None:
    runtime, signal = JobRuntime(), AbortSignal()
    tools = offered(runtime, bash)
    context = CallContext("alice", signal)
    assert await in_background(tools, "exec sleep 60", context) == "started background job bash-1"
    signal.abort("the turn is over")
    assert runtime.get("bash-1", "alice").status == "running"
    assert "aborted before spawn: the turn is over" in await in_background(tools, "true", context)
    assert [job.id for job in runtime.list("alice")] == ["bash-1"]
    await runtime.close()


@pytest.mark.case("J-3", "J-14")
async def test_what_may_not_be_started_is_never_spawned() -> None:
    runtime, executor = JobRuntime(max_concurrent_jobs_per_owner=1), ScriptedBash()
    tools = offered(runtime, executor)
    await in_background(tools, "one")
    assert "at most 1 may" in await in_background(tools, "two")
    assert [spec.command for spec in executor.started] == ["one"]
    await runtime.close()
    assert "was closed" in await in_background(tools, "three")
    without = offered(JobRuntime(), executor, enable_run_in_background=False)
    bash = next(iter(without))
    assert "run_in_background" not in bash.shape + bash.description
    assert "there is no argument 'run_in_background'" in await in_background(without, "four")
    assert [spec.command for spec in executor.started] == ["one"]
