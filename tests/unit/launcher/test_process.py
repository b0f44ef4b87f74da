"""What the executor makes of init's words: they are read as those of the job's neighbour."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.errors import LaunchFailed
from stockade.launcher.outcome import Status
from stockade.launcher.process import ProcessTree
from stockade.sandbox import protocol
from stockade.sandbox.cgroup import Leaf

WAIT = 10.0


@asynccontextmanager
async def tree(tmp_path: Path, *, has_terminal: bool = False) -> AsyncIterator[tuple[ProcessTree, socket.socket, subprocess.Popen[bytes]]]:
    """A tree whose init is a `cat` that we can end, and whose words are ours."""
    process = await asyncio.to_thread(subprocess.Popen, ["/usr/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = await asyncio.to_thread(protocol.write_body, {})
    directory = await asyncio.to_thread(os.open, tmp_path, os.O_RDONLY)
    leaf = Leaf(directory, "x", directory)
    built = ProcessTree(pidfd=os.pidfd_open(process.pid), report=ours, request=request, leaf=leaf, has_terminal=has_terminal)
    try:
        yield built, theirs, process
    finally:
        theirs.close()
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(WAIT):
            await built.wait_gone()
        built.close()
        await asyncio.to_thread(process.wait)
        os.close(directory)


class TestWords:
    async def test_the_commands_status_is_what_init_says(self, tmp_path: Path) -> None:
        async with tree(tmp_path) as (built, init, _):
            for message in (protocol.encode("ready"), protocol.encode("started"), protocol.encode("ended", code=7)):
                init.send(message)
            async with asyncio.timeout(WAIT):
                await built.wait_ready()
                await built.ended.wait()
            assert built.status == Status(exit_code=7)

    async def test_a_second_status_is_ignored(self, tmp_path: Path) -> None:
        async with tree(tmp_path) as (built, init, _):
            init.send(protocol.encode("ended", code=7))
            init.send(protocol.encode("ended", signal=9))
            async with asyncio.timeout(WAIT):
                await built.ended.wait()
        assert built.status == Status(exit_code=7)

    async def test_a_failed_step_reaches_the_caller(self, tmp_path: Path) -> None:
        async with tree(tmp_path) as (built, init, process):
            init.send(protocol.encode("failed", step="mounts", call="move_mount", path="/x", errno=2))
            process.stdin.close()
            async with asyncio.timeout(WAIT):
                with pytest.raises(LaunchFailed, match=r"step 'mounts': move_mount on '/x': ENOENT"):
                    await built.wait_ready()

    async def test_an_init_that_dies_silently_names_the_step_it_was_at(self, tmp_path: Path) -> None:
        async with tree(tmp_path) as (built, _, process):
            await asyncio.to_thread(protocol.mark_step, built._request, "pivot")
            process.stdin.close()
            async with asyncio.timeout(WAIT):
                with pytest.raises(LaunchFailed, match="step 'pivot'"):
                    await built.wait_ready()

    async def test_a_terminal_is_taken_once_before_the_sandbox_is_ready(self, tmp_path: Path) -> None:
        master, slave = pty.openpty()
        try:
            async with tree(tmp_path, has_terminal=True) as (built, init, _):
                protocol.send(init, protocol.encode("terminal"), (master,))
                init.send(protocol.encode("ready"))
                async with asyncio.timeout(WAIT):
                    await built.wait_ready()
                taken = built.take_terminal()
                assert os.path.sameopenfile(taken, master)
                os.close(taken)
        finally:
            os.close(master)
            os.close(slave)

    @pytest.mark.parametrize(
        ("says", "gives", "wanted"),
        [
            ("ready", None, True),
            ("terminal", None, True),
            ("terminal", "/dev/null", True),
            ("terminal", "/dev/tty", True),
            ("terminal", "/dev/ptmx", False),
            ("terminal", "two", True),
        ],
    )
    async def test_whatever_else_comes_as_a_terminal_ends_the_job(self, tmp_path: Path, says: str, gives: str | None, wanted: bool) -> None:
        held = []
        if gives is not None:
            paths = ["/dev/ptmx", "/dev/ptmx"] if gives == "two" else [gives]
            for path in paths:
                try:
                    held.append(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
                except OSError:  # we have no controlling terminal: any other device is none either
                    held.append(os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC))
        try:
            async with tree(tmp_path, has_terminal=wanted) as (built, init, process):
                protocol.send(init, protocol.encode(says), tuple(held))
                while built._report.fileno() >= 0:
                    await asyncio.sleep(0.001)
                process.stdin.close()
                async with asyncio.timeout(WAIT):
                    with pytest.raises(LaunchFailed, match="broke its protocol"):
                        await built.wait_ready()
        finally:
            for descriptor in held:
                os.close(descriptor)

    @given(
        words=st.lists(
            st.binary(min_size=1, max_size=100)
            | st.builds(
                lambda kind, fields: protocol.encode(kind, **fields),
                st.sampled_from(["ready", "started", "failed", "ended", "signalled", "terminal", "other"]),
                st.dictionaries(
                    st.sampled_from(["code", "signal", "step", "call", "path", "errno"]),
                    st.none()
                    | st.integers(-5, 300)
                    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
                    | st.lists(st.integers()),
                ),
            ),
            max_size=6,
        )
    )
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_nothing_that_init_says_breaks_the_executor(self, tmp_path: Path, words: list[bytes]) -> None:
        async def hear() -> None:
            async with tree(tmp_path) as (built, init, process):
                for word in words:
                    try:
                        init.send(word)
                    except OSError:
                        break  # it has been hung up on
                process.stdin.close()
                async with asyncio.timeout(WAIT):
                    await built.ended.wait()
                    status = built.status
                    assert status is None or (status.exit_code is None) != (status.signal is None)
                    await built.wait_gone()

        asyncio.run(hear())
