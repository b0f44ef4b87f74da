"""What an executor offers on jobs that are written to while they run."""

from __future__ import annotations

import abc
from typing import Final

from stockade.errors import InputClosed, InvalidRequest, NotInteractive
from stockade.jobs import arguments
from stockade.jobs.records import HOST, Caller, JobRecord
from stockade.launcher.input import Input
from stockade.policy.command import Terminal
from stockade.policy.quantities import shown

WRITE_TIMEOUT: Final = 30.0  # seconds that a job has to take what is written to it
MAX_WRITE: Final = 4 * 1024 * 1024  # bytes of one call
LONGEST_WRITE: Final = 3600.0  # seconds


class Interacting(abc.ABC):
    """Writing to jobs that were started with `interactive` or `tty`; who has it says how to come by the input of a job."""

    @abc.abstractmethod
    async def _input(self, job_id: str, caller: Caller) -> tuple[JobRecord, Input | None]:
        """The record of a job, and its input while it has not settled. Raises: UnknownJob."""

    async def write_stdin(self, job_id: str, data: bytes, *, timeout: float = WRITE_TIMEOUT, caller: Caller = HOST) -> int:
        """Writes to a job's standard input, or types into its terminal; returns the number of bytes, all of them, once they are taken.

        Taken is what the kernel holds for the job: in a pipe (64 KiB) or a terminal, where the job may still leave it unread. Calls
        take turns, so that no two are mixed. Of a call that is cancelled, a beginning may have been taken.

        Raises: UnknownJob; NotInteractive; InvalidRequest for more than 4 MiB at once; InputNotTaken where the job has not read
        enough within `timeout` seconds, and InputClosed where it cannot any more: their `taken` says how many bytes it has.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidRequest(f"data: {shown(data)} is not bytes", field="data", hint="give bytes, such as text.encode()")
        if (size := memoryview(data).nbytes) > MAX_WRITE:
            raise InvalidRequest(f"data: {size} bytes at once, at most {MAX_WRITE} may be", field="data", hint="give it in pieces")
        _check_timeout(timeout)
        await (await self._open_input(job_id, caller)).write(data, timeout)
        return size

    async def close_stdin(self, job_id: str, *, timeout: float = WRITE_TIMEOUT, caller: Caller = HOST) -> None:
        """Ends a job's standard input, after what is being written; it reads the end of file. Once is enough.

        Into a terminal its end-of-file character (Ctrl-D) is typed, as its user would: at the beginning of a line a program takes it
        for the end, and more can be written to another one afterwards.

        Raises: UnknownJob; NotInteractive; InputNotTaken where its turn did not come within `timeout` seconds; InputClosed where the
        job has ended.
        """
        _check_timeout(timeout)
        await (await self._open_input(job_id, caller)).close(timeout)

    async def resize(self, job_id: str, rows: int, columns: int, *, caller: Caller = HOST) -> None:
        """Sets the size of a job's terminal; its foreground processes get SIGWINCH where that is a change.

        Raises: UnknownJob; NotInteractive where it has no terminal; InvalidRequest for the field rows or columns; InputClosed where
        the job has ended.
        """
        size = Terminal(rows=rows, columns=columns)
        (await self._open_input(job_id, caller, terminal=True)).resize(size.rows, size.columns)

    async def _open_input(self, job_id: str, caller: Caller, *, terminal: bool = False) -> Input:
        record, found = await self._input(job_id, caller)
        if not record.interactive or (terminal and not record.tty):
            what = "terminal" if terminal else "standard input that can be written to"
            part = "tty=Terminal()" if terminal else "interactive=True or tty=Terminal()"
            raise NotInteractive(f"job {job_id!r} has no {what}", field="job_id", hint=f"start it with {part}")
        if found is None:
            raise InputClosed(f"the job cannot be written to: it has ended: {record.sentence()}", taken=0, hint="start the command again")
        return found


def _check_timeout(timeout: object) -> None:
    arguments.check_seconds("timeout", timeout)
    if timeout is None or not isinstance(timeout, int | float) or timeout > LONGEST_WRITE:
        raise InvalidRequest(f"timeout: {shown(timeout)} is no bound", field="timeout", hint=f"give seconds, at most {LONGEST_WRITE:g}")
