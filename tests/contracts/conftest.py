"""One executor and one host of background commands for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.tools.bash_executor import SandboxedBash
from stockade.tools.commands import BackgroundCommands
from support.agents import host


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where the executor keeps its registry and its bank."""
    return tmp_path / "state"


@pytest.fixture
async def background_executor(state: Path) -> AsyncIterator[Executor]:
    """An executor whose environment is one marker."""
    async with Executor(Policy(), config=from_environment(state_dir=str(state)), environment={"MARKER": "of the host"}) as executor:
        yield executor


@pytest.fixture
async def commands(background_executor: Executor, workspace: Path) -> AsyncIterator[BackgroundCommands]:
    """A host with a policy and the four tools."""
    async with host(background_executor, workspace) as commands:
        yield commands


@pytest.fixture
async def bash(background_executor: Executor, workspace: Path) -> AsyncIterator[SandboxedBash]:
    """A bash executor in the workspace."""
    async with SandboxedBash(background_executor, cwd=workspace, grace_ms=500) as bash:
        yield bash
