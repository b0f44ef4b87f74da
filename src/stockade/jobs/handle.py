"""A started job as its caller holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from stockade.jobs.interacting import WRITE_TIMEOUT
from stockade.jobs.records import JobRecord
from stockade.jobs.results import Result
from stockade.policy.model import Limits


class Asked(Protocol):
    """What a handle needs of the executor that made it."""

    async def wait(self, job_id: str, timeout: float | None = None) -> JobRecord: ...

    async def result(self, job_id: str) -> Result: ...

    async def kill(self, job_id: str, *, grace: float | None = None, signal: int | str = 15) -> JobRecord: ...

    async def signal(self, job_id: str, number: int | str) -> bool: ...

    async def write_stdin(self, job_id: str, data: bytes, *, timeout: float = WRITE_TIMEOUT) -> int: ...

    async def close_stdin(self, job_id: str, *, timeout: float = WRITE_TIMEOUT) -> None: ...

    async def resize(self, job_id: str, rows: int, columns: int) -> None: ...

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

    async def kill(self, *, grace: float | None = None, signal: int | str = 15) -> JobRecord:
        """Ends it; see `Executor.kill`."""
        return await self._executor.kill(self.id, grace=grace, signal=signal)

    async def update_limits(self, **limits: Any) -> Limits:
        """Changes limits while it runs; see `Executor.update_limits`."""
        return await self._executor.update_limits(self.id, **limits)

    async def signal(self, number: int | str) -> bool:
        """Sends a signal, by number or name, to each of its processes; see `Executor.signal`."""
        return await self._executor.signal(self.id, number)

    async def write_stdin(self, data: bytes, *, timeout: float = WRITE_TIMEOUT) -> int:
        """Writes to its standard input or types into its terminal; see `Executor.write_stdin`."""
        return await self._executor.write_stdin(self.id, data, timeout=timeout)

    async def close_stdin(self, *, timeout: float = WRITE_TIMEOUT) -> None:
        """Ends its standard input; see `Executor.close_stdin`."""
        await self._executor.close_stdin(self.id, timeout=timeout)

    async def resize(self, rows: int, columns: int) -> None:
        """Sets the size of its terminal; see `Executor.resize`."""
        await self._executor.resize(self.id, rows, columns)

    def follow(self, stream: str = "stdout") -> AsyncIterator[bytes]:
        """Its bytes as they come; see `Executor.follow`."""
        return self._executor.follow(self.id, stream)
