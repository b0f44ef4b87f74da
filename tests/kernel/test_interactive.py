"""Jobs that are written to while they run: what goes in comes out, with back-pressure, bounds and answers that say how far it got."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade import Executor, Job, Policy, Terminal
from stockade.errors import InputClosed, InputNotTaken, InvalidRequest, NotInteractive, UnknownJob
from stockade.launcher.outcome import Exited, TimedOut
from support.dialogue import Dialogue
from support.programs import TRUE, python, shell

RAW_CAT = shell("stty raw -echo; echo ready; exec cat")
PIPE = 65_536  # bytes that a pipe holds
INPUTS = st.lists(st.lists(st.binary(max_size=3000), max_size=8), min_size=1, max_size=6)
FEW = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def rest(job: Job) -> bytes:
    return (await job.result()).stdout


@FEW
@given(inputs=INPUTS)
async def test_bytes_in_are_bytes_out_however_they_are_cut(inputs: list[list[bytes]]) -> None:
    async with Executor(Policy()) as executor:
        for chunks in inputs:
            job = await executor.start(["cat"], interactive=True)
            for chunk in chunks:
                assert await job.write_stdin(chunk) == len(chunk)
            await job.close_stdin()
            assert await rest(job) == b"".join(chunks)


@FEW
@given(inputs=INPUTS)
async def test_so_they_are_through_a_raw_terminal(inputs: list[list[bytes]]) -> None:
    async with Executor(Policy()) as executor:
        for chunks in inputs:
            cat = Dialogue(executor, await executor.start(RAW_CAT, tty=Terminal()))
            await cat.expect(b"ready\n")
            for chunk in [*chunks, b"the end of it all"]:
                await cat.job.write_stdin(chunk)
            await cat.expect(b"the end of it all")
            await cat.job.kill(grace=0)
            assert await rest(cat.job) == b"ready\n" + b"".join(chunks) + b"the end of it all"


async def test_megabytes_pass_in_one_call_and_the_loop_goes_on() -> None:
    data = bytes(range(256)) * 16_384
    async with Executor(Policy()) as executor:
        job = await executor.start(["sha256sum"], interactive=True)
        assert await job.write_stdin(data) == len(data) == 4 << 20
        await job.close_stdin()
        assert (await rest(job)).split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_a_job_is_answered_while_it_runs_and_its_record_says_so() -> None:
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(python("for line in iter(input, 'stop'): print(line.upper())"), interactive=True))
        await talk.type(b"one\n", b"ONE\n")
        await talk.type(b"two\n", b"TWO\n")
        assert (await executor.get(talk.job.id)).interactive
        await talk.job.write_stdin(b"stop\n")
        record = await talk.job.wait(10)
        assert (record.outcome, record.interactive, record.tty, record.input) == (Exited(0), True, False, None)


async def test_a_job_that_does_not_read_takes_what_its_pipe_holds_and_the_writer_is_told() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["sleep", "60"], interactive=True)
        with pytest.raises(InputNotTaken, match=f"taken {PIPE} of 100000 bytes within 0.3 s") as late:
            await job.write_stdin(bytes(100_000), timeout=0.3)
        assert (late.value.taken, type(late.value)) == (PIPE, InputNotTaken)
        with pytest.raises(InputNotTaken) as late:
            await job.write_stdin(b"x", timeout=0)
        assert late.value.taken == 0
        await job.kill(grace=0)


async def test_without_time_to_wait_what_there_is_room_for_is_taken_all_the_same() -> None:
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(shell("echo ready; exec cat"), interactive=True))
        await talk.expect(b"ready\n")
        assert await talk.job.write_stdin(b"at once", timeout=0) == 7
        await talk.job.close_stdin(timeout=0)
        assert await rest(talk.job) == b"ready\nat once"


async def test_what_many_callers_have_waiting_is_bounded_and_their_calls_are_not_mixed() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(shell("read -r go; exec cat"), interactive=True)
        piece = 3 << 20
        calls = [asyncio.create_task(job.write_stdin(bytes([65 + number]) * piece)) for number in range(5)]
        await asyncio.sleep(0)
        while not calls[0].done() and executor._live[job.id].input._waiting < 5 * piece:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        with pytest.raises(InputNotTaken, match="bytes wait for the job to read already"):
            await job.write_stdin(bytes(piece))
        # `read` takes bytes until a line ends, and none of them is one: it gets the rest too, at the end of file.
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await job.kill(grace=0)

    async with Executor(Policy()) as executor:
        job = await executor.start(["cat"], interactive=True)
        await asyncio.gather(*(job.write_stdin(bytes([65 + number]) * 300_000) for number in range(5)))
        await job.close_stdin()
        assert await rest(job) == b"".join(bytes([65 + number]) * 300_000 for number in range(5))


async def test_a_job_that_has_closed_its_input_is_an_answer() -> None:
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(shell("exec 0<&-; echo closed; sleep 60"), interactive=True))
        await talk.expect(b"closed")
        for _ in range(2):
            with pytest.raises(InputClosed, match="nobody reads it any more") as refused:
                await talk.job.write_stdin(b"x")
            assert refused.value.taken == 0
        await talk.job.close_stdin()
        await talk.job.kill(grace=0)


async def test_a_writer_that_waits_is_told_when_the_job_stops_reading() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(shell("head -c 100 >/dev/null; exec 0<&-; exec sleep 60"), interactive=True)
        with pytest.raises(InputClosed) as refused:
            await job.write_stdin(bytes(1 << 20))
        assert 100 <= refused.value.taken < 1 << 20
        await job.kill(grace=0)


async def test_after_the_end_and_after_close_nothing_can_be_written() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["cat"], interactive=True)
        await job.close_stdin()
        with pytest.raises(InputClosed, match="its standard input has been closed"):
            await job.write_stdin(b"x")
        await job.close_stdin()  # once is enough, twice is no harm
        assert (await job.wait(10)).outcome == Exited(0)
        with pytest.raises(InputClosed, match="it has ended: exit 0"):
            await job.write_stdin(b"x")


async def test_jobs_that_were_not_started_so_cannot_be_written_to() -> None:
    async with Executor(Policy()) as executor:
        for job in (await executor.start(["sleep", "60"]), await executor.start(["cat"], stdin=b"given")):
            with pytest.raises(NotInteractive, match="interactive=True or tty"):
                await job.write_stdin(b"x")
            with pytest.raises(NotInteractive):
                await job.close_stdin()
        await executor.kill_all()


async def test_bad_requests_are_refused_before_anything_is_written() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["cat"], interactive=True, owner="me")
        for data, timeout, field in (("text", 1, "data"), (bytes((4 << 20) + 1), 1, "data"), (b"", -1, "timeout"), (b"", None, "timeout")):
            with pytest.raises(InvalidRequest) as refused:
                await job.write_stdin(data, timeout=timeout)  # type: ignore[arg-type]
            assert refused.value.field == field
        with pytest.raises(InvalidRequest, match="interactive"):
            await executor.start(TRUE, interactive="yes")
        for caller in ("you", None):
            with pytest.raises(UnknownJob):
                await executor.write_stdin(job.id, b"x", caller=caller)
        assert await executor.write_stdin(job.id, b"mine", caller="me") == 4
        await executor.close_stdin(job.id, caller="me")
        assert await rest(job) == b"mine"


async def test_a_key_stands_for_the_way_in_and_not_for_what_was_written() -> None:
    async with Executor(Policy()) as executor:
        first = await executor.start(["cat"], interactive=True, key="k")
        await first.write_stdin(b"once")
        again = await executor.start(["cat"], interactive=True, key="k")
        assert again.id == first.id
        for parts in ({}, {"stdin": b"once"}, {"tty": Terminal()}):
            with pytest.raises(InvalidRequest, match="environment or stdin"):
                await executor.start(["cat"], key="k", **parts)
        await again.close_stdin()
        assert await rest(again) == b"once"
        terminal = await executor.start(["tty"], tty=Terminal(), key="t")
        assert (await executor.start(["tty"], tty=Terminal(rows=50), key="t")).id == terminal.id


async def test_a_command_too_large_for_a_message_is_interactive_all_the_same() -> None:
    async with Executor(Policy()) as executor:
        for parts in ({"interactive": True}, {"tty": Terminal()}):
            job = await executor.start(["sh", "-c", "read -r x; echo got $x", "x" * 100_000], **parts)
            await job.write_stdin(b"it\n")
            assert (await rest(job)).endswith(b"got it\n" if "interactive" in parts else b"got it\r\n")


async def test_who_works_with_a_job_keeps_it_from_being_idle() -> None:
    async with Executor(Policy(limits={"idle_time": 0.6, "grace": 0.1})) as executor:
        job = await executor.start(shell("cat >/dev/null"), interactive=True)
        for _ in range(6):
            await job.write_stdin(b"x")
            await asyncio.sleep(0.2)
        assert not (await executor.get(job.id)).settled
        assert isinstance((await job.wait(10)).outcome, TimedOut)


async def test_standard_input_can_be_opened_by_its_name() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["cat", "/dev/stdin"], interactive=True)
        await job.write_stdin(b"by name")
        await job.close_stdin()
        assert await rest(job) == b"by name"
