"""How the contract tests look at bash executors, and a second implementation of the seam, which runs nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from stockade import Executor
from stockade.seam import (
    BashExecRequest,
    BashExecSpec,
    BashExecutor,
    BashRunResult,
    BashTask,
    BashTaskId,
    BashTaskRead,
    CollectedOutput,
    OwnerToken,
    unknown_task,
)
from stockade.tools.bash_executor import SandboxedBash
from support.agents import PATIENCE

# Waits in a shell until the test has made the file `go`; ends with the test's patience.
AWAIT_GO = "for i in $(seq 3000); do [ -e go ] && break; sleep 0.01; done; "
# Ignores SIGTERM, says so, and ends by itself after 60 s.
DEAF = "trap '' TERM; echo ready; for i in $(seq 600); do sleep 0.1; done"


class ScriptedBash(BashExecutor):
    """Does as it is told: `results` are what `run` gives, and a task goes on until the test ends it."""

    def __init__(self, *results: BashRunResult | Exception) -> None:
        super().__init__()
        self.results = list(results)
        self.ran: list[BashExecSpec] = []
        self.started: list[BashExecSpec] = []
        self.reads: list[BashTaskRead] = []
        self._tasks: dict[str, tuple[BashTask, OwnerToken | None]] = {}

    def resolve(self, request: BashExecRequest) -> BashExecSpec:
        return BashExecSpec(
            command=request.command,
            workdir=request.workdir or "/the/default",
            timeout_ms=request.timeout_ms or 1_000,
            signal=request.signal,
            stdin=request.stdin,
            env=request.env,
            owner=request.owner,
        )

    async def run(self, spec: BashExecSpec) -> BashRunResult:
        self.ran.append(spec)
        result = self.results.pop(0) if self.results else result_of(spec.command + "\n")
        if isinstance(result, Exception):
            raise result
        return result

    async def start(self, spec: BashExecSpec) -> BashTask:
        self._check_open()
        self.started.append(spec)
        task = BashTask(BashTaskId(f"scripted-{len(self._tasks) + 1}"), spec.command)
        self._tasks[task.id] = (task, spec.owner)
        return task

    def get(self, task_id: str) -> BashTask | None:
        return self._tasks[task_id][0] if task_id in self._tasks else None

    def owner_of(self, task_id: str) -> OwnerToken | None:
        return self._tasks[task_id][1] if task_id in self._tasks else None

    def list(self) -> tuple[BashTask, ...]:
        return tuple(task for task, _ in self._tasks.values())

    async def read_output(self, task_id: str) -> BashTaskRead:
        task = self._known(task_id)
        return self.reads.pop(0) if self.reads else BashTaskRead(task=task, delta="")

    async def kill(self, task_id: str) -> bool:
        task = self._known(task_id)
        if task.status != "running":
            return False
        self.finish(task, status="killed", signal="SIGTERM")
        return True

    def finish(self, task: BashTask, *, status: str = "completed", exit_code: int | None = None, signal: str | None = None) -> None:
        """Ends a task."""
        task.status, task.exit_code, task.signal = status, exit_code, signal  # type: ignore[assignment]
        task.done.set()
        self._announce(task)

    async def _close(self) -> None:
        for task, _ in self._tasks.values():
            if task.status == "running":
                self.finish(task, status="killed", signal="SIGTERM")
        self._tasks.clear()

    def _known(self, task_id: str) -> BashTask:
        if task_id not in self._tasks:
            raise unknown_task(task_id)
        return self._tasks[task_id][0]


def result_of(stdout: str | CollectedOutput = "", stderr: str | CollectedOutput = "", **changes: Any) -> BashRunResult:
    """A result; exit code 0 unless said otherwise."""
    fields = {"exit_code": 0, "signal": None, "timed_out": False, "aborted": False, "timeout_ms": 1_000}
    outputs = [each if isinstance(each, CollectedOutput) else CollectedOutput(each) for each in (stdout, stderr)]
    return BashRunResult(**{**fields, "stdout": outputs[0], "stderr": outputs[1], **changes})


def sandboxed(executor: Executor, workspace: Path, **options: Any) -> SandboxedBash:
    """The sandboxed executor in a workspace."""
    return SandboxedBash(executor, cwd=workspace, **options)


async def run(bash: BashExecutor, command: str, **fields: Any) -> BashRunResult:
    """Resolves and runs a command."""
    async with asyncio.timeout(PATIENCE):
        return await bash.run(bash.resolve(BashExecRequest(command=command, **fields)))


async def begin(bash: BashExecutor, command: str, **fields: Any) -> BashTask:
    """Resolves and starts a command."""
    return await bash.start(bash.resolve(BashExecRequest(command=command, **fields)))


async def over(task: BashTask) -> BashTask:
    """The task, once it is over."""
    async with asyncio.timeout(PATIENCE):
        await task.done.wait()
    return task


async def until_read(bash: BashExecutor, task: BashTask, text: str) -> str:
    """What the reads up to the one with `text` in it have given."""
    found = ""
    async with asyncio.timeout(PATIENCE):
        while True:
            is_last = task.done.is_set()
            found += (await bash.read_output(task.id)).delta
            if text in found:
                return found
            assert not is_last, found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await task.done.wait()
