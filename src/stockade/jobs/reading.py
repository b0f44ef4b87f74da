"""The bounded reads that an executor offers on what a job has written, while it runs and after it has ended."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TypeVar

from stockade.bank.account import Account
from stockade.bank.cursors import SHARED, Increment
from stockade.bank.windows import DEFAULT_CHARS, MAX_BYTES, BytePage, Page, StreamReader, Tail
from stockade.jobs import arguments
from stockade.jobs.records import HOST, Caller

T = TypeVar("T")


class Reading(abc.ABC):
    """Windows of a job's streams; who has it says how to come by the account of a job."""

    @abc.abstractmethod
    async def _read(self, job_id: str, caller: Caller, question: Callable[[Account], T]) -> T:
        """The answer of an account, off the event loop; counts as having looked. Raises: UnknownJob."""

    async def read(
        self, job_id: str, stream: str = "stdout", *, offset: int = 0, limit: int = DEFAULT_CHARS, caller: Caller = HOST
    ) -> Page:
        """A window of a stream's text by character offset (N-R4). Raises: UnknownJob, InvalidRequest."""
        check_window(stream, offset=offset, limit=limit)
        return await self._read(job_id, caller, lambda account: account.reader(stream).read_chars(offset, limit))

    async def read_bytes(
        self, job_id: str, stream: str = "stdout", *, offset: int = 0, limit: int = MAX_BYTES, caller: Caller = HOST
    ) -> BytePage:
        """A window of a stream's bytes. Raises: UnknownJob, InvalidRequest."""
        check_window(stream, offset=offset, limit=limit)
        return await self._read(job_id, caller, lambda account: account.reader(stream).read_bytes(offset, limit))

    async def files(self, job_id: str, stream: str = "stdout", *, caller: Caller = HOST) -> tuple[str, ...]:
        """The files on this host that hold a stream, oldest first; more than one where only its tail is kept. Raises: UnknownJob."""
        check_window(stream)
        return await self._read(job_id, caller, lambda account: account.reader(stream).stream.paths)

    async def read_new(
        self, job_id: str, stream: str = "stdout", *, reader: str = SHARED, limit: int = DEFAULT_CHARS, caller: Caller = HOST
    ) -> Increment:
        """What this reader has not been given yet; never twice, never half a character (U-19). Raises: UnknownJob, InvalidRequest."""
        check_window(stream, limit=limit)
        arguments.check_name("reader", reader)
        return await self._read(job_id, caller, lambda account: account.cursors(stream).cursor(reader).read(limit))

    async def tail(self, job_id: str, stream: str = "stdout", *, chars: int = 2_000, caller: Caller = HOST) -> Tail:
        """The last characters of a stream. Raises: UnknownJob, InvalidRequest."""
        check_window(stream, chars=chars)
        return await self._read(job_id, caller, lambda account: account.reader(stream).tail(chars))

    async def look(self, job_id: str, stream: str, question: Callable[[StreamReader], T], *, caller: Caller = HOST) -> T:
        """What `question`, which may block, finds in a stream, such as several windows at once. Raises: UnknownJob, InvalidRequest."""
        check_window(stream)
        return await self._read(job_id, caller, lambda account: question(account.reader(stream)))


def check_window(stream: str, **numbers: int) -> None:
    arguments.check_name("stream", stream)
    for field, number in numbers.items():
        arguments.check_number(field, number)
