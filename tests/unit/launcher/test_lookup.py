"""Paths of a request: followed once, pinned, and judged by what is visible inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade.errors import ExecutableNotFound, InvalidRequest
from stockade.launcher import lookup
from stockade.sandbox.spec import Host, Identity, Place, Resolution


def place(path: Path, given: str | None = None) -> Place:
    found = path.stat()
    return Place(given or str(path), str(path), found.st_dev, found.st_ino, found.st_uid, found.st_gid, path.is_dir())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    usr = tmp_path / "host-usr"
    for name in ("bin/tool", "lib/real-tool"):
        (usr / name).parent.mkdir(parents=True, exist_ok=True)
        (usr / name).write_text("#!/bin/sh\n")
        (usr / name).chmod(0o755)
    (usr / "bin/linked").symlink_to("/lib/real-tool")
    (usr / "bin/dangling").symlink_to("/nowhere/at/all")
    (usr / "bin/loop").symlink_to("loop")
    (usr / "bin/plain").write_text("no program")
    etc = tmp_path / "etc"
    etc.mkdir()
    return Host(
        identity=Identity.CALLER,
        controllers=frozenset(),
        system=(place(usr, "/usr"),),
        links=(("/bin", "usr/bin"), ("/lib", "usr/lib")),
        etc=place(etc, "/etc"),
        cpus=1,
    )


def resolve(host: Host, argv0: str = "tool", cwd: str | None = None, **paths: object) -> Resolution:
    options = {"path": ("/usr/bin", "/bin"), "workspace": None, "ro": (), "rw": (), "host_path": "/usr/bin", **paths}
    return lookup.resolve(argv0=argv0, cwd=cwd, host=host, **options)  # type: ignore[arg-type]


def test_a_program_is_found_along_the_path_inside(host: Host) -> None:
    assert resolve(host).executable == "/usr/bin/tool"


def test_a_link_inside_is_followed_as_the_sandbox_would(host: Host) -> None:
    assert resolve(host, "linked").executable == "/usr/bin/linked"
    assert resolve(host, "/bin/linked").executable == "/bin/linked"


@pytest.mark.parametrize("name", ["dangling", "loop", "plain", "missing", "/usr/bin/missing", "./tool"])
def test_what_is_no_program_inside_is_refused(host: Host, name: str) -> None:
    with pytest.raises(ExecutableNotFound) as caught:
        resolve(host, name)
    assert caught.value.hint


def test_a_program_that_only_the_host_has_names_the_path_to_add(host: Host, tmp_path: Path) -> None:
    prefix = tmp_path / "opt" / "conda"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "special").write_text("#!/bin/sh\n")
    (prefix / "bin" / "special").chmod(0o755)
    with pytest.raises(ExecutableNotFound, match="not visible inside") as caught:
        resolve(host, "special", host_path=str(prefix / "bin"))
    assert f"--ro {prefix}" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["/root/tool", "/root/bin/tool", "/usr/bin/dangling"])
def test_a_path_out_of_sight_is_answered_without_looking(host: Host, name: str) -> None:
    with pytest.raises(ExecutableNotFound, match="is not visible inside") as caught:
        resolve(host, name)
    assert "add the ro path" in (caught.value.hint or "")


def test_a_path_of_the_policy_is_pinned_by_its_inode(host: Host, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to("data")
    (found,) = resolve(host, ro=(str(tmp_path / "link"),)).ro
    assert (found.given, found.real, found.inode) == (str(tmp_path / "link"), str(data), data.stat().st_ino)


@pytest.mark.parametrize("field", ["ro", "rw"])
def test_a_missing_path_is_refused_with_its_field(host: Host, tmp_path: Path, field: str) -> None:
    with pytest.raises(InvalidRequest, match="exists") as caught:
        resolve(host, **{field: (str(tmp_path / "missing"),)})
    assert caught.value.field == field


def test_a_fifo_is_no_path_to_mount_and_does_not_block(host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidRequest, match="neither a directory nor a regular file"):
        resolve(host, ro=(str(tmp_path / "fifo"),))


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/self", "/sys/kernel", "/dev/shm"])
def test_what_a_sandbox_makes_for_itself_cannot_be_named(host: Host, path: str) -> None:
    with pytest.raises(InvalidRequest, match="makes for itself"):
        resolve(host, ro=(path,))


class TestWorkingDirectory:
    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        (tmp_path / "ws" / "sub").mkdir(parents=True)
        (tmp_path / "ws-evil").mkdir()
        (tmp_path / "ws" / "etc").symlink_to("/etc")
        (tmp_path / "ws" / "up").symlink_to("..")
        (tmp_path / "ws" / "file").write_text("")
        (tmp_path / "alias").symlink_to("ws")
        return tmp_path / "ws"

    def test_without_one_it_is_the_workspace(self, host: Host, workspace: Path) -> None:
        assert resolve(host, workspace=str(workspace)).cwd == str(workspace)

    def test_a_relative_one_is_below_the_workspace(self, host: Host, workspace: Path) -> None:
        assert resolve(host, cwd="sub", workspace=str(workspace)).cwd == str(workspace / "sub")

    def test_a_workspace_that_is_itself_a_link_works(self, host: Host, workspace: Path) -> None:
        assert resolve(host, cwd="sub", workspace=str(workspace.parent / "alias")).cwd == str(workspace / "sub")

    @pytest.mark.parametrize("cwd", ["..", "../ws-evil", "etc", "up", "up/ws-evil", "/etc", "/"])
    def test_whatever_leads_outside_is_refused(self, host: Host, workspace: Path, cwd: str) -> None:
        with pytest.raises(InvalidRequest, match="outside the permitted root") as caught:
            resolve(host, cwd=cwd, workspace=str(workspace))
        assert caught.value.field == "cwd"

    def test_a_link_of_the_host_that_leads_inside_is_followed(self, host: Host, workspace: Path) -> None:
        assert resolve(host, cwd=str(workspace.parent / "alias" / "sub"), workspace=str(workspace)).cwd == str(workspace / "sub")

    @pytest.mark.parametrize("cwd", ["../missing", "missing/../../ws-evil", "etc/missing", "/root/missing", "/missing/../etc"])
    def test_what_is_missing_is_judged_by_where_it_would_be(self, host: Host, workspace: Path, cwd: str) -> None:
        with pytest.raises(InvalidRequest, match="outside the permitted root"):
            resolve(host, cwd=cwd, workspace=str(workspace))

    @pytest.mark.parametrize("cwd", ["missing", "file", "sub/missing"])
    def test_what_is_no_directory_is_refused(self, host: Host, workspace: Path, cwd: str) -> None:
        with pytest.raises(InvalidRequest, match=r"cwd|Not a directory") as caught:
            resolve(host, cwd=cwd, workspace=str(workspace))
        assert caught.value.field == "cwd"
