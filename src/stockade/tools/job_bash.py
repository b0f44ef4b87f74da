"""A background shell command as a job: what the bash executor's task is to the job runtime (1C.1, 1C.2)."""

from __future__ import annotations

from typing import Final

from stockade.seam import BashExecSpec, BashExecutor, BashTask
from stockade.tools.bash_text import UNAVAILABLE
from stockade.tools.job_runtime import JobRuntime, Producer, Settlement

KIND: Final = "bash"


class BashJob:
    """The producer of one task."""

    streams = True

    def __init__(self, executor: BashExecutor, task: BashTask) -> None:
        self._executor = executor
        self._task = task

    async def settled(self) -> Settlement:
        """See `Producer.settled`; a command that failed has completed, with its exit code as the detail."""
        task = self._task
        await task.done.wait()
        if task.status == "completed":
            return Settlement("completed", f"exit code: {task.exit_code or 0}")
        return Settlement("killed", f"signal: {task.signal}" if task.signal is not None else "killed before exit")

    async def cancel(self, reason: str | None) -> None:
        """See `Producer.cancel`."""
        await self._executor.kill(self._task.id)

    async def read(self) -> str:
        """See `Producer.read`."""
        read = await self._executor.read_output(self._task.id)
        if not read.lossy:
            return read.delta
        paths = [path for path in (read.stdout_spill_path, read.stderr_spill_path) if path is not None]
        return f"{read.delta}\n[some output was dropped from memory; full output: {', '.join(paths) or UNAVAILABLE}]"


async def start_bash_job(runtime: JobRuntime, executor: BashExecutor, spec: BashExecSpec, *, label: str) -> str:
    """Starts the command as a job of its owner, once the runtime has let it in; its id. Raises: as `JobRuntime.start`."""

    async def starter() -> Producer:
        return BashJob(executor, await executor.start(spec))

    return (await runtime.start(KIND, label, starter, owner=spec.owner)).id
