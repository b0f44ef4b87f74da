"""A tree is removed whatever a job has made of it, and nothing beside it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from stockade.bank.trees import remove_tree


@pytest.fixture
def parent(tmp_path: Path) -> int:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd  # type: ignore[misc]
    os.close(fd)


def test_all_kinds_of_entries_go_and_links_are_not_followed(tmp_path: Path, parent: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "a" / "to-directory").symlink_to(outside)
    (tree / "a" / "b" / "to-file").symlink_to(outside / "kept")
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "a" / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.fspath(tree / "socket"))
    for name in (b"new\nline", b"\xff\xfe", b" ", b"-rf", b"*", b"x" * 255):
        (tree / "a" / os.fsdecode(name)).write_bytes(b"")
        (tree / os.fsdecode(name)).mkdir()
    remove_tree(parent, "tree")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (outside / "kept").read_text() == "kept"


@pytest.mark.parametrize("as_user", [False, True])
def test_directories_without_any_permission_go(tmp_path: Path, as_user: bool) -> None:
    if as_user and os.geteuid() != 0:
        pytest.skip("needs to change to a user without rights")
    base = tmp_path / "base"
    deep = base / "tree" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").write_text("")
    if as_user:
        for path in (base, *base.rglob("*")):
            os.chown(path, 65_534, 65_534)
    for path in (deep, deep.parent, deep.parent.parent, base / "tree"):
        path.chmod(0)
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    if as_user:
        os.seteuid(65_534)
    try:
        remove_tree(fd, "tree")
    finally:
        os.seteuid(0) if as_user else None
        os.close(fd)
    assert list(base.iterdir()) == []


def test_depth_costs_no_descriptors_and_no_recursion(tmp_path: Path, parent: int) -> None:
    (tmp_path / "tree").mkdir()
    fd = os.open(tmp_path / "tree", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(5_000):
        os.mkdir("deeper", dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        below = os.open("deeper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    remove_tree(parent, "tree")
    assert list(tmp_path.iterdir()) == []


def test_wide_trees_go_in_one_call(tmp_path: Path, parent: int) -> None:
    for one in range(30):
        for two in range(30):
            (tmp_path / "tree" / str(one) / str(two) / "leaf").mkdir(parents=True)
    remove_tree(parent, "tree")
    assert list(tmp_path.iterdir()) == []


def test_files_links_and_nothing_go_too(tmp_path: Path, parent: int) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    for name in ("file", "link", "missing"):
        remove_tree(parent, name)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_only_a_name_is_removed(parent: int, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        remove_tree(parent, name)


def test_another_file_system_is_not_entered_and_the_rest_still_goes(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "kept").write_text("kept")
    (tmp_path / "file").write_text("")
    fd = os.open(tmp_path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="mounted"):
            remove_tree(fd, tmp_path.name)
    finally:
        os.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    assert (small_disk / "kept").read_text() == "kept"
