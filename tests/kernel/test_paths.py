"""What a policy shows of the host: the same path inside, with the ids and the access that it says."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.errors import ExecutableNotFound, InvalidRequest, LaunchFailed
from support.programs import shell

OWNER = 23456


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A directory of an ordinary user that nobody else may enter, with a file in it."""
    place = tmp_path / "private"
    place.mkdir()
    (place / "file").write_text("content\n")
    (place / "file").chmod(0o600)
    place.chmod(0o700)
    for path in (place / "file", place):
        os.chown(path, OWNER, OWNER)
    return place


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A directory on overlayfs, which has no idmapped mounts."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "file").write_text("content\n")
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, tmp_path / "merged"], check=True)
    yield tmp_path / "merged"
    subprocess.run(["umount", tmp_path / "merged"], check=True)


async def test_an_ordinary_users_private_files_are_the_jobs_to_read_where_they_are_named(private: Path) -> None:
    async with Executor(Policy(ro=(str(private),))) as executor:
        read = await executor.run(["/bin/cat", str(private / "file")])
        write = await executor.run(shell(f"echo x >>{private}/file"))
    assert read.stdout == b"content\n"
    assert (write.exit_code, b"Read-only file system" in write.stderr) == (1, True)


async def test_what_root_keeps_to_itself_stays_so_where_it_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "secret").chmod(0o600)
    tmp_path.chmod(0o755)
    async with Executor(Policy(ro=(str(tmp_path),))) as executor:
        result = await executor.run(["/bin/cat", str(tmp_path / "secret")])
    assert (result.stdout, b"Permission denied" in result.stderr) == (b"", True)


async def test_a_writable_place_that_cannot_be_idmapped_is_refused_with_the_way_out(overlay: Path) -> None:
    async with Executor(Policy(workspace=str(overlay))) as executor:
        with pytest.raises(LaunchFailed, match="no idmapped mounts") as caught:
            await executor.run(["/usr/bin/true"])
        assert (await executor.list())[0].state == "failed"
    assert (caught.value.step, caught.value.call, caught.value.path) == ("mounts", "mount_setattr", str(overlay))


async def test_a_readable_place_need_not_be_idmapped(overlay: Path) -> None:
    os.chown(overlay, OWNER, OWNER)
    overlay.chmod(0o755)
    async with Executor(Policy(ro=(str(overlay),))) as executor:
        result = await executor.run(["/bin/cat", str(overlay / "file")])
    assert result.stdout == b"content\n"


async def test_a_file_can_be_named_by_itself(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one\n")
    (tmp_path / "two").write_text("two\n")
    async with Executor(Policy(ro=(str(tmp_path / "one"),))) as executor:
        result = await executor.run(shell(f"cat {tmp_path}/one; ls {tmp_path}"))
    assert result.stdout == b"one\none\n"


async def test_a_readable_island_in_a_writable_place_is_read_only(workspace: Path) -> None:
    (workspace / "island").mkdir()
    async with Executor(Policy(workspace=str(workspace), ro=(str(workspace / "island"),))) as executor:
        result = await executor.run(shell("touch here island/there"))
    assert (workspace / "here").exists()
    assert not (workspace / "island" / "there").exists()
    assert b"Read-only file system" in result.stderr


async def test_a_path_given_through_a_link_is_there_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("content\n")
    (tmp_path / "link").symlink_to("real")
    async with Executor(Policy(ro=(str(tmp_path / "link"),))) as executor:
        result = await executor.run(["/bin/cat", str(tmp_path / "link" / "file"), str(tmp_path / "real" / "file")])
    assert result.stdout == b"content\ncontent\n"


async def test_a_directory_can_be_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("bin", "lib64", "lib/x86_64-linux-gnu", "etc", "opt"):
        (root / name).mkdir(parents=True)
    for library in ("lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libtinfo.so.6"):
        await asyncio.to_thread(subprocess.run, ["cp", "-L", f"/{library}", root / library], check=True)
    await asyncio.to_thread(subprocess.run, ["cp", "-L", "/bin/bash", root / "bin" / "bash"], check=True)
    (root / "etc" / "services").write_text("from the root\n")
    (root / "opt" / "thing").write_text("thing\n")
    policy = Policy(root=str(root), path=("/bin",))
    async with Executor(policy) as executor:
        result = await executor.run(
            ["bash", "-c", "echo /*; read -r x </opt/thing; echo $x; read -r x </etc/services; echo $x; echo > /opt/new"]
        )
        with pytest.raises(ExecutableNotFound):
            await executor.run(["/usr/bin/true"])
    assert result.stdout == b"/bin /dev /etc /home /lib /lib64 /opt /proc /run /tmp /var\nthing\nfrom the root\n"
    assert b"Read-only file system" in result.stderr


async def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with Executor(Policy(root=str(tmp_path / "file"))) as executor:
        with pytest.raises(InvalidRequest, match="not a directory") as caught:
            await executor.run(["/usr/bin/true"])
    assert caught.value.field == "root"
