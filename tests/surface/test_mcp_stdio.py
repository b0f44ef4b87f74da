"""`stockade mcp` over stdio, as the official client has it, on both wires: what a model sees, and what is left when it has gone."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest
from mcp import MCPError
from mcp_types import BlobResourceContents, CallToolResult, TextResourceContents

from support.cli import started, stockade
from support.leaks import Leftovers
from support.mcp import MODES, id_in, only_text, over_stdio, refused, text_of
from support.programs import DAEMON
from support.survivors import SURVIVORS, beats
from support.waiting import eventually, grows

pytestmark = pytest.mark.parametrize("mode", MODES)
FIRST_LINE = re.compile(r"exit 0 · \d+\.\d\d s\n")


async def test_a_command_is_told_by_status_and_text(mode: str) -> None:
    async with over_stdio(mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["bash", "bash_output", "bash_input", "bash_kill"]
        hints = {tool.name: tool.annotations for tool in tools}
        assert hints["bash"] is not None
        assert hints["bash"].open_world_hint
        assert hints["bash"].destructive_hint
        assert hints["bash_output"] is not None
        assert hints["bash_output"].read_only_hint
        assert all(tool.output_schema is None for tool in tools)
        assert "at most 120s, 512M of memory, 256 processes, 10M of output" in str(tools[0].description)
        assert FIRST_LINE.sub("", await text_of(client, "bash", command="echo hi")) == "hi"
        assert FIRST_LINE.sub("", await text_of(client, "bash", command="true")) == "(no output)"
        assert re.fullmatch(
            r"exit 3 · \S+ s\nout\nerr\nlast", await text_of(client, "bash", command="echo out; echo err >&2; echo last; exit 3")
        )
        assert (await text_of(client, "bash", command="kill -SEGV $$")).startswith("killed by SIGSEGV · ")
        assert (await text_of(client, "bash", command="sleep 60", timeout_s=0.3)).startswith("timed out after 0.3 s · ")
        assert (await text_of(client, "bash", command="cat", stdin="given")).endswith("\ngiven")


async def test_the_environment_is_one_without_a_terminal(mode: str, workspace: Path) -> None:
    async with over_stdio("--workspace", str(workspace), "--env", "CI=no", mode=mode) as client:
        text = await text_of(client, "bash", command="env; test -t 1 || echo no terminal; pwd; read x || echo no input")
    for line in ("TERM=dumb", "NO_COLOR=1", "PAGER=cat", "GIT_PAGER=cat", "GH_PAGER=cat", "PYTHONUNBUFFERED=1", "LANG=C.UTF-8"):
        assert f"\n{line}\n" in text
    assert "\nDEBIAN_FRONTEND=noninteractive\n" in text
    assert "\nCI=no\n" in text  # what the operator says goes first
    assert text.endswith(f"no terminal\n{workspace}\nno input")


async def test_out_of_memory_is_said_in_words(mode: str) -> None:
    async with over_stdio("--memory", "64M", mode=mode) as client:
        text = await text_of(client, "bash", command="exec python3 -c 'x = b\"a\" * (200 << 20); import time; time.sleep(20)'")
    assert text.startswith("killed: out of memory, 64 MiB limit")


async def test_wrong_arguments_are_refused_with_the_way_out(mode: str) -> None:
    async with over_stdio("--timeout", "5", mode=mode) as client:
        assert "there is no argument 'timeout'. Expected {command: string" in await refused(client, "bash", command="true", timeout=5)
        assert "command is missing" in await refused(client, "bash")
        assert "give at most 5s" in await refused(client, "bash", command="true", timeout_s=60)
        assert "'/nope'" in await refused(client, "bash", command="true", cwd="/nope")
        assert "do not go together" in await refused(client, "bash_output", id="x", from_line=1, tail=1)
        with pytest.raises(MCPError, match="the tools are bash, bash_output"):
            await client.call_tool("sh", {})


async def test_a_long_output_is_shown_by_its_ends_and_read_on(mode: str) -> None:
    async with over_stdio(mode=mode) as client:
        text = await text_of(client, "bash", command="for i in $(seq 1 20000); do echo line $i; done")
        assert len(text) < 30_100
        assert "\nline 1\nline 2\n" in text
        assert text.endswith("\nline 19999\nline 20000")
        mark = re.search(r"\n\[… ([\d,]+) of 20,000 lines, [\d,]+ bytes omitted \(lines ([\d,]+)–([\d,]+)\); read on: (.*)\]\n", text)
        assert mark
        first, last = (int(mark[group].replace(",", "")) for group in (2, 3))
        assert int(mark[1].replace(",", "")) == last - first + 1
        assert f"\nline {first - 1}\n[…" in text
        assert f"]\nline {last + 1}\n" in text
        handle = id_in(text)
        assert mark[4] == f'bash_output(id="{handle}", from_line={first})'
        on = await text_of(client, "bash_output", id=handle, from_line=first, max_output=1_000)
        assert on.split("\n")[1] == f"line {first}"
        assert re.search(r"from_line=(\d+)\)\]$", on)
        assert (await text_of(client, "bash_output", id=handle, tail=2)).endswith("]\nline 19999\nline 20000")
        assert "\n777: line 777\n7770: line 7770\n" in await text_of(client, "bash_output", id=handle, grep="LINE 777")
        assert "nothing there: the output has 20,000 lines" in await text_of(client, "bash_output", id=handle, from_line=20_001)


async def test_a_giant_line_binary_and_colours(mode: str) -> None:
    async with over_stdio(mode=mode) as client:
        giant = await text_of(client, "bash", command="""python3 -c 'print("é" * 500_000, end="")'""")
        assert len(giant) < 30_100
        assert "�" not in giant
        byte = re.search(r"from_byte=(\d+)\)", giant)
        assert byte
        assert int(byte[1]) % 2 == 0
        on = await text_of(client, "bash_output", id=id_in(giant), from_byte=int(byte[1]), max_output=1_000)
        assert on.split("\n")[1].startswith("éé")
        assert "�" not in on
        binary = await text_of(client, "bash", command="head -c 2000000 /dev/urandom")
        assert len(binary) < 30_100
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", binary)
        drawing = r"""printf '\033[31mred\033[0m\n 10%%\r 99%%\r100%%\n'"""
        drawn = await text_of(client, "bash", command=drawing, description="draws \x1b[31m \0")
        assert drawn.endswith("\nred\n100%")
        resources = (await client.list_resources()).resources
        assert len(resources) == 3
        assert resources[0].name.endswith(r" draws \x1b[31m \x00")
        raw = (await client.read_resource(resources[0].uri)).contents[0]
        assert isinstance(raw, TextResourceContents)
        assert raw.text == "\x1b[31mred\x1b[0m\n 10%\r 99%\r100%\n"
        last = (await client.read_resource(f"{resources[1].uri}?offset=1999999")).contents[0]
        assert last.meta is not None
        assert last.meta["stockade/offset"] == 1_999_999
        assert last.meta["stockade/hasMore"] is False
        first = (await client.read_resource(resources[1].uri)).contents[0]
        assert isinstance(first, BlobResourceContents)
        assert len(first.blob) == (1 << 20) // 3 * 4 + 4
        assert first.meta is not None
        assert first.meta["stockade/hasMore"] is True
        assert first.meta["stockade/total"] == 2_000_000
        assert len((await client.list_resource_templates()).resource_templates) == 1
        for uri in ("stockade://job/nope/output", "stockade://job", "file:///etc/passwd", f"{resources[0].uri}?offset=-1"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)


async def test_what_outlasts_the_wait_goes_on_in_the_background(mode: str, workspace: Path) -> None:
    async with over_stdio("--workspace", str(workspace), mode=mode) as client:
        text = await text_of(client, "bash", command="echo begun; until test -e go; do sleep 0.05; done; echo went; exit 4", wait_s=0.5)
        handle = id_in(text)
        assert re.fullmatch(
            rf"running · id {handle} · \S+ s · moved to the background: it goes on after the wait of 0\.5 s\nbegun\n"
            rf'\[read on: bash_output\(id="{handle}", wait_s=30\); end it: bash_kill\(id="{handle}"\)\]',
            text,
        )
        unknown = await refused(client, "bash_output", id="zzzz")
        assert f"no command has the id 'zzzz'; running: {handle} (" in unknown
        still = await text_of(client, "bash_output", id=handle)
        assert still.startswith(f"running · id {handle}")
        assert "(no new output)" in still
        (workspace / "go").touch()
        ended = await text_of(client, "bash_output", id=handle, wait_s=20)
        assert re.fullmatch(rf"exit 4 · \S+ s · id {handle}\nwent", ended)
        # It answers for ever, with the same end.
        assert (await text_of(client, "bash_output", id=handle)).endswith(f"id {handle}\n(no new output)")
        assert (await text_of(client, "bash_output", id=handle, from_line=1)).endswith("\nbegun\nwent")
        assert "had ended before" in await text_of(client, "bash_kill", id=handle)
        background = await text_of(client, "bash", command="sleep 60", background=True)
        assert " · in the background\n(no output)\n" in background


async def test_a_kill_reaches_the_last_descendant(mode: str, workspace: Path) -> None:
    (workspace / "survivors.py").write_text(SURVIVORS)
    async with over_stdio("--workspace", str(workspace), "--grace", "0.2", mode=mode) as client:
        text = await text_of(client, "bash", command="python3 survivors.py", background=True)
        await eventually(lambda: all(file.exists() for file in beats(workspace)), "every survivor lives")
        told = await text_of(client, "bash_kill", id=id_in(text))
        assert re.match(r"killed: SIGTERM by the caller · \S+ s · id \w+ · no process of it is left\n", told)
        assert not await asyncio.to_thread(grows, beats(workspace))


async def test_a_cancelled_call_ends_its_command_and_no_other(mode: str, workspace: Path) -> None:
    async with over_stdio("--workspace", str(workspace), mode=mode) as client:
        other = id_in(await text_of(client, "bash", command="while true; do echo . >> other; sleep 0.02; done", background=True))
        call = asyncio.create_task(
            client.call_tool("bash", {"command": "setsid sh -c 'while true; do echo . >> mine; sleep 0.02; done' & wait"})
        )
        await eventually(lambda: (workspace / "mine").exists(), "the command runs")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: not grows([workspace / "mine"]), "the command has been ended")
        listed = await refused(client, "bash_output", id="zzzz")
        assert f"running: {other} (" in listed
        assert "(aborted: " in listed
        assert await asyncio.to_thread(grows, [workspace / "other"])


async def test_progress_is_told_to_those_who_ask(mode: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with over_stdio(mode=mode) as client:
        result = await client.call_tool("bash", {"command": "sleep 7"}, progress_callback=note)
        assert isinstance(result, CallToolResult)
        assert only_text(result).startswith("exit 0 · 7.")
    assert len(told) == 2
    assert told[0][0] < told[1][0]
    assert told[0][1] == "bash has been running for 3 s"


async def test_an_interactive_command_is_written_to(mode: str) -> None:
    async with over_stdio(mode=mode) as client:
        handle = id_in(await text_of(client, "bash", command="cat", interactive=True, wait_s=0))
        assert "\nhallo\n" in await text_of(client, "bash_input", id=handle, text="hallo\n", wait_s=0.5)
        assert (await text_of(client, "bash_input", id=handle, close=True, wait_s=20)).startswith("exit 0 · ")
        assert "has ended" in await refused(client, "bash_input", id=handle, text="x")
        terminal = id_in(await text_of(client, "bash", command="test -t 0 && stty size; python3 -i", tty=True, wait_s=1))
        assert "\n24 80\n" in await text_of(client, "bash_output", id=terminal, from_line=1, wait_s=1)
        assert "\n42\n" in await text_of(client, "bash_input", id=terminal, text="6 * 7\n", wait_s=2)
        assert (await text_of(client, "bash_input", id=terminal, text="\x04", wait_s=20)).startswith("exit 0 · ")
        deaf = id_in(await text_of(client, "bash", command="sleep 60", background=True))
        assert "takes no input" in await refused(client, "bash_input", id=deaf, text="x")


async def test_nothing_is_left_when_the_client_goes(mode: str, workspace: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (workspace / "daemon.py").write_text(DAEMON)
    async with over_stdio("--workspace", str(workspace), "--state-dir", str(state), mode=mode) as client:
        kept = id_in(await text_of(client, "bash", command="python3 daemon.py; sleep 60", wait_s=0))
        await eventually(lambda: (workspace / "alive").exists(), "the daemon lives")
        waiting = asyncio.create_task(client.call_tool("bash", {"command": "touch second; sleep 60"}))
        await eventually(lambda: (workspace / "second").exists(), "the second runs")
    with pytest.raises((MCPError, asyncio.CancelledError)):
        await waiting
    assert not Leftovers.now().cgroups
    records = json.loads((await asyncio.to_thread(stockade, "ps", "--json", "--state-dir", str(state))).stdout)
    assert {record["state"] for record in records} == {"finished"}
    # The next server on the same directory answers for the commands of this one.
    async with over_stdio("--state-dir", str(state), mode=mode) as client:
        text = await text_of(client, "bash_output", id=kept)
        assert text.startswith("killed: the executor was closed · ")
        assert text.endswith("\nready")


async def test_two_clients_have_servers_of_their_own(mode: str) -> None:
    async with over_stdio(mode=mode) as one, over_stdio(mode=mode) as two:
        handle = id_in(await text_of(one, "bash", command="sleep 60", background=True))
        assert "running: none" in await refused(two, "bash_output", id=handle)


async def test_many_calls_at_a_time(mode: str) -> None:
    async with over_stdio(mode=mode) as client:
        texts = await asyncio.gather(*(text_of(client, "bash", command=f"sleep 0.2; echo number {number}") for number in range(12)))
    assert [text.rpartition("\n")[2] for text in texts] == [f"number {number}" for number in range(12)]


async def test_what_is_no_message_is_answered(mode: str) -> None:
    """JSON-RPC 2.0, 5.1; a client that waits for an answer would wait for ever. Half a character becomes U+FFFD."""
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": "printf 'a\ud800b'"}}}
    lines = ["{", "[]", '{"jsonrpc": "1.0", "id": 3, "method": "ping"}', '{"jsonrpc": "2.0", "id": %s, "method": "ping"}' % ("1" * 5000)]
    start = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    hello = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    with started("mcp", stdin=subprocess.PIPE) as running:
        assert running.process.stdin is not None
        for line in (*map(json.dumps, hello), *lines, json.dumps(call)):
            running.process.stdin.write(line.encode() + b"\n")
        running.process.stdin.flush()
        answers = [json.loads(await asyncio.to_thread(running.line)) for _ in range(6)]
        running.process.stdin.close()
        await asyncio.to_thread(running.end)
    errors = sorted((answer["id"] or 0, answer["error"]["code"]) for answer in answers if "error" in answer)
    assert errors == [(0, -32700), (0, -32700), (0, -32600), (3, -32600)]
    (said,) = (answer["result"]["content"][0]["text"] for answer in answers if answer["id"] == 7)
    assert said.endswith("\na\N{REPLACEMENT CHARACTER}b")
