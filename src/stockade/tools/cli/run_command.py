"""`stockade run`: one job in the foreground, its output as it comes, our signals passed on to it.

Every way out goes through the end of the job: leaving the executor's block means that nothing of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from stockade.errors import StockadeError, UnknownJob
from stockade.executor import Executor, Job, Result
from stockade.jobs.records import JobRecord
from stockade.policy.command import Terminal
from stockade.tools.cli import exit_codes
from stockade.tools.cli.console import Console
from stockade.tools.cli.inlet import Inlet, feed
from stockade.tools.cli.interrupts import Interrupts
from stockade.tools.cli.options import Wanted
from stockade.tools.cli.outlet import Outlet

LAST_CHANCE: Final = 1.0  # seconds that a slow reader of our output has left when somebody has lost patience


def run_live(wanted: Wanted, console: Console | None = None) -> int:
    """Runs the command and shows its output, on `console` where it has a terminal; the exit code.

    Raises: StockadeError where it never ran.
    """
    return asyncio.run(_run(wanted, lambda run: _live(run, console)))


def run_quietly(wanted: Wanted, results: list[Result]) -> int:
    """Runs the command and appends its result, if it has one; the exit code. Raises: StockadeError where it never ran."""

    async def collected(run: Run) -> int:
        result = await run.job.result()
        results.append(result)
        return run.exit_code(result.record)

    return asyncio.run(_run(wanted, collected))


class Run:
    """One job in the foreground and whoever may want it to end."""

    def __init__(self, executor: Executor, job: Job, interrupts: Interrupts) -> None:
        self.executor = executor
        self.job = job
        self.interrupts = interrupts
        self.stdout, self.stderr = Outlet(1), Outlet(2)
        self.broken: OSError | None = None  # why our own output cannot be written
        self._endings: set[asyncio.Task[JobRecord]] = set()
        self._resizing: set[asyncio.Task[None]] = set()

    def end(self, number: int, *, grace: float | None = None) -> None:
        """Asks for the end of the job by this signal; with a grace of 0 it is killed at once."""
        self._endings.add(asyncio.create_task(self.executor.kill(self.job.id, signal=int(number), grace=grace)))

    def on_signal(self, number: signal.Signals) -> None:
        """Somebody wants us to end: so must the job, and the second time at once."""
        at_once = bool(self._endings) or number == signal.SIGQUIT
        if number == signal.SIGINT and not at_once:
            seconds = self.executor.policy.limits.grace
            self.stderr.post(f"stockade: interrupted, the job has {seconds:g} s to end; again kills it at once\n".encode())
        self.end(number, grace=0.0 if at_once else None)

    async def feed(self, inlet: Inlet) -> None:
        """Passes our input on; where it cannot be read, that is its end."""
        try:
            await feed(self.job, inlet)
        except OSError as error:
            self.stderr.post(f"stockade: standard input cannot be read: {error.strerror}\n".encode())

    def on_resize(self, size: Terminal) -> None:
        """Our terminal has another size, so the job's gets it too."""
        self._resizing.add(asyncio.create_task(self._resize(size)))

    async def _resize(self, size: Terminal) -> None:
        with contextlib.suppress(StockadeError):  # the job has ended
            await self.job.resize(size.rows, size.columns)

    def exit_code(self, record: JobRecord) -> int:
        """What we exit with."""
        return exit_codes.of_record(record, received=self.interrupts.first)

    async def copy(self, stream: str, outlet: Outlet) -> None:
        """Passes one stream on until it ends, or until nobody reads it any more, which ends the job."""
        try:
            async with contextlib.aclosing(self.executor.follow(self.job.id, stream)) as following:
                async for data in following:
                    await outlet.write(data)
        except UnknownJob:
            return  # it never came to have output
        except OSError as error:
            if self.broken is None:
                self.broken = error
                self.end(signal.SIGPIPE)

    async def close(self) -> None:
        """Waits for what has been asked."""
        self.interrupts.listen(lambda _: None)
        await asyncio.gather(*self._endings, *self._resizing)
        self.stdout.close()
        self.stderr.close()


async def _run(wanted: Wanted, body: Callable[[Run], Awaitable[int]]) -> int:
    interrupts = Interrupts()
    try:
        async with Executor(wanted.policy, config=wanted.config, environment=wanted.environment) as executor:
            if interrupts.first is not None:
                return exit_codes.SIGNALLED + interrupts.first
            run = Run(executor, await executor.start(wanted.command), interrupts)
            try:
                interrupts.listen(run.on_signal)
                async with _fed(run, is_wanted=wanted.command.takes_input):
                    return await body(run)
            finally:
                await run.close()
    except StockadeError:
        if interrupts.first is None:
            raise
        return exit_codes.SIGNALLED + interrupts.first
    finally:
        interrupts.close()


def _unenforced(isolation: Mapping[str, str]) -> str:
    """One line about the limits that were asked for and that nothing enforces here; empty where there are none.

    No limit that is set without being asked for is ever without a mechanism.
    """
    names = sorted(limit for limit, mechanism in isolation.items() if mechanism.endswith(".none"))
    if not names:
        return ""
    strong = sorted({isolation[name].removesuffix(".none") + ".cgroup" for name in names})
    instead = " ".join(f"--require {each}" for each in strong)
    return f"stockade: not enforced on this host: {', '.join(names)} (`stockade doctor` says why; {instead} refuses instead)\n"


@contextlib.asynccontextmanager
async def _fed(run: Run, *, is_wanted: bool) -> AsyncIterator[None]:
    """Passes our standard input on to the job meanwhile."""
    if not is_wanted:
        yield
        return
    inlet = Inlet(0)
    feeding = asyncio.create_task(run.feed(inlet), name="stockade-feed")
    try:
        yield
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
        await inlet.close()


async def _live(run: Run, console: Console | None) -> int:
    """Shows what comes until all of it is written, and then says why, where it was no plain exit."""
    if warning := _unenforced((await run.executor.get(run.job.id)).isolation):
        run.stderr.post(warning.encode())
    merged = run.executor.policy.merge_streams
    streams = {"output": run.stdout} if merged else {"stdout": run.stdout, "stderr": run.stderr}
    copying = [asyncio.create_task(run.copy(stream, outlet)) for stream, outlet in streams.items()]
    with contextlib.nullcontext() if console is None else console.lent(run.on_resize):
        record = await run.job.wait()
        is_delivered = await _with_patience(run, asyncio.gather(*copying))
    if record.outcome is None:
        await run.job.result()  # raises why it never ran
    if isinstance(run.broken, BrokenPipeError):
        return exit_codes.UNREAD
    if run.broken is not None:
        raise StockadeError(f"the output cannot be written: {run.broken.strerror}")
    if not is_delivered and run.interrupts.first is not None:
        return exit_codes.SIGNALLED + run.interrupts.first
    if lines := _last_words(run, record):
        with contextlib.suppress(OSError):
            await _with_patience(run, asyncio.ensure_future(run.stderr.write(lines.encode(errors="backslashreplace"))))
    return run.exit_code(record)


def _last_words(run: Run, record: JobRecord) -> str:
    words = [] if record.outcome is None or record.outcome.kind == "exited" else [record.sentence()]
    if run.interrupts.first is None:  # or they would tell of our own second thoughts
        words += [f"note: {note}" for note in record.notes]
    return "".join(f"stockade: {word}\n" for word in words)


async def _with_patience(run: Run, writing: asyncio.Future[Any]) -> bool:
    """Waits until our output is written; where somebody has asked us to go, not for a reader who does not read: False then."""
    impatience = asyncio.create_task(run.interrupts.impatient.wait())
    try:
        await asyncio.wait({writing, impatience}, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            await asyncio.wait({writing}, timeout=LAST_CHANCE)
    finally:
        impatience.cancel()
        is_written = writing.done()
        writing.cancel()
    if is_written:
        await writing
    return is_written
