"""What one job can learn of, send to or leave for another, at the same time or later, and what it can reach of the host."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from stockade import Executor, Policy
from stockade.executor import Job
from stockade.launcher.outcome import Exited, Signaled
from support.attacks import outside, payload, within
from support.programs import python, shell
from support.waiting import SLOWNESS

BOUND = 20 * SLOWNESS  # seconds


async def first_line(job: Job) -> dict[str, Any]:
    """The first line that a job prints, as JSON."""
    said = b""
    async with asyncio.timeout(BOUND):
        async for piece in job.follow():
            said += piece
            if b"\n" in said:
                break
    answers: dict[str, Any] = json.loads(said.split(b"\n")[0])
    return answers


async def test_a_job_beside_another_finds_none_of_its_memory_sockets_files_or_processes() -> None:
    """Control: the job that left the marks finds every one of them by the same search."""
    mark = secrets.token_hex(8)
    async with Executor(Policy()) as executor:
        neighbour = await executor.start(payload("leave", mark))
        made = await first_line(neighbour)
        found, scanned = await asyncio.gather(within(executor, "look", mark), within(executor, "scan", mark))
        await neighbour.kill(grace=0.1)
    assert {answer for name, answer in made.items() if name.startswith("seen ")} == {"OK"}
    assert {answer for name, answer in found.items() if name not in ("abstract", "tcp")} == {"ENOENT"}
    assert found["abstract"] == found["tcp"] == "ECONNREFUSED"
    assert scanned["found"] == []


async def test_a_later_job_finds_nothing_in_memory_in_files_or_in_init() -> None:
    """Init is a fork of the fork server, which has read every earlier job's command and environment; nobody can look into it.

    Control: with the mark in its own environment the same search finds it.
    """
    mark = secrets.token_hex(8)
    script = f"x={mark}; for i in $(seq 2000); do y=$y$x; done; echo $y >/tmp/{mark}; echo $y >/dev/shm/left; echo $y >~/left; exit 0"
    async with Executor(Policy(seccomp="debug")) as executor:
        first = await executor.run(shell(script), env={"SECRET": mark})
        assert first.ok
        later = [await within(executor, "scan", mark) for _ in range(3)]
        control = await executor.run(payload("scan", mark), env={"SECRET": mark})
    assert [(each["found"], each["fresh memory"]) for each in later] == [([], False)] * 3
    assert all(each["read"] >= 1 for each in later)
    (where,) = json.loads(control.stdout)["found"]
    assert where.endswith("/environ")


async def test_killing_everything_reaches_the_jobs_own_processes_only() -> None:
    """Control: a child of the killer's own dies of it."""
    async with Executor(Policy()) as executor:
        neighbours = [await executor.start(shell("echo '{}'; read -t 1 <> <(:); exit 5")) for _ in range(2)]
        for neighbour in neighbours:
            await first_line(neighbour)
        for number in (15, 9):
            assert await within(executor, "kill_all", str(number)) == {"child": number}
        results = [await neighbour.result() for neighbour in neighbours]
    assert [result.outcome for result in results] == [Exited(5)] * 2


async def test_one_process_may_end_its_own_command_by_killing_everything() -> None:
    script = "import os, time\nif os.fork() == 0:\n    os.kill(-1, 9)\n    os._exit(0)\ntime.sleep(20)"
    async with Executor(Policy()) as executor:
        result = await executor.run(python(script))
    assert result.outcome == Signaled(9)


async def test_abstract_sockets_of_the_host_are_out_of_reach() -> None:
    """Control: a program outside connects to the same name."""
    name = f"stockade-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen(8)
        async with Executor(Policy()) as executor:
            answers = await within(executor, "connect_abstract", name)
        control = await asyncio.to_thread(outside, "connect_abstract", name)
    assert answers["abstract"] == "ECONNREFUSED"
    assert control["abstract"] == "OK"
    assert control["netns"] == os.readlink("/proc/self/ns/net") != answers["netns"]


async def test_twenty_jobs_at_once_have_three_descriptors_each_and_share_none() -> None:
    """The pipes are told apart by their inode; each job also holds its own open for a while, so that they overlap."""
    script = """
import json, os, time
time.sleep(0.2)
found = {}
for number in os.listdir("/proc/self/fd"):
    try:
        found[number] = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        pass
print(json.dumps(found))
"""
    async with Executor(Policy()) as executor:
        results = await asyncio.gather(*(executor.run(python(script)) for _ in range(20)))
    tables = [json.loads(result.stdout) for result in results]
    assert {tuple(sorted(table)) for table in tables} == {("0", "1", "2")}
    assert {table["0"] for table in tables} == {"/dev/null"}
    assert len({table[stream] for table in tables for stream in ("1", "2")}) == 40


async def test_what_one_job_does_to_its_streams_stays_in_its_own_record() -> None:
    """It may steal its own output by opening the pipe's other end, and set flags on it; the neighbour's is whole."""
    thief = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)
end = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
for _ in range(2000):
    try:
        os.write(1, b"x" * 1000)
    except BlockingIOError:
        pass
    try:
        os.read(end, 65536)
    except BlockingIOError:
        pass
"""
    async with Executor(Policy()) as executor:
        stolen, whole = await asyncio.gather(executor.run(python(thief)), executor.run(shell("head -c 2000000 /dev/zero | tr '\\0' y")))
    assert stolen.ok
    assert whole.stdout == b"y" * 2_000_000
    assert set(stolen.stdout) <= set(b"x")


async def test_a_shared_workspace_is_shared_by_design_and_ends_at_its_edge(workspace: Path, tmp_path: Path) -> None:
    """Two jobs of one policy see the same workspace; the directory beside it, which outside is one step away, is not there."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "secret").write_text("secret")
    async with Executor(Policy(workspace=str(workspace))) as executor:
        await executor.run(shell("echo shared >note"))
        seen = await executor.run(shell("cat note; ls ..; cat ../beside/secret; ls /root /work /var/lib 2>&1"))
    assert seen.stdout.splitlines()[:2] == [b"shared", b"workspace"]
    assert b"secret" not in seen.stdout.split(b"ls:")[0]
