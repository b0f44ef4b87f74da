"""What a command writes: counted, capped, banked and read back exactly (1A.5 to 1A.7; NL-05 to NL-08)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.tools.commands import BackgroundCommands
from support.agents import (
    AWAIT_FILE,
    PATIENCE,
    artifact_bytes,
    artifact_pages,
    digest,
    host,
    output_pages,
    pages,
    policy,
    run,
    settle,
    start,
    until_output,
)
from support.programs import python

BIG = 3_145_740


def writes(data: str, stream: str = "stdout") -> list[str]:
    """The command that writes what a Python expression gives, as bytes."""
    return python(f"import sys; sys.{stream}.buffer.write({data})")


@pytest.mark.case("NL-05")
async def test_output_is_read_while_it_comes(commands: BackgroundCommands, workspace: Path) -> None:
    tick = "print(f'tick {number}', flush=True)"
    task = await start(
        commands,
        python(
            f"{AWAIT_FILE}\nfor number in range(1, 12):\n    {tick}\n    time.sleep(0.06)\nawait_file('go')\nnumber = 12\n{tick}",
        ),
    )
    seen = []
    async with asyncio.timeout(PATIENCE):
        while "tick 1\n" not in (partial := (await commands.read_output(task)).content):
            seen.append((await commands.wait(task, 25)).state)
    seen.append((await commands.status(task)).state)
    assert "tick 12\n" not in partial
    assert seen[-1] == "running"
    (workspace / "go").touch()
    status = await settle(commands, task)
    assert (status.state, status.exit_code) == ("exited", 0)
    assert "".join(await output_pages(commands, task, limit=4_096)) == "".join(f"tick {number}\n" for number in range(1, 13))


@pytest.mark.case("NL-06")
async def test_three_megabytes_are_exact_in_every_way(commands: BackgroundCommands, background_executor: Executor) -> None:
    status = await run(commands, writes(f"(b'0123456789abcde\\n' * 200000)[:{BIG - 4}] + b'END\\n'"))
    assert status.stdout is not None
    assert (status.stdout_bytes, status.stdout.size_bytes) == (BIG, BIG)
    walked = await output_pages(commands, status.task_id, limit=200_000)
    assert len(walked) > 10
    banked = await artifact_bytes(background_executor, status.stdout.artifact_id)
    assert digest("".join(walked)) == digest(banked)
    assert banked.endswith(b"END\n")
    assert len(status.tail_preview) <= 2_100
    assert status.tail_preview.endswith("END\n")


@pytest.mark.case("NL-07")
async def test_the_cap_stops_an_endless_writer_with_exactly_the_cap_kept(
    commands: BackgroundCommands, background_executor: Executor
) -> None:
    status = await run(commands, python("import os\nwhile True: os.write(1, b'x' * 65536)"), max_output_bytes=1_000_000)
    assert status.stdout is not None
    assert (status.state, status.stdout_bytes, status.stdout.size_bytes) == ("output-limit", 1_000_000, 1_000_000)
    for word in ("banked in full", "stdout", "1000000 bytes"):
        assert word in str(status.error)
    assert digest(await artifact_bytes(background_executor, status.stdout.artifact_id)) == digest(b"x" * 1_000_000)


@pytest.mark.case("NL-08")
async def test_the_tool_and_the_host_page_alike(commands: BackgroundCommands) -> None:
    status = await run(commands, python("for number in range(400): print(f'line {number} é')"))

    async def read(offset: int) -> dict[str, object]:
        return (await commands.read_output(status.task_id, "stdout", offset, 137)).wire()

    by_host, by_tool = await pages(read), await output_pages(commands, status.task_id, limit=137)
    assert by_host == by_tool
    assert "".join(by_host) == "".join(f"line {number} é\n" for number in range(400))


@pytest.mark.case("NX-01")
async def test_filling_the_cap_exactly_is_normal(commands: BackgroundCommands) -> None:
    status = await run(commands, writes("b'x' * 100000"), max_output_bytes=100_000)
    assert (status.state, status.exit_code, status.stdout_bytes, status.error) == ("exited", 0, 100_000, None)


@pytest.mark.case("NX-02")
async def test_one_byte_over_the_cap_is_not(commands: BackgroundCommands) -> None:
    """Also where the command has ended by itself before its last bytes are read out of the pipe."""
    for _ in range(5):
        status = await run(commands, writes("b'x' * 100001"), max_output_bytes=100_000)
        assert (status.state, status.stdout_bytes) == ("output-limit", 100_000)


@pytest.mark.case("NX-03")
async def test_each_stream_has_the_cap_for_itself(commands: BackgroundCommands) -> None:
    both = python("import sys; sys.stdout.write('o' * 800); sys.stderr.write('e' * 800)")
    status = await run(commands, both, max_output_bytes=1_000)
    assert (status.state, status.stdout_bytes, status.stderr_bytes) == ("exited", 800, 800)
    status = await run(commands, writes("b'e' * 1001", "stderr"), max_output_bytes=1_000)
    assert (status.state, status.stderr_bytes) == ("output-limit", 1_000)
    assert "stderr" in str(status.error)


@pytest.mark.case("NX-09")
async def test_a_banking_failure_does_not_lose_the_outcome(background_executor: Executor, workspace: Path, state: Path) -> None:
    async with host(background_executor, workspace) as commands:
        task = await start(commands, python(AWAIT_FILE + "print('kept', flush=True); await_file('go'); sys.exit(3)"))
        await until_output(commands, task, "kept\n")
        shutil.rmtree(state / "bank" / "artifacts")
        (workspace / "go").touch()
        status = await settle(commands, task)
        assert (status.state, status.exit_code, status.stdout_bytes) == ("exited", 3, 5)
        assert status.stdout is not None
        assert (status.stdout.artifact_id, status.stdout.size_bytes, status.stdout.preview) == ("", 5, "kept\n")
        hint = status.stdout.read_back_hint
        for part in ("could not be created", "No such file or directory", "retrieve_context has nothing to read", str(state)):
            assert part in hint
        path = hint[hint.index(str(state)) :].split(";")[0].split(",")[0].rstrip(".")
        assert Path(path).read_bytes() == b"kept\n"
        assert (await commands.read_output(task)).content == "kept\n"


@pytest.mark.case("NX-12")
async def test_the_tail_and_the_pages_never_cut_a_character(commands: BackgroundCommands) -> None:
    text = "é😀" * 3_001 + "\n"
    status = await run(commands, writes("('é😀' * 3001 + chr(10)).encode()"))
    assert status.tail_preview == "[stdout tail]\n" + text[-2_000:]
    assert status.stdout_bytes == len(text.encode())
    page = await commands.read_output(status.task_id, "stdout", 1, 3)
    assert (page.content, page.total_size, page.has_more) == ("😀é😀", len(text), True)
    assert "".join(await output_pages(commands, status.task_id, limit=7)) == text


@pytest.mark.case("NX-13")
async def test_two_tails_share_the_budget(commands: BackgroundCommands) -> None:
    status = await run(commands, python("import sys; sys.stdout.write('o' * 5000); sys.stderr.write('e' * 5000)"))
    assert status.tail_preview == f"[stdout tail]\n{'o' * 1_000}\n[stderr tail]\n{'e' * 1_000}"
    status = await run(commands, writes("b'e' * 5000", "stderr"))
    assert status.tail_preview == f"[stderr tail]\n{'e' * 2_000}"


@pytest.fixture
async def on_a_small_disk(tmp_path: Path) -> AsyncIterator[Executor]:
    """An executor whose bank is on a tmpfs of 512 KiB."""
    bank = tmp_path / "state" / "bank"
    async with Executor(Policy(), config=from_environment(state_dir=str(bank.parent))):
        pass  # which makes the directories
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", bank], check=True)
    try:
        async with Executor(Policy(), config=from_environment(state_dir=str(bank.parent))) as executor:
            yield executor
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", bank], check=True)


@pytest.mark.case("NX-17", "N-defect-8")
async def test_a_full_disk_kills_the_command_and_the_count_is_what_was_kept(on_a_small_disk: Executor, workspace: Path) -> None:
    async with host(on_a_small_disk, workspace) as commands:
        status = await run(commands, python("import os\nfor _ in range(1000): os.write(1, b'x' * 10000)"))
        assert status.state == "killed"
        for part in ("stdout sink failed", "ENOSPC", f"{status.stdout_bytes} bytes were kept"):
            assert part in str(status.error)
        assert 100_000 < status.stdout_bytes < 524_288
        walked = "".join(await output_pages(commands, status.task_id, limit=200_000))
        assert walked == "x" * status.stdout_bytes
        assert (await run(commands, ["/usr/bin/true"])).state in ("exited", "killed")  # the host lives on


@pytest.mark.case("NX-18", "N-defect-6")
async def test_bytes_are_banked_as_they_were_written(commands: BackgroundCommands, background_executor: Executor) -> None:
    for data in (b"\xff\xfe\x00\x80A", bytes(range(256)) * 16):
        status = await run(commands, writes(repr(data)))
        assert status.stdout is not None
        assert (status.stdout_bytes, status.stdout.size_bytes) == (len(data), len(data))
        assert await artifact_bytes(background_executor, status.stdout.artifact_id) == data


@pytest.mark.case("NX-19", "N-defect-7")
async def test_a_page_never_ends_inside_of_a_character(commands: BackgroundCommands) -> None:
    status = await run(commands, writes("'a😀b😀'.encode()"))
    assert status.stdout is not None
    assert await output_pages(commands, status.task_id, limit=1) == ["a", "😀", "b", "😀"]
    assert await artifact_pages(commands, status.stdout.artifact_id, limit=2) == ["a😀", "b😀"]


async def test_offsets_and_limits_are_clamped(commands: BackgroundCommands) -> None:
    """N-R4, for the host and for the tool."""
    status = await run(commands, writes("b'x' * 300000"))
    for offset, limit, content, clamped in (
        (-5, 3, 3, (0, 3)),
        (300_000, 10, 0, (300_000, 10)),
        (0, 10**9, 200_000, (0, 200_000)),
        (0, 0, 1, (0, 1)),
    ):
        page = await commands.read_output(status.task_id, "stdout", offset, limit)
        assert (len(page.content), page.offset, page.limit, page.total_size) == (content, *clamped, 300_000)
        arguments = {"taskId": status.task_id, "offset": offset, "limit": limit}
        assert await commands.tools.call("command_output", arguments) == page.wire()
        assert page.has_more == (page.offset + page.limit < 300_000)
    assert len((await commands.read_output(status.task_id, "nonsense")).content) == 50_000
    assert (await commands.read_output(status.task_id, "stderr")).wire() == {
        "taskId": status.task_id,
        "stream": "stderr",
        "content": "",
        "offset": 0,
        "limit": 50_000,
        "totalSize": 0,
        "hasMore": False,
    }


@pytest.mark.case("N-defect-10")
async def test_a_page_costs_its_own_length_wherever_it_is(commands: BackgroundCommands) -> None:
    """Measured by what this process has read(2): upstream read the whole log for each page."""
    status = await run(commands, writes("b'0123456789abcdef' * 524288"))
    assert status.stdout_bytes == 8_388_608
    await commands.read_output(status.task_id, "stdout", 8_000_000, 1_000)  # who reads first may have to count the characters

    def bytes_read() -> int:
        with open("/proc/self/io") as counters:
            return int(next(line for line in counters if line.startswith("rchar")).split()[1])

    for offset in (0, 4_000_000, 8_000_000):
        before = bytes_read()
        page = await commands.read_output(status.task_id, "stdout", offset, 1_000)
        assert len(page.content) == 1_000
        assert bytes_read() - before < 300_000


async def test_output_of_a_command_that_has_not_begun_is_an_empty_page(commands: BackgroundCommands) -> None:
    handle = await commands.start(["/usr/bin/true"], cwd=".")
    page = await commands.read_output(handle.task_id)
    assert (page.content, page.total_size, page.has_more) == ("", 0, False)


async def test_a_policy_can_allow_more_output(background_executor: Executor, workspace: Path) -> None:
    async with BackgroundCommands(background_executor) as commands:
        commands.set_policy(policy(workspace, max_output_bytes=10))
        assert (await run(commands, writes("b'x' * 11"))).state == "output-limit"
        assert (await run(commands, writes("b'x' * 11"), max_output_bytes=11)).state == "exited"


def test_the_tests_run_as_root() -> None:
    """Mounting a small disk needs it; said here rather than by a skip."""
    assert os.geteuid() == 0
