"""Files come out of a workspace by descriptor: regular ones, within the limits, and never through a link."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.bank.taking import DEFAULT_LIMITS, Harvest, TakeLimits, take_files
from stockade.bank.trees import remove_tree

Take = Callable[..., Harvest]
GIB = 1024**3


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def take(tmp_path: Path, workspace: Path) -> Iterator[Take]:
    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    stored = tmp_path / "stored"
    stored.mkdir()

    def target(path: str) -> tuple[str, int]:
        name = str(len(list(stored.iterdir())))
        return name, os.open(stored / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)

    def run(paths: list[str] | None = None, limits: TakeLimits = DEFAULT_LIMITS) -> Harvest:
        return take_files(root, paths, target, limits)

    yield run
    os.close(root)


def reasons(harvest: Harvest) -> dict[str, str]:
    return {refusal.path: refusal.reason for refusal in harvest.refused}


def test_files_are_copied_byte_for_byte(take: Take, workspace: Path, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "data").write_bytes(data)
    (workspace / "run").write_text("#!")
    (workspace / "run").chmod(0o755)
    (workspace / "empty").write_bytes(b"")
    harvest = take()
    assert [(taken.path, taken.size, taken.executable) for taken in harvest.taken] == [
        ("empty", 0, False), ("run", 2, True), ("a/b/data", 3_000_000, False),
    ]  # fmt: skip
    assert harvest.refused == ()
    assert (tmp_path / "stored" / harvest.taken[2].stored_as).read_bytes() == data
    assert take(["a/./b//data"]).taken[0].size == 3_000_000


def test_what_is_no_regular_file_is_refused_and_blocks_nothing(take: Take, workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc/passwd")
    (workspace / "linked").symlink_to("/etc")
    os.mkfifo(workspace / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.fspath(workspace / "socket"))
    (workspace / "directory").mkdir()
    expected = {"link": "it is a symbolic link", "linked": "it is a symbolic link", "fifo": "it is a fifo", "socket": "it is a socket"}
    if os.geteuid() == 0:
        os.mknod(workspace / "device", 0o600 | 0o020000, os.makedev(1, 5))
        expected["device"] = "it is a device"
    harvest = take()
    assert harvest.taken == ()
    assert reasons(harvest) == expected
    named = reasons(take(["directory", "linked/passwd", "link", "missing"]))
    assert named == {
        "directory": "it is a directory",
        "linked/passwd": "it leads through a symbolic link or a file",
        "link": "it is a symbolic link",
        "missing": "no such file or directory",
    }


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../secret", "", ".", "a\0b", "x" * 300])
def test_a_path_that_leads_out_is_refused(take: Take, workspace: Path, path: str) -> None:
    (workspace.parent / "secret").write_text("secret")
    (workspace / "a").mkdir()
    harvest = take([path])
    assert harvest.taken == ()
    assert list(reasons(harvest)) == [path]


def test_names_are_bytes(take: Take, workspace: Path) -> None:
    name = os.fsdecode(b"\xff\n\xfe")
    (workspace / name).write_text("x")
    assert [taken.path for taken in take().taken] == [name]


def test_every_limit_refuses_by_name(take: Take, workspace: Path) -> None:
    for number in range(5):
        (workspace / f"f{number}").write_bytes(bytes(100))
    (workspace / "large").write_bytes(bytes(1000))
    (workspace / "d" / "d").mkdir(parents=True)
    (workspace / "d" / "d" / "deep").write_text("")
    assert "limit of 999" in reasons(take(limits=TakeLimits(bytes_per_file=999)))["large"]
    few = take(limits=TakeLimits(files=2))
    assert (len(few.taken), "the rest was not looked at" in reasons(few)["."]) == (2, True)
    assert len(take(["f0", "f1", "f2"], TakeLimits(files=2)).refused) == 1
    total = take(limits=TakeLimits(bytes_total=250))
    assert [taken.path for taken in total.taken] == ["f0", "f1", "d/d/deep"]
    assert "directories deep" in reasons(take(limits=TakeLimits(depth=1)))["d/d"]
    assert "directories deep" in reasons(take(["d/d/deep"], TakeLimits(depth=1)))["d/d/deep"]
    assert "entries have been looked at" in reasons(take(limits=TakeLimits(visited=3)))["."]


def test_a_huge_hole_costs_neither_time_nor_space(take: Take, workspace: Path, tmp_path: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(1024 * GIB)
    with (workspace / "holes").open("wb") as file:
        file.write(b"head")
        file.seek(8 * GIB)
        file.write(b"tail")
        file.truncate(16 * GIB)
    begun = time.monotonic()
    assert "over the limit" in reasons(take())["huge"]
    harvest = take(["holes"], TakeLimits(bytes_per_file=32 * GIB, bytes_total=32 * GIB))
    copy = tmp_path / "stored" / harvest.taken[0].stored_as
    assert time.monotonic() - begun < 5
    assert (copy.stat().st_size, copy.stat().st_blocks * 512 < 1_000_000) == (16 * GIB, True)
    with copy.open("rb") as file:
        assert file.read(8) == b"head\0\0\0\0"
        file.seek(8 * GIB - 2)
        assert file.read(8) == b"\0\0tail\0\0"


def test_a_very_deep_tree_is_walked_to_its_limit_only(take: Take, workspace: Path) -> None:
    fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(2_000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    parent = os.open(workspace.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert len(take().refused) == 1
    finally:
        # pytest removes old directories by recursion.
        remove_tree(parent, workspace.name)
        os.close(parent)
