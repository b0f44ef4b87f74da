"""How the contract tests look at background commands: whole streams by pages, by bytes, and waits that are bounded."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from stockade import Executor
from stockade.tools.command_policy import BackgroundCommandPolicy
from stockade.tools.commands import BackgroundCommands
from stockade.tools.wire import CommandStatus

PATIENCE = 20.0  # seconds that anything may take

ALLOWED = ("/usr/bin/python3", "/bin/sh", "/usr/bin/cat", "/usr/bin/true", "/usr/bin/sleep")

# Defines `await_file(name)`: waits until the test has made that file in the workspace; ends with the test's patience.
AWAIT_FILE = """
import os, sys, time
def await_file(name):
    end = time.time() + 30
    while not os.path.exists(name):
        if time.time() > end: sys.exit(99)
        time.sleep(0.005)
"""

# Ignores SIGTERM, says so, and ends by itself after 60 s.
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""

# Has a grandchild in a session of its own that ignores SIGTERM, holds both pipes and a lock on the file `held`.
WITH_GRANDCHILD = """
import fcntl, os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lock = open("held", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(60)
    os._exit(0)
"""


def policy(root: Path, **changes: Any) -> BackgroundCommandPolicy:
    """A policy that lets the programs of these tests run in `root`."""
    return BackgroundCommandPolicy(**{"allowed_executables": ALLOWED, "cwd_root": root, **changes})


def host(executor: Executor, root: Path, **changes: Any) -> BackgroundCommands:
    """A host of background commands with that policy and its tools."""
    commands = BackgroundCommands(executor)
    commands.register_background_command_tools(policy(root, **changes))
    return commands


async def settle(commands: BackgroundCommands, task_id: str) -> CommandStatus:
    """Its settled status."""
    status = await commands.wait(task_id, PATIENCE * 1_000)
    assert status.settled, status
    return status


async def run(commands: BackgroundCommands, argv: list[str], **options: Any) -> CommandStatus:
    """Starts a command in the policy's root and waits for its end."""
    policy_in_force = commands.get_policy()
    assert policy_in_force is not None
    handle = await commands.start(argv, **{"cwd": policy_in_force.cwd_root, **options})
    return await settle(commands, handle.task_id)


async def start(commands: BackgroundCommands, argv: list[str], **options: Any) -> str:
    """Starts a command in the policy's root; its id."""
    policy_in_force = commands.get_policy()
    assert policy_in_force is not None
    return (await commands.start(argv, **{"cwd": policy_in_force.cwd_root, **options})).task_id


async def until_output(commands: BackgroundCommands, task_id: str, text: str, stream: str = "stdout") -> str:
    """What a stream holds as soon as `text` is part of it."""
    async with asyncio.timeout(PATIENCE):
        while text not in (content := (await commands.read_output(task_id, stream)).content):
            status = await commands.wait(task_id, 10)
            if status.settled:
                content = (await commands.read_output(task_id, stream)).content
                assert text in content, status
        return content


async def pages(read: Callable[[int], Awaitable[dict[str, Any]]]) -> list[str]:
    """The contents of all pages of a walk: the next offset is this one and the length of what came (N-R5)."""
    contents: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            page = await read(sum(map(len, contents)))
            contents.append(page["content"])
            if not page["hasMore"]:
                return contents


async def output_pages(commands: BackgroundCommands, task_id: str, stream: str = "stdout", *, limit: int) -> list[str]:
    """A stream through `command_output`."""

    async def read(offset: int) -> dict[str, Any]:
        return await commands.tools.call("command_output", {"taskId": task_id, "stream": stream, "offset": offset, "limit": limit})

    return await pages(read)


async def artifact_pages(commands: BackgroundCommands, artifact_id: str, *, limit: int) -> list[str]:
    """An artifact through `retrieve_context`."""

    async def read(offset: int) -> dict[str, Any]:
        return await commands.tools.call("retrieve_context", {"artifactId": artifact_id, "offset": offset, "limit": limit})

    return await pages(read)


async def artifact_bytes(executor: Executor, artifact_id: str) -> bytes:
    """An artifact as it is kept."""

    def read() -> bytes:
        reader = executor.artifacts.reader(artifact_id)
        assert reader is not None, artifact_id
        data = b""
        while True:
            page = reader.read_bytes(len(data))
            data += page.data
            if not page.has_more:
                return data

    return await executor.call(read)


def digest(data: bytes | str) -> str:
    """The SHA-256 of bytes or of a text's UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()
