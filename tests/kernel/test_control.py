"""Ending a job from another process, through the state directory."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import Config
from stockade.errors import StateError, StockadeError
from stockade.jobs.control import ask_to_kill
from stockade.jobs.directory import StateDirectory, look
from support.programs import STUBBORN, python


async def test_a_deep_state_directory_has_a_socket_too(tmp_path: Path) -> None:
    state = str(tmp_path / ("d" * 120))
    async with Executor(Policy(), config=Config(state_dir=state)) as executor:
        job = await executor.start(python(STUBBORN))
        said = await asyncio.to_thread(lambda: ask_to_kill(look(state), job.id, signal=15, grace=0.1))
        assert said == "killed: SIGTERM through the state directory"
        assert (await job.wait()).state == "finished"


@pytest.mark.parametrize(
    "line", [b"\n", b"[]\n", b'{"kill": 1}\n', b'{"kill": "x", "signal": "9", "grace": null}\n', b"\xff\n", b"x" * 9000 + b"\n", b""]
)
async def test_nonsense_on_the_socket_harms_nobody(tmp_path: Path, line: bytes) -> None:
    state = str(tmp_path / "state")
    async with Executor(Policy(), config=Config(state_dir=state)) as executor:

        def talk() -> bytes:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(f"{state}/run/control")
                client.sendall(line)
                client.shutdown(socket.SHUT_WR)
                return client.recv(65536)

        try:
            said = await asyncio.to_thread(talk)
        except ConnectionError:
            said = b""
        assert (b"message" in said) == (0 < len(line) < 4096)  # who says nothing, or too much, is hung up on
        assert (await executor.run(["/usr/bin/true"])).ok


async def test_a_refusal_comes_back_with_its_text(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    async with Executor(Policy(), config=Config(state_dir=state)):
        with pytest.raises(StockadeError, match="unknown job 'nobody'"):
            await asyncio.to_thread(lambda: ask_to_kill(look(state), "nobody", signal=15, grace=None))


def test_an_executor_that_is_there_and_does_not_answer_is_not_waited_for_long(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    StateDirectory.open(state).close()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{state}/run/control")
        silent.listen()
        for grace in (None, 3600.0):
            with pytest.raises(StateError, match="does not answer: timed out"):
                ask_to_kill(look(state), "x", signal=15, grace=grace, silence=0.2)


def test_empty_lines_before_the_answer_say_that_somebody_is_there(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    StateDirectory.open(state).close()

    def answer(silent: socket.socket) -> None:
        connection, _ = silent.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b'\n\n{"sentence": "killed"}\n')

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{state}/run/control")
        silent.listen()
        answering = threading.Thread(target=answer, args=(silent,))
        answering.start()
        assert ask_to_kill(look(state), "x", signal=15, grace=0) == "killed"
        answering.join(10)


async def test_where_no_executor_lives_nobody_answers(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    async with Executor(Policy(), config=Config(state_dir=state)):
        pass
    with pytest.raises(StateError, match="does not answer"):
        await asyncio.to_thread(lambda: ask_to_kill(look(state), "x", signal=15, grace=None))
