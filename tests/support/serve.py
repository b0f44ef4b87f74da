"""A small supervisor of our own: an Executor that answers on a unix socket, one JSON line a question.

python serve.py DIRECTORY        reads DIRECTORY/config.json, listens on the abstract socket that it names, prints `ready`
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

from stockade import Executor, Policy, Terminal
from stockade.config import Config
from stockade.errors import StockadeError, UnknownJob
from stockade.jobs.records import JobRecord
from stockade.jobs.states import JobState

_STATES = {
    JobState.QUEUED: "starting",
    JobState.STARTING: "starting",
    JobState.RUNNING: "running",
    JobState.STOPPING: "running",
    JobState.FAILED: "failed",
    JobState.LOST: "lost",
}


class Answers:
    """What can be asked, by name."""

    def __init__(self, executor: Executor, stream: str) -> None:
        self._executor = executor
        self._stream = stream

    async def start(self, argv: list[str], timeout: float | None = None, cwd: str | None = None) -> str:
        return (await self._executor.start(argv, timeout=timeout, cwd=cwd)).id

    async def start_interactive(self, argv: list[str], way: str) -> str:
        """Starts a job that is given a line while it runs, by a pipe or a terminal."""
        parts = {"tty": Terminal()} if way == "terminal" else {"interactive": True}
        job = await self._executor.start(argv, **parts)
        await job.write_stdin(b"a line\n")
        return job.id

    async def status(self, job: str) -> dict[str, Any]:
        return _status(await self._executor.get(job))

    async def output(self, job: str, offset: int) -> list[Any]:
        page = await self._executor.read_bytes(job, self._stream, offset=offset)
        return [page.data.decode("latin-1"), page.next_offset]

    async def kill(self, job: str, grace: float) -> dict[str, Any]:
        return _status(await self._executor.kill(job, grace=grace))

    async def jobs(self) -> list[str]:
        return [record.id for record in await self._executor.list(limit=10_000)]

    async def leaf(self, job: str) -> str | None:
        """The name of the cgroup of a job that runs."""
        live = self._executor._live.get(job)
        return None if live is None or live.tree is None else live.tree.leaf.name

    async def fork_server(self) -> int:
        assert self._executor._engine is not None
        return self._executor._engine.server.pid


def _status(record: JobRecord) -> dict[str, Any]:
    outcome = record.outcome
    if outcome is None:
        return {"state": _STATES[record.state], "exit_code": None, "signal": None, "reason": record.error and record.error.message}
    is_exit = outcome.kind == "exited"
    reason = None if is_exit else outcome.sentence()
    return {"state": "exited" if is_exit else "killed", "exit_code": outcome.exit_code, "signal": outcome.signal, "reason": reason}


async def _answer(answers: Answers, question: bytes) -> dict[str, Any]:
    name, arguments = json.loads(question)
    try:
        return {"answer": await getattr(answers, name)(*arguments)}
    except UnknownJob as error:
        return {"unknown": error.message}
    except StockadeError as error:
        return {"error": error.message, "code": error.code}


async def serve(place: str) -> None:
    with open(f"{place}/config.json") as file:
        settings = json.load(file)
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    policy = Policy.model_validate(settings["policy"])
    async with Executor(policy, config=Config.model_validate(settings["config"])) as executor:
        answers = Answers(executor, "output" if policy.merge_streams else "stdout")

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while question := await reader.readline():
                    writer.write(json.dumps(await _answer(answers, question)).encode() + b"\n")
                    await writer.drain()
            except OSError:
                pass  # the other end has gone
            finally:
                writer.close()

        server = await asyncio.start_unix_server(talk, "\0" + settings["socket"], limit=8 << 20)
        print("ready", flush=True)
        await done.wait()
        server.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
