"""A cursor delivers everything once, in whole characters (U-19)."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.bank.bank import Bank
from stockade.bank.cursors import Cursor
from stockade.bank.private import Directory
from stockade.bank.streams import MIB, Overflow, Stream
from unit.bank.texts import chunks, cuts, payloads


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    path = tmp_path_factory.mktemp("cursors")
    return Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))


@settings(deadline=None)
@given(payloads, cuts, st.integers(1, 40))
def test_reads_between_writes_add_up_to_the_text(shared: Directory, data: bytes, at: list[int], limit: int) -> None:
    stream, writer = Stream.create(shared, "s" + os.urandom(8).hex(), cap=4096 * 16, overflow=Overflow.KILL)
    cursor = Cursor(stream)
    parts: list[str] = []
    for chunk in chunks(data, at):
        writer.write(chunk)
        parts.append(cursor.read(limit).content)
    writer.close()
    while True:
        increment = cursor.read(limit)
        assert len(increment.content) <= limit
        assert not increment.lossy
        parts.append(increment.content)
        if increment.finished:
            break
    assert "".join(parts) == data.decode("utf-8", "replace")
    assert cursor.read().content == ""


@pytest.mark.parametrize("character", ["é", "漢", "😀"])
def test_a_character_cut_between_writes_is_delivered_once_and_whole(bank: Bank, character: str) -> None:
    data = character.encode()
    for cut in range(1, len(data)):
        account = bank.open_account(f"job{cut}", streams=("out",), cap=MIB)
        cursor = account.cursors("out").cursor()
        account.writer("out").write(data[:cut])
        assert cursor.read().content == ""
        account.writer("out").write(data[cut:])
        assert cursor.read().content == character
        account.writer("out").write(data[:cut])
        account.close()
        assert cursor.read().content == "�"


def test_each_token_has_its_own_place(bank: Bank) -> None:
    account = bank.open_account("job", streams=("out",), cap=MIB)
    cursors = account.cursors("out")
    account.writer("out").write(b"one ")
    assert cursors.cursor().read().content == "one "
    account.writer("out").write(b"two")
    assert [cursors.cursor(token).read().content for token in ("", "a", "a", "")] == ["two", "one two", "", ""]
    assert cursors.resume("a", 4).read().content == "two"
    account.close()


def test_a_cursor_that_was_overtaken_says_how_much_is_lost(bank: Bank) -> None:
    account = bank.open_account("job", streams=("out",), cap=1000, overflow=Overflow.KEEP_TAIL)
    cursor = account.cursors("out").cursor()
    account.writer("out").write("漢".encode() * 200)
    assert cursor.read().content == "漢" * 200
    account.writer("out").write("漢".encode() * 200_000)
    increment = cursor.read()
    assert (increment.lossy, increment.content) == (True, "漢" * 333)
    assert increment.lost_bytes == 600_000 - 999
    assert not cursor.read().lossy
    account.close()


def test_a_cursor_whose_file_is_gone_says_so_once(bank: Bank) -> None:
    account = bank.open_account("job", streams=("out",), cap=1000)
    account.writer("out").write(b"text")
    account.close()
    cursor = account.cursors("out").cursor()
    bank.remove("job")
    first, second = cursor.read(), cursor.read()
    assert (first.content, first.lossy, first.lost_bytes, first.finished) == ("", True, 4, True)
    assert (second.content, second.lossy) == ("", False)
