"""A seccomp profile of the caller's own: compiled before anything is made, and out of reach of the jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.errors import PolicyError
from stockade.sandbox import seccomp
from support.programs import python

DEFAULT = json.loads((Path(seccomp.__file__).parents[3] / "seccomp" / "default.json").read_text())
UNAME = "import os\ntry: print(os.uname().sysname)\nexcept OSError as error: print(error.errno)"


def without_uname(profile: dict[str, object]) -> str:
    rules = [dict(rule, names=[name for name in rule["names"] if name != "uname"]) for rule in profile["syscalls"]]  # type: ignore[attr-defined]
    return json.dumps({**profile, "syscalls": [rule for rule in rules if rule["names"]]})


async def test_a_profile_of_ones_own_is_the_one_in_force(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(without_uname(DEFAULT))
    async with Executor(Policy(seccomp=str(tmp_path / "own.json"))) as executor:
        ours = await executor.run(python(UNAME))
        control = await executor.start_with_policy(python(UNAME), Policy())
        assert (ours.stdout, (await control.result()).stdout) == (b"38\n", b"Linux\n")
        assert ours.isolation["seccomp"] == str(tmp_path / "own.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "JSON"),
        ('{"defaultAction": "X", "syscalls": []}', "action"),
        ('{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["opne"], "action": "SCMP_ACT_ALLOW"}]}', "opne"),
    ],
)
async def test_a_profile_that_does_not_compile_is_refused_before_anything_is_made(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "own.json").write_text(text)
    async with Executor(Policy(seccomp=str(tmp_path / "own.json"))) as executor:
        for action in (executor.start, executor.explain):
            with pytest.raises(PolicyError, match=says) as caught:
                await action(["/usr/bin/true"])
            assert caught.value.field == "seccomp"
        assert await executor.list() == ()


async def test_a_profile_where_jobs_can_write_is_refused(workspace: Path) -> None:
    (workspace / "own.json").write_text(json.dumps(DEFAULT))
    async with Executor(Policy(workspace=str(workspace), seccomp=str(workspace / "own.json"))) as executor:
        with pytest.raises(PolicyError, match="where jobs can write"):
            await executor.start(["/usr/bin/true"])


async def test_the_strict_profile_still_reports_how_a_job_ended() -> None:
    source = "import socket\ntry: socket.socket()\nexcept OSError as error: print(error.errno)"
    async with Executor(Policy(seccomp="strict")) as executor:
        result = await executor.run(python(source))
    assert (result.exit_code, result.stdout) == (0, b"97\n")
