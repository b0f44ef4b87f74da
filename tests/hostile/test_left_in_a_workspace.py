"""What a job can leave on the files of a workspace that outlives it: attributes with power, flags, access for others, odd names."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from stockade import Executor, Policy
from support.attacks import needs_root, unfiltered
from support.programs import PYTHON, python, shell

# Tries to put each of them on the file `f`, and says what came of it.
MARK = """
import errno, fcntl, json, os, struct, sys
def entry(tag, permissions, who=0xFFFFFFFF):
    return struct.pack("<HHI", tag, permissions, who)
def access(uid):
    return struct.pack("<I", 2) + entry(1, 7) + entry(2, 7, uid) + entry(4, 0) + entry(16, 7) + entry(32, 0)
file = os.open("f", os.O_CREAT | os.O_RDWR, 0o644)
def flag(bits):
    fcntl.ioctl(file, 0x40086602, struct.pack("l", bits))
attempts = {
    "capability": lambda: os.setxattr("f", "security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0)),
    "capability of a namespace": lambda: os.setxattr("f", "security.capability", struct.pack("<6I", 0x03000001, 1 << 21, 0, 0, 0, 0)),
    "trusted": lambda: os.setxattr("f", "trusted.x", b"x"),
    "security": lambda: os.setxattr("f", "security.x", b"x"),
    "access for root": lambda: os.setxattr("f", "system.posix_acl_access", access(0)),
    "access for a user": lambda: os.setxattr("f", "system.posix_acl_access", access(12345)),
    "project": lambda: fcntl.ioctl(file, 0x401C5820, struct.pack("IIIII8x", 0, 0, 0, 77, 0)),
    "immutable": lambda: (flag(0x10), flag(0)),
    "append only": lambda: (flag(0x20), flag(0)),
    "blocks": lambda: fcntl.ioctl(file, 1, struct.pack("i", 0)),
    "other owner": lambda: os.chown("f", 0, 0),
    "user": lambda: os.setxattr("f", "user.x", b"x"),
}
answers = {}
for name, attempt in attempts.items():
    try:
        attempt()
        answers[name] = "OK"
    except OSError as error:
        answers[name] = errno.errorcode[error.errno]
print(json.dumps(answers))
"""
POWERFUL = {"capability", "capability of a namespace", "trusted", "security", "immutable", "append only", "blocks"}


@needs_root
@pytest.mark.parametrize("filtered", [True, False])
async def test_no_power_is_left_on_a_file(workspace: Path, tmp_path: Path, filtered: bool) -> None:
    """No capability, no ids but the owner's: the filter does not matter. Control: root's own program leaves them."""
    (workspace / "f").write_text("")
    async with Executor(Policy(workspace=str(workspace), seccomp="default" if filtered else unfiltered(tmp_path))) as executor:
        result = await executor.run(python(MARK))
    answers = json.loads(result.stdout)
    assert {name: answers[name] for name in POWERFUL} == dict.fromkeys(POWERFUL, "EPERM")
    assert {answers[name] for name in ("access for root", "access for a user", "project", "other owner")} <= {
        "EINVAL",
        "EPERM",
        "EOVERFLOW",
    }
    assert answers["user"] == "OK"
    assert set(os.listxattr(workspace / "f")) == {"user.x"}
    control = await asyncio.create_subprocess_exec(PYTHON, "-c", MARK, cwd=tmp_path, stdout=PIPE)
    said, _ = await control.communicate()
    lowered = json.loads(said)
    given = POWERFUL | {"access for root", "access for a user", "other owner"}
    assert {name: lowered[name] for name in given} == dict.fromkeys(given, "OK")


async def test_odd_names_and_a_deep_tree_hold_up_nobody(workspace: Path) -> None:
    """A workspace is used as it is: by the next job, which starts in such a directory, and by the host, which can remove it."""
    leave = r"""
import os
for name in (b"a\nb", b"\xff\xfe", b"--", b"x" * 255, b"\x1b[2J", "\u202e".encode()):
    os.mkdir(name)
os.symlink("loop", "loop"), os.mkfifo("fifo")
top = os.open(".", os.O_RDONLY)
for _ in range(3000):
    os.mkdir("d" * 200, dir_fd=top)
    top = os.open("d" * 200, os.O_RDONLY, dir_fd=top)
"""
    async with Executor(Policy(workspace=str(workspace))) as executor:
        left = await executor.run(python(leave))
        assert left.stderr.count(b"Too many open files") == 1  # it goes as deep as its descriptors last
        for name in ("a\nb", "--", "x" * 255, "\x1b[2J", "\u202e"):
            result = await executor.run(["/bin/pwd"], cwd=name)
            assert result.stdout == f"{workspace}/{name}\n".encode()
        assert (await executor.run(shell("rm -rf -- ./*; ls -A"))).stdout == b""
