"""A started job as its caller holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from stockade.jobs.records import JobRecord
from stockade.jobs.results import Result
from stockade.policy.model import Limits


class Asked(Protocol):
    """What a handle needs of the executor that made it."""

    async def wait(self, job_id: str, timeout: float | None = None) -> JobRecord: ...

    async def result(self, job_id: str) -> Result: ...

    async def kill(self, job_id: str, *, grace: float | None = None, signal: int = 15) -> JobRecord: ...

    async def update_limits(self, job_id: str, **limits: Any) -> Limits: ...

    def follow(self, job_id: str, stream: str = "stdout") -> AsyncIterator[bytes]: ...


class Job:
    """A started job; everything about it can also be asked of the executor by its id."""

    def __init__(self, executor: Asked, job_id: str) -> None:
        self.id = job_id
        self._executor = executor

    async def wait(self, timeout: float | None = None) -> JobRecord:
        """The settled record; after `timeout` seconds the record as it is then, and the job goes on (U-33)."""
        return await self._executor.wait(self.id, timeout)

    async def result(self) -> Result:
        """Waits for the end. Raises: the error (LaunchFailed and its kin) where the command never ran."""
        return await self._executor.result(self.id)

    async def kill(self, *, grace: float | None = None, signal: int = 15) -> JobRecord:
        """Ends it; see `Executor.kill`."""
        return await self._executor.kill(self.id, grace=grace, signal=signal)

    async def update_limits(self, **limits: Any) -> Limits:
        """Changes limits while it runs; see `Executor.update_limits`."""
        return await self._executor.update_limits(self.id, **limits)

    def follow(self, stream: str = "stdout") -> AsyncIterator[bytes]:
        """Its bytes as they come; see `Executor.follow`."""
        return self._executor.follow(self.id, stream)
