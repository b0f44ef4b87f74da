"""What an executor offers on jobs that run: to end, signal, stop and resume them, and to change their limits."""

from __future__ import annotations

import abc
from typing import Any, Final

from stockade.errors import InvalidRequest
from stockade.jobs import arguments
from stockade.jobs.records import HOST, Caller, JobRecord
from stockade.jobs.supervisor import LiveJob
from stockade.jobs.updates import update_limits
from stockade.launcher.outcome import Killed, signal_name
from stockade.policy.model import Limits, Policy

KILL_MARGIN: Final = 45.0  # seconds beyond the grace within which a killed job has settled


class Controlling(abc.ABC):
    """Power over jobs that run; who has it says how to come by one of them, and how to wait for its end."""

    policy: Policy

    @abc.abstractmethod
    async def _live_job(self, job_id: str, caller: Caller) -> LiveJob | None:
        """The job, where it has not settled. Raises: UnknownJob."""

    @abc.abstractmethod
    async def wait(self, job_id: str, timeout: float | None = None, *, caller: Caller = HOST) -> JobRecord:
        """The settled record, or the record as it is after `timeout` seconds. Raises: UnknownJob."""

    async def kill(
        self, job_id: str, *, grace: float | None = None, signal: int | str = 15, reason: str | None = None, caller: Caller = HOST
    ) -> JobRecord:
        """Ends a job and gives its settled record: `signal` to every process, the grace, then the kernel kills what is left.

        A signal is a number or a name, such as 2, "SIGINT" or "INT". `reason` is what the outcome's detail says, where it is not that
        the caller sent this signal. A job that has settled is returned as it is. A second kill with a shorter grace shortens the first
        one's.

        Raises: UnknownJob; InvalidRequest for a signal or a grace that is none.
        """
        live = await self._live_job(job_id, caller)
        number = arguments.signal_number(signal)
        if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= 3600):
            raise InvalidRequest(f"grace: {grace!r} is no duration", field="grace", hint="give seconds, from 0 to 3600")
        bound = KILL_MARGIN
        if live is not None:
            live.first_signal = number if live.ending.cause is None else live.first_signal
            live.ending.ask(Killed(by="caller", detail=reason or f"{signal_name(number)} by the caller"))
            bound += live.shorten_grace(grace)
        return await self.wait(job_id, bound, caller=caller)

    async def signal(self, job_id: str, number: int | str, *, caller: Caller = HOST) -> bool:
        """Sends a signal, by number or name, to every process of a job, and nothing more; False where it has none any more.

        To interrupt what runs in the foreground of a terminal and nothing else, type its character: `write_stdin(job_id, b"\\x03")`.

        Raises: UnknownJob; InvalidRequest for what is no signal.
        """
        live = await self._live_job(job_id, caller)
        number = arguments.signal_number(number)
        return live is not None and live.signal(number)

    async def freeze(self, job_id: str, *, caller: Caller = HOST) -> bool:
        """Stops every process of a job until `thaw`; wall and idle time go on, but where the limit `count_frozen` is false.

        False where it has none any more. Raises: UnknownJob.
        """
        return await self._set_frozen(job_id, caller, frozen=True)

    async def thaw(self, job_id: str, *, caller: Caller = HOST) -> bool:
        """Has a frozen job go on. False where it has no process any more. Raises: UnknownJob."""
        return await self._set_frozen(job_id, caller, frozen=False)

    async def update_limits(self, job_id: str, *, caller: Caller = HOST, **limits: Any) -> Limits:
        """Changes limits of a job that runs, all of those given or none, and gives those that hold now.

        Each may be tightened; the host application may also widen it up to this executor's policy. A job that has not begun yet is
        waited for. What a sandbox is built with (open files, file size, sizes of places) cannot be changed; of `memory`, what System V
        segments may hold stays. Recorded as a note.

        Raises: UnknownJob; InvalidRequest and its kin for what is wrong, would widen, or comes too late; HostUnfit where this host
        has no mechanism that could be changed. Nothing has changed then.
        """
        live = await self._live_job(job_id, caller)
        if live is None:
            raise InvalidRequest(f"job {job_id!r} has ended", field="job", hint="limits of a job can be changed while it runs")
        return await update_limits(live, limits, self.policy.limits if caller is HOST else None)

    async def _set_frozen(self, job_id: str, caller: Caller, *, frozen: bool) -> bool:
        live = await self._live_job(job_id, caller)
        return live is not None and await live.set_frozen(frozen=frozen)
