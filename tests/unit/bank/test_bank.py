"""The bank's directories are private, exclusive, and outlive the process (U-15)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stockade.bank.bank import Bank
from stockade.bank.streams import MIB, Overflow
from stockade.errors import InvalidRequest, StateError, UnknownJob

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to change to a user without rights")


def test_everything_is_for_its_owner_alone(bank: Bank) -> None:
    account = bank.open_account("job", cap=MIB)
    account.writer("stdout").write(b"text")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [Path(bank.root.path), *Path(bank.root.path).rglob("*")]}
    directories = {"bank", "jobs", "spares", "trash", "job"}
    assert {name: mode for name, mode in modes.items() if name in directories} == dict.fromkeys(directories, 0o700)
    assert {mode for name, mode in modes.items() if name not in directories} == {0o600}
    account.close()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_root_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "bank"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(StateError, match="hint: chmod 700"):
        Bank(root)


def test_a_root_that_is_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(StateError, match="symbolic link or not a directory"):
            Bank(tmp_path / name)


@as_root
def test_a_root_of_somebody_else_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "bank"
    root.mkdir(0o700)
    os.chown(root, 65_534, 65_534)
    with pytest.raises(StateError, match="belongs to user 65534"):
        Bank(root)


@as_root
def test_an_account_that_cannot_be_made_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "bank"
    bank = Bank(root)
    os.seteuid(65_534)
    try:
        with pytest.raises(StateError, match=r"(?i)permission denied"):
            bank.open_account("job", cap=1)
    finally:
        os.seteuid(0)
    assert list((root / "jobs").iterdir()) == []


def test_an_account_that_finds_no_space_leaves_nothing(small_disk: Path) -> None:
    bank = Bank(small_disk / "bank")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    with pytest.raises(StateError, match="No space left"):
        bank.open_account("job", cap=1)
    assert list((small_disk / "bank" / "jobs").iterdir()) == []
    filler.unlink()
    bank.open_account("job", cap=1).close()


def test_an_id_is_used_once(bank: Bank) -> None:
    bank.open_account("job", cap=1).close()
    with pytest.raises(StateError, match="exists already"):
        bank.open_account("job", cap=1)


def test_a_planted_link_is_not_followed(bank: Bank, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    Path(bank.root.path, "jobs", "job").symlink_to(tmp_path / "victim")
    with pytest.raises(StateError):
        bank.open_account("job", cap=1)
    with pytest.raises(UnknownJob):
        bank.account("job")
    bank.remove("job")
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [{"job_id": "../x"}, {"job_id": ""}, {"streams": ("a/b",)}, {"streams": ()}, {"cap": 0}, {"cap": -1}],
    ids=str,
)
def test_arguments_that_make_no_sense_name_their_field(bank: Bank, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bank.open_account(**{"job_id": "job", "cap": 1, **arguments})  # type: ignore[arg-type]
    assert caught.value.field == next(iter(arguments))


def test_an_account_is_readable_after_a_restart(bank: Bank) -> None:
    account = bank.open_account("job", streams=("output",), cap=100, overflow=Overflow.KEEP_TAIL)
    account.writer("output").write("é".encode() * 100)
    account.close()
    again = Bank(bank.root.path).account("job")
    assert again.terms == account.terms
    assert again.reader("output").read_chars() == account.reader("output").read_chars()
    assert again.sizes() == {"output": 100}
    with pytest.raises(InvalidRequest, match="no stream"):
        again.writer("output")
    with pytest.raises(InvalidRequest, match="use one of output"):
        again.reader("stdout")


def test_the_account_of_a_dead_supervisor_is_kept_until_it_is_sealed(bank: Bank) -> None:
    account = bank.open_account("job", cap=100)
    account.writer("stdout").write("é".encode()[:1])
    after = Bank(bank.root.path)
    assert after.jobs()[0].pinned
    assert after.account("job").reader("stdout").read_chars().content == ""
    after.seal("job")
    assert not after.jobs()[0].pinned
    assert after.account("job").reader("stdout").read_chars().content == "�"
    account.close()


def test_a_damaged_account_is_named_and_can_be_removed(bank: Bank) -> None:
    bank.open_account("job", cap=1).close()
    Path(bank.root.path, "jobs", "job", "account.json").write_text('{"version": 1, "job_id": "other"}')
    with pytest.raises(StateError, match="missing or damaged"):
        Bank(bank.root.path).account("job")
    bank.remove("job")
    assert bank.jobs() == ()


def test_what_is_being_written_is_not_removed(bank: Bank) -> None:
    account = bank.open_account("job", cap=1)
    with pytest.raises(InvalidRequest, match="still writing"):
        bank.remove("job")
    account.close()
    bank.remove("job")
    bank.remove("job")
    with pytest.raises(UnknownJob):
        bank.account("job")


def test_descriptors_do_not_grow_with_the_number_of_jobs(bank: Bank) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        account = bank.open_account(f"job{number}", cap=10)
        account.writer("stdout").write(b"x")
        account.close()
    del account
    assert len(os.listdir("/proc/self/fd")) - before <= 70
