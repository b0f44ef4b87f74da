"""A talk with an interactive job: type something, wait for what it answers."""

from __future__ import annotations

import asyncio

from stockade import Executor, Job, Terminal
from support.waiting import BOUND, PERIOD

SHELL = ["/bin/bash", "--norc", "--noediting", "-i"]
PROMPT = {"PS1": "ready> "}


class Dialogue:
    """Reads on from where it has read last, so that an answer of before is never taken for one of now."""

    def __init__(self, executor: Executor, job: Job) -> None:
        self.executor = executor
        self.job = job
        self.offset = 0

    async def expect(self, text: bytes) -> bytes:
        """What comes until `text` has come, and with it. Raises: AssertionError after 15 s."""
        seen, position = b"", self.offset
        try:
            async with asyncio.timeout(BOUND):
                while text not in seen:
                    page = await self.executor.read_bytes(self.job.id, offset=position)
                    seen, position = seen + page.data, page.next_offset
                    if not page.data:
                        await asyncio.sleep(PERIOD)
        except TimeoutError:
            raise AssertionError(f"{text!r} has not come, but {seen!r}") from None
        seen = seen[: seen.index(text) + len(text)]
        self.offset += len(seen)
        return seen

    async def type(self, text: bytes, answer: bytes) -> bytes:
        """Types, and gives what comes until the answer and with it."""
        await self.job.write_stdin(text)
        return await self.expect(answer)


async def shell_on_terminal(executor: Executor, **parts: object) -> Dialogue:
    """An interactive bash on a terminal, at its first prompt."""
    parts = {"tty": Terminal(), "env": PROMPT, **parts}
    dialogue = Dialogue(executor, await executor.start(SHELL, **parts))
    await dialogue.expect(b"ready> ")
    return dialogue


__all__ = ["PROMPT", "SHELL", "Dialogue", "shell_on_terminal"]
