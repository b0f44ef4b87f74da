"""The state directory: private, ours, and one executor's at a time."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stockade.errors import StateError
from stockade.jobs.directory import Layout, StateDirectory, living_owner, look, sweep

HOLDER = """
import sys
from stockade.jobs.directory import StateDirectory
directory = StateDirectory.open(sys.argv[1])
print(directory.instance, flush=True)
sys.stdin.read()
"""

# Its child is forked without exec, keeps everything that a fork keeps, and outlives it.
FORKING_HOLDER = """
import os, sys
from stockade.jobs.directory import StateDirectory
directory = StateDirectory.open(sys.argv[1])
if os.fork() == 0:
    os.write(1, b"forked\\n")
    os.read(0, 1)
    os._exit(0)
os.wait()
"""


def test_a_new_directory_is_private_and_laid_out(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with StateDirectory.open(str(tmp_path / "deep" / "state")) as directory:
            layout = directory.layout
    finally:
        os.umask(old)
    assert layout == Layout(str(tmp_path / "deep" / "state"))
    assert {name: stat.S_IMODE(os.stat(os.path.join(layout.root, name)).st_mode) for name in os.listdir(layout.root)} == {
        "stockade-state": 0o600,
        "lock": 0o600,
        "bank": 0o700,
        "run": 0o700,
    }
    assert stat.S_IMODE(os.stat(layout.root).st_mode) == 0o700
    assert look(layout.root) == layout


def test_something_else_in_the_place_of_the_registry_is_refused(tmp_path: Path) -> None:
    """SQLite opens a fifo and waits for whoever writes to it."""
    with StateDirectory.open(str(tmp_path / "state")) as directory:
        layout = directory.layout
    os.mkfifo(layout.database)
    for use in (look, StateDirectory.open):
        with pytest.raises(StateError, match="is no regular file"):
            use(layout.root)
    assert living_owner(layout) is None


def test_each_opening_is_an_instance_of_its_own(tmp_path: Path) -> None:
    instances = set()
    for _ in range(3):
        with StateDirectory.open(str(tmp_path / "state")) as directory:
            instances.add(directory.instance)
    assert len(instances) == 3


def test_one_process_cannot_open_it_twice(tmp_path: Path) -> None:
    root = str(tmp_path / "state")
    with StateDirectory.open(root) as first:
        with pytest.raises(StateError, match=f"in use by the executor in process {os.getpid()}"):
            StateDirectory.open(root)
        owner = living_owner(first.layout)
        assert owner is not None
        assert (owner.pid, owner.instance) == (os.getpid(), first.instance)
        first.close()
        assert living_owner(first.layout) is None
    StateDirectory.open(root).close()


def test_a_living_owner_is_named_and_a_dead_one_holds_nothing(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    root = str(tmp_path / "state")
    child = spawn(HOLDER, root)
    instance = child.stdout.readline().strip()
    with pytest.raises(StateError, match=f"in process {child.pid}") as caught:
        StateDirectory.open(root)
    assert "directory of its own" in str(caught.value.hint)
    owner = living_owner(look(root))
    assert owner is not None
    assert (owner.pid, owner.instance) == (child.pid, instance)
    child.send_signal(signal.SIGKILL)
    child.wait(20)
    assert living_owner(look(root)) is None
    StateDirectory.open(root).close()


def test_a_forked_child_does_not_hold_the_lock_of_its_dead_parent(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    root = str(tmp_path / "state")
    child = spawn(FORKING_HOLDER, root)
    assert child.stdout.readline() == "forked\n"
    with pytest.raises(StateError, match="in use"):
        StateDirectory.open(root)
    child.send_signal(signal.SIGKILL)
    child.wait(20)
    StateDirectory.open(root).close()


def test_many_at_once_and_one_wins(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    root = str(tmp_path / "state")
    children = [spawn(HOLDER.replace("directory = ", "sys.stderr = sys.stdout\ndirectory = "), root) for _ in range(4)]
    lines = [child.stdout.readline() for child in children]
    assert sum(not line.startswith("Traceback") for line in lines) == 1


def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(StateError, match="not empty and no state directory") as caught:
        StateDirectory.open(str(tmp_path))
    assert "empty or a new directory" in str(caught.value.hint)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(StateError, match="no state directory"):
        look(str(tmp_path))


def test_a_directory_of_somebody_else_is_not_said_to_be_open_but_not_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(StateError, match="not empty and no state directory") as caught:
        StateDirectory.open(str(tmp_path))
    assert "chmod" not in str(caught.value.hint)
    (tmp_path / "thesis.tex").unlink()
    with pytest.raises(StateError, match="open to others"):
        StateDirectory.open(str(tmp_path))


@pytest.mark.parametrize(("path", "why"), [("", "is empty"), ("a\0b", "contains a NUL byte")])
def test_a_path_that_is_none_is_refused(path: str, why: str) -> None:
    for use in (StateDirectory.open, look):
        with pytest.raises(StateError, match=why):
            use(path)


def test_a_temporary_directory_whose_executor_was_killed_is_swept_and_no_other(tmp_path: Path, spawn: Callable[..., Any]) -> None:
    killed = str(tmp_path / "stockade-killed")
    child = spawn(HOLDER.replace("open(sys.argv[1])", "open(sys.argv[1], temporary=True)"), killed)
    assert child.stdout.readline().strip()
    living = StateDirectory.open(str(tmp_path / "stockade-living"), temporary=True)
    StateDirectory.open(str(tmp_path / "stockade-named")).close()  # somebody's, who gave it such a name
    (tmp_path / "stockade-foreign").mkdir(mode=0o700)
    (tmp_path / "stockade-link").symlink_to(killed)
    (tmp_path / "other").mkdir()
    everything = sorted(os.listdir(tmp_path))
    sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == everything
    child.kill()
    child.wait(20)
    sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == [name for name in everything if name != "stockade-killed"]
    living.close()
    sweep(str(tmp_path / "nowhere"))


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    StateDirectory.open(str(tmp_path)).close()


def test_a_marker_whose_maker_died_is_completed(tmp_path: Path) -> None:
    (tmp_path / "stockade-state").touch()
    StateDirectory.open(str(tmp_path)).close()
    assert (tmp_path / "stockade-state").read_text() == "Stockade state directory, layout 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [("Stockade state directory, layout 2\n", "layout 2"), ("something else\n", "not a marker"), ("\xff", "not a marker")],
)
def test_a_marker_that_we_do_not_know_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "stockade-state").write_text(text)
    with pytest.raises(StateError, match=message):
        StateDirectory.open(str(tmp_path))


def test_foreign_files_beside_ours_are_left_alone(tmp_path: Path) -> None:
    StateDirectory.open(str(tmp_path)).close()
    (tmp_path / "notes.txt").write_text("mine")
    StateDirectory.open(str(tmp_path)).close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_links_files_and_open_or_foreign_directories_are_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(StateError, match="a link or no directory"):
        StateDirectory.open(str(tmp_path / "link"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="a link or no directory"):
        StateDirectory.open(str(tmp_path / "file"))
    real.chmod(0o750)
    with pytest.raises(StateError, match=r"open to others.*050") as caught:
        StateDirectory.open(str(real))
    assert caught.value.hint == f"chmod 700 {real}"
    assert os.listdir(real) == []


def test_a_place_inside_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    StateDirectory.open(str(tmp_path)).close()
    (tmp_path / "bank").rmdir()
    (tmp_path / "bank").symlink_to("/")
    with pytest.raises(StateError, match=r"bank.*a link"):
        StateDirectory.open(str(tmp_path))
    (tmp_path / "bank").unlink()
    StateDirectory.open(str(tmp_path)).close()  # the refusal let go of the lock


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4711)
    with pytest.raises(StateError, match="belongs to uid 4711"):
        StateDirectory.open(str(tmp_path))


def test_a_full_or_read_only_disk_is_a_clear_error(small_disk: Any) -> None:
    root = str(small_disk.root / "state")
    StateDirectory.open(root).close()
    small_disk.remount("ro")
    with pytest.raises(StateError, match="Read-only file system") as caught:
        StateDirectory.open(root)
    assert "that you can write" in str(caught.value.hint)
    small_disk.remount("rw")
    os.truncate(os.path.join(root, "lock"), 0)
    small_disk.fill()
    with pytest.raises(StateError, match="No space left"):
        StateDirectory.open(root)
    small_disk.free()
    StateDirectory.open(root).close()
