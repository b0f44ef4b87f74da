"""A job's directory that is made ahead: used whole or not at all, and never left behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stockade.bank.bank import Bank
from stockade.errors import StateError

MIB = 1 << 20
NAMES = ("stdout", "stderr")


def spares(bank: Bank) -> list[Path]:
    return sorted(Path(bank.root.path, "spares").iterdir())


def test_a_job_gets_the_spare_with_the_very_files_that_were_made(bank: Bank) -> None:
    bank.make_spare(NAMES)
    (spare,) = spares(bank)
    inodes = {path.name: path.stat().st_ino for path in spare.iterdir()}
    account = bank.open_account("job", cap=MIB)
    account.writer("stdout").write(b"text")
    place = Path(bank.root.path, "jobs", "job")
    assert {path.name: path.stat().st_ino for path in place.iterdir()} == inodes
    assert account.path == str(place)
    assert (place / "stdout.0.log").read_bytes() == b"text"
    assert spares(bank) == []
    account.close()
    again = Bank(bank.root.path)
    assert again.account("job").reader("stdout").read_bytes(0).data == b"text"
    again.close()


def test_everything_in_it_is_for_its_owner_alone(bank: Bank) -> None:
    bank.make_spare(NAMES)
    (spare,) = spares(bank)
    assert stat.S_IMODE(spare.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in spare.iterdir()} == {0o600}


def test_there_is_one_at_most_and_each_serves_one_job(bank: Bank) -> None:
    bank.make_spare(NAMES)
    bank.make_spare(NAMES)
    assert len(spares(bank)) == 1
    first, second = bank.open_account("first", cap=MIB), bank.open_account("second", cap=MIB)
    first.writer("stdout").write(b"1")
    second.writer("stdout").write(b"2")
    assert [account.reader("stdout").read_bytes(0).data for account in (first, second)] == [b"1", b"2"]
    for account in (first, second):
        account.close()


def test_one_with_other_streams_is_removed_and_not_used(bank: Bank) -> None:
    bank.make_spare(("output",))
    account = bank.open_account("job", cap=MIB)
    assert account.streams == NAMES
    assert sorted(os.listdir(account.path)) == ["open", "stderr.0.log", "stdout.0.log"]
    assert spares(bank) == []
    account.close()


def test_one_that_somebody_removed_is_no_loss(bank: Bank) -> None:
    bank.make_spare(NAMES)
    (spare,) = spares(bank)
    for path in spare.iterdir():
        path.unlink()
    spare.rmdir()
    account = bank.open_account("job", cap=MIB)
    account.writer("stdout").write(b"text")
    assert Path(account.path, "stdout.0.log").read_bytes() == b"text"
    account.close()


def test_a_job_id_that_was_used_before_is_refused_all_the_same(bank: Bank) -> None:
    bank.open_account("job", cap=MIB).close()
    bank.make_spare(NAMES)
    with pytest.raises(StateError, match="exists already"):
        bank.open_account("job", cap=MIB)
    assert spares(bank) == []


def test_closing_removes_it_and_makes_no_more(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    bank = Bank(tmp_path / "bank")
    bank.make_spare(NAMES)
    bank.close()
    bank.make_spare(NAMES)
    assert os.listdir(tmp_path / "bank" / "spares") == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_what_a_crash_has_left_is_swept(tmp_path: Path) -> None:
    left = tmp_path / "bank" / "spares" / "0123456789ab"
    Bank(tmp_path / "bank").close()
    left.mkdir(mode=0o700)
    (left / "stdout.0.log").write_bytes(b"")
    bank = Bank(tmp_path / "bank")
    bank.sweep_spares()
    assert spares(bank) == []
    bank.close()
