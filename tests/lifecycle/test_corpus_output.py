"""Public bug reports about output that is lost, doubled, cut or without end; what is kept is compared byte by byte on the host."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import hashlib
import json
import os
import random
import re
import time
from pathlib import Path

import psutil
import pytest

from stockade import Executor, Job, Policy
from stockade.config import from_environment
from stockade.errors import InvalidRequest
from stockade.launcher.outcome import Exited, OutputLimited
from support.corpus import observed, place
from support.waiting import BOUND, SLOWNESS, grows

MIB = 1 << 20
GROWTH = 64 * MIB  # of the supervisor's memory
SMILEY = "\U0001f642"
SLEEP = ["/usr/bin/sleep", "60"]


def policy(workspace: Path, **changes: object) -> Policy:
    return Policy(workspace=str(workspace), limits={"wall_time": 60 * SLOWNESS, "grace": 0.3}).replace(**changes)


async def start(executor: Executor, case: str, workspace: Path, **env: str) -> Job:
    return await executor.start([await asyncio.to_thread(place, case, workspace)], env=env)


async def kept(executor: Executor, job: Job, stream: str = "stdout") -> bytes:
    """What the files of the bank hold, read past the product."""
    paths = await executor.files(job.id, stream)
    return await asyncio.to_thread(lambda: b"".join(Path(path).read_bytes() for path in paths))


def most(cap: int) -> int:
    """Bytes on disk of a stream of which the tail is kept: its oldest segment is dropped as a whole."""
    return cap + 2 * max(cap // 4, 64 << 10) + 16


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def flood(begin: int, end: int) -> bytes:
    """Bytes `begin` to `end` of what b01 writes: lines of 18 bytes with their number."""
    first = begin // 18
    text = b"".join(b"%011d flood\n" % number for number in range(first, end // 18 + 1))
    return text[begin - 18 * first : end - 18 * first]


@pytest.mark.case("b01")
@pytest.mark.parametrize("polls", [False, True], ids=["nobody reads", "the tail is polled"])
@pytest.mark.parametrize("overflow", ["kill", "keep-tail"])
async def test_a_flood_costs_its_cap_and_nobody_else(workspace: Path, overflow: str, polls: bool) -> None:
    cap, limit = 4 * MIB, int(512 * MIB / SLOWNESS)  # within the 30 s after which the program stops by itself
    async with Executor(policy(workspace, overflow=overflow, limits={"output": cap})) as executor:
        idle = await executor.start(SLEEP)
        before = await asyncio.to_thread(resident)
        job = await start(executor, "b01", workspace, LIMIT=str(limit))
        waits, ended, sizes = [], False, []
        while not ended:
            began = time.monotonic()
            assert not (await executor.get(idle.id)).settled
            waits.append(time.monotonic() - began)
            sizes.append(await asyncio.to_thread(occupied, await executor.files(job.id)))
            if polls:
                content = (await executor.tail(job.id, chars=200)).content
                assert re.fullmatch(r"\d* ?\w*\n(\d{11} flood\n|END.*\n)*[\d flo]*", content) or content == ""
            ended = (await job.wait(0.1)).settled
        growth = await asyncio.to_thread(resident) - before
        record, data, tail = await job.wait(), await kept(executor, job), await executor.tail(job.id)
        increment = await executor.read_new(job.id)
        await idle.kill()
    assert max(waits) < 0.3 * SLOWNESS
    assert growth < GROWTH
    if overflow == "kill":
        assert record.outcome is not None
        assert (record.outcome.kind, record.sentence()) == ("output_limited", f"killed: output limit, {cap} bytes of stdout kept")
        assert data == flood(0, cap)
        assert record.stdout_bytes == cap
    else:
        assert record.outcome == Exited(0)
        lines = -(-limit // (4000 * 18)) * 4000
        end = b"END lines=%d bytes=%d\n" % (lines, lines * 18)
        total = lines * 18 + len(end)
        assert (tail.total_bytes, tail.whole) == (total, False)
        assert (increment.lossy, increment.lost_bytes >= total - cap) == (True, True)
        assert record.stdout_bytes == cap <= len(data)
        assert data.endswith(end)
        assert data[: -len(end)] == flood(total - len(data), lines * 18)
    assert max(sizes) <= (cap if overflow == "kill" else most(cap))


def occupied(paths: tuple[str, ...]) -> int:
    """Bytes of the files that are still there."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += os.stat(path).st_size
    return total


@pytest.mark.case("b02")
async def test_bytes_that_are_no_text_are_kept_as_they_are_and_read_as_text(workspace: Path, tmp_path: Path) -> None:
    config = from_environment(state_dir=str(tmp_path / "state"))
    async with Executor(policy(workspace), config=config) as executor:
        job = await start(executor, "b02", workspace)
        result = await job.result()
        assert result.outcome == Exited(0)
    async with Executor(policy(workspace), config=config) as executor:  # and after a restart
        page, said = await executor.read(job.id, limit=200_000), await executor.read(job.id, "stderr")
        data = (await executor.read_bytes(job.id)).data
        record = await executor.get(job.id)
        assert await kept(executor, job) == data == result.stdout
    binary, _, rest = data.rpartition(b"OBS len=")
    assert b"len=" + rest == b"len=%d sha256=%s\nEND\n" % (len(binary), hashlib.sha256(binary).hexdigest().encode())
    assert page.content == data.decode("utf-8", "replace")
    assert page.content.endswith("END\n")
    assert said.content == "bad-stderr \ufffd\n"
    assert json.loads(json.dumps(page.content).encode()) == page.content
    assert json.loads(record.model_dump_json())["stdout_bytes"] == len(data)


@pytest.mark.case("b03")
@pytest.mark.parametrize("merged", [False, True])
async def test_no_reader_sees_half_a_character(workspace: Path, merged: bool) -> None:
    """Merged, the other stream does stand in the middle of three characters: the bytes are as they were written."""
    async with Executor(policy(workspace, merge_streams=merged)) as executor:
        job = await start(executor, "b03", workspace)
        stream, polled, finished = "output" if merged else "stdout", "", False
        async with asyncio.timeout(BOUND):
            while not finished:
                increment = await executor.read_new(job.id, stream)
                polled, finished = polled + increment.content, increment.finished and not increment.has_more
                await asyncio.sleep(0 if increment.has_more else 0.05)
        assert (await job.wait()).outcome == Exited(0)
        data = await kept(executor, job, stream)
        if merged:
            assert data.startswith(b"".join(SMILEY.encode()[:cut] + b"<err>\n" + SMILEY.encode()[cut:] + b"\n" for cut in (1, 2, 3)))
        else:
            assert polled == data.decode()
            assert polled.count(SMILEY) == int(observed(data, "smileys="))
            assert await kept(executor, job, "stderr") == b"<err>\n" * 3
        assert polled == data.decode("utf-8", "replace")
        for size in (1000, 4096):
            text, page = "", await executor.read(job.id, stream, limit=size)
            decoder, decoded, window = (
                codecs.getincrementaldecoder("utf-8")("replace"),
                "",
                await executor.read_bytes(job.id, stream, limit=size),
            )
            while page.content:
                text += page.content
                page = await executor.read(job.id, stream, offset=page.next_offset, limit=size)
            while window.data:
                decoded += decoder.decode(window.data)
                window = await executor.read_bytes(job.id, stream, offset=window.next_offset, limit=size)
            assert text == decoded == polled


@pytest.mark.case("b03")
async def test_a_tail_of_a_capped_stream_begins_with_a_whole_character(workspace: Path) -> None:
    async with Executor(policy(workspace, overflow="keep-tail", limits={"output": 50_001})) as executor:
        job = await start(executor, "b03", workspace)
        assert (await job.wait()).outcome == Exited(0)
        end = "\nOBS smileys=20024\nEND\n"
        assert (await executor.tail(job.id, chars=len(end) + 10)).content == SMILEY * 10 + end
        increment, page = await executor.read_new(job.id), await executor.read(job.id)
        assert (increment.lossy, page.lossy) == (True, True)
        for content in (increment.content, page.content):
            assert content == SMILEY * (len(content) - len(end)) + end


@pytest.mark.case("b05")
async def test_the_last_burst_is_there_at_the_moment_the_state_is_final(workspace: Path) -> None:
    whole = b"".join(b"%06d %s\n" % (number, b"." * 44) for number in range(6500)) + b"LAST"
    async with Executor(policy(workspace)) as executor:
        program = await asyncio.to_thread(place, "b05", workspace)
        gate = asyncio.Semaphore(20)

        async def one() -> tuple[Job, bool]:
            async with gate:
                job = await executor.start([program])
                record = await job.wait()
                assert (record.outcome, record.stdout_bytes) == (Exited(7), len(whole))
                return job, await kept(executor, job) == whole

        jobs = await asyncio.gather(*(one() for _ in range(100)))
        assert all(complete for _, complete in jobs)
        files = [Path(path) for job, _ in jobs[-20:] for path in await executor.files(job.id)]
        assert not await asyncio.to_thread(grows, files, window=2)
        assert all([await kept(executor, job) == whole for job, _ in jobs])


@pytest.mark.case("b06")
async def test_one_line_of_32_mib_is_kept_whole_and_its_tail_stays_small(workspace: Path) -> None:
    async with Executor(policy(workspace, limits={"output": 64 * MIB})) as executor:
        before = await asyncio.to_thread(resident)
        job = await start(executor, "b06", workspace)
        ended = False
        while not ended:
            began = time.monotonic()
            tail = await executor.tail(job.id, chars=2000)
            assert time.monotonic() - began < 0.5 * SLOWNESS
            assert len(tail.content) <= 2000
            ended = (await job.wait(0.3)).settled
        assert (await job.wait()).outcome == Exited(0)
        tail = await executor.tail(job.id, chars=2000)
        head = await executor.read(job.id, limit=100)
        growth = await asyncio.to_thread(resident) - before
        data = await kept(executor, job)
    assert growth < GROWTH
    end = "\nafter the long line\nEND\n"
    assert tail.content == "z" * (2000 - len(end)) + end
    assert head.content.startswith("HEAD\n00000000zzz")
    digest = hashlib.sha256(b"HEAD\n")
    for number in range(32 * 16):
        digest.update(b"%08d" % number + b"z" * 65528)
    digest.update(end.encode())
    assert hashlib.sha256(data).hexdigest() == digest.hexdigest()


@pytest.mark.case("b07")
async def test_a_job_ends_with_its_main_program_and_says_nothing_afterwards(workspace: Path) -> None:
    """The child would have written for another four seconds."""
    async with Executor(policy(workspace)) as executor:
        job = await start(executor, "b07", workspace)
        record = await job.wait(BOUND)
        assert record.outcome == Exited(3)
        data = await kept(executor, job)
        assert data == b"main line\n"
        files = [Path(path) for path in await executor.files(job.id)]
        assert not await asyncio.to_thread(grows, files, window=5)
        assert await executor.get(job.id) == await job.wait()


@pytest.mark.case("b09")
@pytest.mark.parametrize("overflow", ["kill", "keep-tail"])
async def test_a_program_that_nobody_reads_is_never_held_at_the_cap(workspace: Path, overflow: str) -> None:
    cap = MIB
    async with Executor(policy(workspace, overflow=overflow, limits={"output": cap})) as executor:
        job = await start(executor, "b09", workspace)
        record = await job.wait(BOUND)
        stdout, stderr, tail = await kept(executor, job), await kept(executor, job, "stderr"), await executor.tail(job.id)
    line, done = b"a" * 65535 + b"\n", workspace / "b09.done"
    if overflow == "kill":
        assert isinstance(record.outcome, OutputLimited)
        assert stdout == (line * 16)[:cap]
        assert not done.exists()
        return
    assert record.outcome == Exited(0)
    assert float((await asyncio.to_thread(done.read_text)).removeprefix("slowest_write=")) < 1 * SLOWNESS
    assert stderr == b"stderr after the flood\n"
    assert tail.total_bytes == 3200 * 65536 + 4
    assert record.stdout_bytes == cap <= len(stdout) <= most(cap)
    assert stdout == ((line * 40) + b"END\n")[-len(stdout) :]


def numbered() -> tuple[bytes, bytes, bytes]:
    """What b10 writes to stdout, to stderr, and both in order."""
    chance, streams, merged = random.Random(10), {1: b"", 2: b""}, b""
    for number in range(3000):
        text = f"#{number:04} {('中é' + SMILEY) * chance.randrange(1, 8)}\n"
        streams[1 if number % 3 else 2] += text.encode()
        merged += text.encode()
        if chance.random() < 0.08:
            chance.random()
    return streams[1] + b"END\n", streams[2], merged + b"END\n"


@pytest.mark.case("b10")
@pytest.mark.parametrize("merged", [False, True])
async def test_pollers_with_places_of_their_own_get_each_byte_once(workspace: Path, merged: bool) -> None:
    chance = random.Random(11)
    stdout, stderr, both = numbered()

    async def incremental(reader: str, stream: str) -> str:
        """By a cursor that the executor keeps."""
        text, place = "", 0
        while True:
            new = await executor.read_new(job.id, stream, reader=reader)
            assert (new.byte_offset, new.lossy) == (place, False)
            text, place = text + new.content, new.next_byte_offset
            if new.finished and not new.has_more:
                return text
            await asyncio.sleep(chance.uniform(0.001, 0.3))

    async def by_offset(stream: str) -> bytes:
        """By offsets of its own, with questions that make no sense in between."""
        data, place = b"", 0
        while True:
            settled = (await executor.get(job.id)).settled
            page = await executor.read_bytes(job.id, stream, offset=place)
            assert page.offset == place <= page.next_offset
            data, place = data + page.data, page.next_offset
            if settled and not page.data:
                return data
            beyond = await executor.read(job.id, stream, offset=10**9)
            assert (beyond.content, beyond.has_more) == ("", False)
            assert (await executor.read_bytes(job.id, stream, offset=10**9)).data == b""
            with pytest.raises(InvalidRequest, match="give an int, 0 or more"):
                await executor.read_bytes(job.id, stream, offset=-5, limit=3)
            if len(data) > 8:
                middle = await executor.read_bytes(job.id, stream, offset=7, limit=4)  # in the middle of the first character
                assert middle.data == data[7:11]
            await asyncio.sleep(chance.uniform(0.001, 0.3))

    async with Executor(policy(workspace, merge_streams=merged)) as executor:
        job = await start(executor, "b10", workspace)
        expected = {"output": both} if merged else {"stdout": stdout, "stderr": stderr}
        async with asyncio.timeout(40 * SLOWNESS):
            answers = await asyncio.gather(
                *(poll for name in expected for poll in (incremental("one", name), incremental("two", name), by_offset(name)))
            )
        assert (await job.wait()).outcome == Exited(0)
        for (name, whole), number in zip(expected.items(), range(0, 6, 3), strict=False):
            assert answers[number : number + 3] == [whole.decode(), whole.decode(), whole]
            assert await kept(executor, job, name) == whole
