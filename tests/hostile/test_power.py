"""Ids, capabilities, limits, set-user-ID: nothing that a job has or makes gives more power, inside or outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from stockade import Executor, Policy
from support.attacks import BOUND, NOBODY, inside, needs_root, outside, unfiltered
from support.programs import shell

NO_CAPABILITY = "0" * 16


@pytest.mark.parametrize("seccomp", ["strict", "default", "debug"])
async def test_every_thread_and_child_is_without_any_power(seccomp: str) -> None:
    """Control: as root outside the same payload changes its ids and sets."""
    answers = await inside(Policy(seccomp=seccomp), "power")
    assert answers["threads"] == 9
    (state,) = answers["states"]  # the same in every thread and in a child
    assert {state[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {NO_CAPABILITY}
    assert (state["NoNewPrivs"], state["Seccomp"]) == ("1", "2")
    assert (state["Uid"].split(), state["Gid"].split()) == (["1000"] * 4, ["1000"] * 4)
    # Rootless, the caller's groups stay: its own, if it is among them, shows as the job's, the others as nobody's.
    assert set(state["Groups"].split()) <= (set() if os.geteuid() == 0 else {"65534", "1000"})
    for name in ("setuid 0", "setuid 1", "setgid 0", "setgroups", "chown", "raise ambient", "securebits", "capset"):
        assert answers[name] in ({"EPERM"} if os.geteuid() == 0 else {"EPERM", "EINVAL"}), name  # rootless there is no other id
    assert answers["new privs again"] == answers["seccomp off"] == "EINVAL"
    if os.geteuid() == 0:
        control = outside("power")
        assert {control[name] for name in ("setuid 0", "setuid 1", "setgid 0", "setgroups", "chown", "securebits", "capset")} == {"OK"}


@needs_root
async def test_limits_cannot_be_raised() -> None:
    """Control: root outside may, wherever the limit is not boundless already."""
    answers = await inside(Policy(limits={"open_files": 256}), "limits")
    for name in ("CORE", "MEMLOCK", "MSGQUEUE", "NICE", "NOFILE", "RTPRIO", "SIGPENDING"):
        soft, hard, raised = answers[name]
        assert (soft, raised) == (hard, "not allowed to raise maximum limit"), name
    assert answers["NOFILE"][0] == 256
    assert (answers["nice -1"], answers["real time"]) == ("EPERM", "EPERM")
    control = outside("limits")
    assert (control["nice -1"], control["real time"]) == (-1, "OK")


@needs_root
async def test_a_set_user_id_program_gives_no_ids(workspace: Path) -> None:
    """nosuid and no_new_privs, each enough. Control: the same file gives an ordinary user outside root's uid."""
    program = workspace / "whoami"
    shutil.copy("/usr/bin/id", program)
    os.chown(program, 0, 0)
    program.chmod(0o6755)
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run(shell("./whoami -u; ./whoami -g; su -c id 2>&1 | grep -c uid=0; mount -t tmpfs none /tmp; echo $?"))
    assert result.stdout.split()[:3] == [b"1000", b"1000", b"0"]
    assert result.stdout.split()[-1] != b"0"
    with tempfile.TemporaryDirectory() as open_to_all:  # the workspace lies in a directory that only root can enter
        os.chmod(open_to_all, 0o755)
        os.link(program, f"{open_to_all}/whoami")
        control = subprocess.run(
            [f"{open_to_all}/whoami", "-u"], capture_output=True, timeout=BOUND, user=NOBODY, group=NOBODY, extra_groups=[], check=True
        )
    assert control.stdout == b"0\n"


LEAVING = ("chmod", "fchmod", "fchmodat", "fchmodat2", "creat", "open", "openat", "openat high bits", "openat2", "mknod", "mknodat")


@pytest.mark.parametrize("seccomp", ["strict", "default", "debug"])
@pytest.mark.parametrize("bit", [0o4000, 0o2000], ids=["uid", "gid"])
async def test_no_set_id_file_is_left_in_a_workspace(workspace: Path, tmp_path: Path, seccomp: str, bit: int) -> None:
    """Through the idmapped mount it would belong to the workspace's owner, root here, and give its uid or gid to anybody on the host.

    A filter sees no difference between a directory and a file, so the bit is refused on directories too.

    Control: without the filter the same calls leave such files, which the host then has.
    """
    answers = await inside(Policy(workspace=str(workspace), seccomp=seccomp), "privileged_files", str(workspace), f"{bit:o}")
    assert {answers[name] for name in LEAVING} <= {"EPERM", "ENOSYS", "left without the bit"}
    assert answers["chmod of a directory"] == "EPERM"
    assert answers["chmod 0755"] == answers["chmod 1777 of a directory"] == "OK"
    assert answers["open with a mode that does not count"] == "OK"
    assert [path for path in workspace.rglob("*") if path.lstat().st_mode & bit] == []
    lowered = tmp_path / "lowered"
    lowered.mkdir()
    control = await inside(Policy(workspace=str(lowered), seccomp=unfiltered(tmp_path)), "privileged_files", str(lowered), f"{bit:o}")
    assert {control[name] for name in LEAVING} == {"left with the bit"}
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in lowered.iterdir() if path.stat().st_mode & bit}
    assert owners == {(workspace.stat().st_uid, workspace.stat().st_gid)}


async def test_directories_inherit_the_group_of_a_setgid_workspace_and_files_can_be_made_there(workspace: Path) -> None:
    """What the kernel passes on by itself needs no call that is refused; only `chmod` of such a directory does."""
    workspace.chmod(0o2775)
    script = (
        "mkdir a; mkdir -p -m 755 b/c; install -d d/e; echo x >a/f; cp -r a g; tar cf t.tar a; mkdir h; tar xf t.tar -C h; chmod 755 a/f; "
        "python3 -c \"import os; os.mkdir('i')\"; chmod 755 a"
    )
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run(shell(script))
    assert result.exit_code == 1  # the last of them alone: chmod(1) keeps the bit of a directory
    assert result.stderr.count(b"\n") == 1
    assert b"'a': Operation not permitted" in result.stderr
    for name in ("a", "b/c", "d", "g", "h/a", "i"):
        assert (workspace / name).stat().st_mode & 0o2000, name
    assert (workspace / "h" / "a" / "f").read_text() == "x\n"
