"""Streams keep what they are given up to the cap, and count what is on disk (N-K3, N-K4, U-16 to U-18)."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.bank.bank import Bank
from stockade.bank.private import Directory
from stockade.bank.streams import MIB, Overflow, SinkFailed, Stream

KIB = 1024


@pytest.mark.case("NX-01")
def test_filling_the_cap_exactly_is_normal(directory: Directory) -> None:
    stream, writer = Stream.create(directory, "stdout", cap=10, overflow=Overflow.KILL)
    assert writer.write(b"0123456789")
    assert writer.write(b"")
    writer.close()
    assert stream.extent().size == 10


@pytest.mark.case("NX-02")
@pytest.mark.parametrize("sizes", [[11], [10, 1], [4, 4, 4], [1] * 11, [100]])
def test_one_byte_more_is_refused_and_exactly_the_cap_is_kept(directory: Directory, sizes: list[int]) -> None:
    stream, writer = Stream.create(directory, "stdout", cap=10, overflow=Overflow.KILL)
    data = bytes(range(sum(sizes)))
    answers, position = [], 0
    for size in sizes:
        answers.append(writer.write(data[position : position + size]))
        position += size
    writer.close()
    assert answers == [True] * (len(sizes) - 1) + [False]
    assert Path(stream.paths[0]).read_bytes() == data[:10]
    assert stream.extent().size == 10


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    cap=st.integers(1, 300 * KIB),
    sizes=st.lists(st.integers(0, 150 * KIB), max_size=12),
    unit=st.sampled_from([b"x", b"0123456789\n", "漢字\n".encode(), b"\xe2", b"\xf0\x9f", b"\xff\x00"]),
)
def test_a_tail_is_the_last_cap_bytes_and_costs_little_more_disk(
    tmp_path_factory: pytest.TempPathFactory, cap: int, sizes: list[int], unit: bytes
) -> None:
    path = tmp_path_factory.mktemp("tail")
    directory = Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))
    stream, writer = Stream.create(directory, "out", cap=cap, overflow=Overflow.KEEP_TAIL)
    data = (unit * (sum(sizes) // len(unit) + 1))[: sum(sizes)]
    position = 0
    for size in sizes:
        assert writer.write(data[position : position + size])
        position += size
        extent = stream.extent()
        assert stream.pread(extent.start, extent.size) == data[:position][-cap:]
    writer.close()
    assert sum(file.stat().st_size for file in path.glob("*.log")) <= cap + 2 * max(cap // 4, 64 * KIB) + 16
    loaded = Stream.load(directory, "out", cap=cap, overflow=Overflow.KEEP_TAIL)
    assert loaded.extent() == stream.extent()
    assert loaded.indexed().totals() == stream.index.totals()
    assert stream.index.totals().lines == data.count(b"\n")


@pytest.mark.case("NX-17")
def test_a_full_disk_ends_the_stream_with_a_truthful_count(small_disk: Path) -> None:
    account = Bank(small_disk / "bank").open_account("job", cap=64 * MIB)
    writer, written = account.writer("stdout"), 0

    def fill() -> None:
        nonlocal written
        while True:
            writer.write(bytes([written % 251]) * 70_001)
            written += 1

    with pytest.raises(SinkFailed) as caught:
        fill()
    size = account.reader("stdout").size
    assert (caught.value.errno, caught.value.persisted) == (errno.ENOSPC, size)
    assert "stdout sink failed" in str(caught.value)
    assert "ENOSPC" in str(caught.value)
    on_disk = Path(writer.stream.paths[0])
    assert on_disk.stat().st_size == size > 0
    assert account.reader("stdout").read_bytes(0, 70_001).data == b"\0" * 70_001
    with pytest.raises(SinkFailed):
        writer.write(b"more")
    assert [failure.stream for failure in account.close()] == ["stdout"]
    assert Bank(small_disk / "bank").account("job").reader("stdout").size == size


@pytest.mark.case("NX-11")
@pytest.mark.parametrize("writes_on", [True, False])
def test_a_directory_removed_while_running_is_noticed(bank: Bank, writes_on: bool) -> None:
    account = bank.open_account("job", cap=MIB)
    account.writer("stdout").write(b"before")
    bank_path = Path(account.path)
    for file in bank_path.iterdir():
        file.unlink()
    bank_path.rmdir()
    if writes_on:
        with pytest.raises(SinkFailed, match="stdout sink failed: the file was removed"):
            account.writer("stdout").write(b"after")
        assert account.reader("stdout").read_chars().content == "before"
    failures = account.close()
    assert {failure.stream: failure.errno for failure in failures} == {"stdout": errno.ENOENT, "stderr": errno.ENOENT}
    assert account.sizes()["stdout"] == 6
    page = account.reader("stdout").read_chars()
    assert (page.content, page.lossy) == ("", True)


def test_access_withdrawn_from_a_rotating_stream_is_a_sink_failure(bank: Bank) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs to change to a user without rights")
    account = bank.open_account("job", streams=("out",), cap=64 * KIB, overflow=Overflow.KEEP_TAIL)
    account.writer("out").write(bytes(64 * KIB))
    os.seteuid(65_534)
    try:
        with pytest.raises(SinkFailed) as caught:
            account.writer("out").write(b"x")
    finally:
        os.seteuid(0)
    assert caught.value.errno == errno.EACCES
    assert account.reader("out").read_bytes().data == bytes(64 * KIB)
    assert len(account.close()) == 1


def test_a_failing_close_is_reported(directory: Directory) -> None:
    stream, writer = Stream.create(directory, "stdout", cap=10, overflow=Overflow.KILL)
    writer.write(b"abc")
    fd = stream.segments._rows[-1].fd
    assert fd is not None
    os.close(fd)
    with pytest.raises(SinkFailed) as caught:
        writer.close()
    assert (caught.value.errno, caught.value.readable) == (errno.EBADF, False)
    assert stream.extent().finished


def test_binary_data_is_kept_at_once_and_counted_when_it_is_first_read(directory: Directory) -> None:
    data = os.urandom(3 * MIB)
    stream, writer = Stream.create(directory, "stdout", cap=4 * MIB, overflow=Overflow.KILL)
    for begin in range(0, len(data), MIB):
        writer.write(data[begin : begin + MIB])
    assert stream.index.totals().bytes < len(data)
    writer.close()
    totals = stream.indexed().totals()
    assert (totals.bytes, totals.chars + totals.pending_chars) == (len(data), len(data.decode("utf-8", "replace")))


@pytest.mark.parametrize("damage", ["missing", "torn", "garbage"])
def test_a_lost_or_torn_index_is_made_again(directory: Directory, damage: str) -> None:
    data = "zeile 漢\n".encode() * 300_000
    stream, writer = Stream.create(directory, "stdout", cap=8 * MIB, overflow=Overflow.KILL)
    writer.write(data)
    writer.close()
    marks = Path(directory.path) / "stdout.0.marks"
    stored = marks.read_bytes()
    assert len(stored) > 24
    if damage == "missing":
        marks.unlink()
    else:
        marks.write_bytes(stored[: len(stored) // 2 + 5] if damage == "torn" else stored[:48] + os.urandom(len(stored)))
    loaded = Stream.load(directory, "stdout", cap=8 * MIB)
    assert loaded.indexed().totals() == stream.index.totals()
    assert loaded.index.marks() == stream.index.marks()


def test_readers_see_whole_characters_while_a_writer_runs(bank: Bank) -> None:
    account = bank.open_account("job", streams=("out",), cap=MIB, overflow=Overflow.KEEP_TAIL)
    writer, reader = account.writer("out"), account.reader("out")
    done = threading.Event()
    data = "漢字😀é\n".encode() * 20_000

    def write() -> None:
        for begin in range(0, len(data) * 8, 777):
            at = begin % len(data)
            writer.write(data[at : at + 777])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        page, tail = reader.read_chars(0, 500), reader.tail(500)
        assert not set(page.content) - set("漢字😀é\n�")
        assert len(tail.content) <= 500
    thread.join()
    account.close()
    extent = reader.stream.extent()
    assert extent.size == MIB
    assert reader.stream.index.totals().bytes == extent.total
