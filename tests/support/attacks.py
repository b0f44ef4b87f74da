"""Runs groups of support/payloads.py inside a sandbox and, as their control, outside of any."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor, Policy
from support.programs import PYTHON, python
from support.waiting import SLOWNESS

SOURCE = (Path(__file__).parent / "payloads.py").read_text()
BOUND = 60 * SLOWNESS  # seconds for a control
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="its control needs root")


def payload(group: str, *arguments: str) -> list[str]:
    """The command that runs one group inside."""
    return python(SOURCE, group, *arguments)


async def inside(policy: Policy, group: str, *arguments: str) -> dict[str, Any]:
    """What one group got in a sandbox of its own."""
    async with Executor(policy) as executor:
        return await within(executor, group, *arguments)


async def within(executor: Executor, group: str, *arguments: str) -> dict[str, Any]:
    """What one group got as a job of this executor."""
    result = await executor.run(payload(group, *arguments))
    assert result.ok, (result.outcome, result.stderr[-2000:])
    answers: dict[str, Any] = json.loads(result.stdout)
    return answers


def outside(group: str, *arguments: str, user: int | None = None, session: bool = True) -> dict[str, Any]:
    """What the same group gets on the host; `user` runs it as an ordinary one."""
    identity: dict[str, Any] = {} if user is None or os.geteuid() != 0 else {"user": user, "group": user, "extra_groups": []}
    done = subprocess.run(
        [PYTHON, "-c", SOURCE, group, *arguments],
        capture_output=True,
        timeout=BOUND,
        check=True,
        cwd="/",
        stdin=subprocess.DEVNULL,
        start_new_session=session,
        **identity,
    )
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def unfiltered(directory: Path) -> str:
    """The path of a seccomp profile that allows every call: the filter lowered, every other wall up."""
    path = directory / "everything.json"
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}))
    return str(path)
