"""What an MCP server has on offer: its surfaces, their texts and their schemas, in this process, with an eye on the event loop."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client
from mcp_types import CallToolResult

from stockade import Executor, Policy
from stockade.errors import InvalidRequest
from stockade.tools.described import SURFACES, described
from stockade.tools.mcp_server.protocol import make_server
from stockade.tools.mcp_server.surfaces import Surface, offer
from stockade.tools.schemas import CallContext
from support.cli import COMMAND, environment, stockade
from support.mcp import MODES, id_in, only_text, refused, text_of

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
FORMATS = ("anthropic", "openai", "mcp")


@asynccontextmanager
async def served(surface: Surface, policy: Policy, mode: str) -> AsyncIterator[Client]:
    """A client of a server in this process."""
    async with Executor(policy) as executor:
        async with Client(make_server(await offer(surface, executor, policy)), mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", MODES)
async def test_the_default_surface_does_not_block(mode: str) -> None:
    async with served(Surface.DEFAULT, Policy(), mode) as client:
        handle = id_in(await text_of(client, "bash", command="seq 200000; exit 7"))
        assert "\n199999: 199999" in await text_of(client, "bash_output", id=handle, grep="199999")
        assert (await text_of(client, "bash_output", id=handle, tail=1)).startswith("exit 7 · ")


async def test_what_is_no_longer_kept_is_said() -> None:
    policy = Policy(overflow="keep-tail", limits={"output": 5_000})
    async with served(Surface.DEFAULT, policy, MODES[0]) as client:
        text = await text_of(client, "bash", command="seq 100000", max_output=1_000)
        assert "\n[the first 583,895 bytes are no longer kept]\n" in text
        assert text.endswith("\n99999\n100000")
        handle = id_in(text)
        for where in ({"from_line": 1}, {"from_byte": 0}):
            read = await text_of(client, "bash_output", id=handle, max_output=1_000, **where)
            assert "\n[the first 583,895 bytes are no longer kept]\n\n99168\n99169\n" in read
        assert (await text_of(client, "bash_output", id=handle, grep="99999")).endswith("\n99999: 99999")


@pytest.mark.parametrize("mode", MODES)
async def test_the_commands_surface_speaks_contract_n(mode: str, workspace: Path) -> None:
    policy = Policy(workspace=str(workspace), executables=("sh",))
    async with served(Surface.COMMANDS, policy, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [
            "run_command_bg",
            "command_status",
            "command_output",
            "command_kill",
        ]
        started = json.loads(await text_of(client, "run_command_bg", argv=["sh", "-c", "echo hi; exit 3"]))
        status = json.loads(await text_of(client, "command_status", taskId=started["taskId"], waitMs=20_000))
        assert (status["state"], status["exitCode"], status["tailPreview"]) == ("exited", 3, "[stdout tail]\nhi\n")
        assert 'Executable "rm" is not' in await refused(client, "run_command_bg", argv=["rm", "-r", "/"])


@pytest.mark.parametrize("mode", MODES)
async def test_the_shells_surface_speaks_contract_t(mode: str, workspace: Path) -> None:
    async with served(Surface.SHELLS, Policy(workspace=str(workspace)), mode) as client:
        assert await text_of(client, "bash", command="echo hi; pwd") == f"hi\n{workspace}\n"
        assert await refused(client, "bash", command="echo no; exit 3") == "no\nexited with code 3"
        started = await text_of(client, "bash", command="sleep 60", run_in_background=True)
        assert started == "started background shell shell-1; read it with bash_output, end it with kill_shell"
        assert await text_of(client, "bash_output", id="shell-1") == "[status: running]"
        assert await text_of(client, "kill_shell", id="shell-1") == "killed background shell shell-1 [status: killed]"


@pytest.mark.parametrize(("surface", "policy"), [(Surface.COMMANDS, Policy()), (Surface.SHELLS, Policy())])
async def test_a_surface_says_what_it_needs(surface: Surface, policy: Policy) -> None:
    async with Executor(policy) as executor:
        with pytest.raises(InvalidRequest, match=r"executables|workspace"):
            await offer(surface, executor, policy)


@pytest.mark.parametrize("surface", [Surface.COMMANDS, Surface.SHELLS])
async def test_what_a_client_started_ends_with_it(surface: Surface, workspace: Path) -> None:
    policy = Policy(workspace=str(workspace), executables=("sleep", "/bin/sh"))
    async with Executor(policy) as executor:
        offered = await offer(surface, executor, policy)
        mine = await offered.tools("mine")
        assert mine is not await offered.tools("another's")
        call = (
            ("run_command_bg", {"argv": ["sleep", "60"]})
            if surface is Surface.COMMANDS
            else ("bash", {"command": "sleep 60", "run_in_background": True})
        )
        assert "isError" not in await mine.call(*call, CallContext("mine"))
        await offered.end("mine")
        await asyncio.sleep(0)
        assert [record.state for record in await executor.list()] == ["finished"]


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("shape", FORMATS)
def test_schemas_are_printed_in_a_stable_order(surface: str, shape: str) -> None:
    first, second = (stockade("tools", "--format", shape, "--tools", surface).stdout for _ in range(2))
    assert first == second
    tools = json.loads(first)
    assert tools == described(surface, shape)
    key = {"anthropic": "input_schema", "openai": "parameters", "mcp": "inputSchema"}[shape]
    for tool in tools:
        schema = tool.get("function", tool)[key]
        assert (schema["type"], schema["additionalProperties"]) == ("object", False)


def test_unknown_formats_and_surfaces_are_refused_with_those_that_there_are() -> None:
    assert b"give one of anthropic, openai, mcp" in stockade("tools", "--format", "yaml").stderr
    assert b"give one of default, commands, shells" in stockade("mcp", "--tools", "all").stderr
    assert b"--token-file goes with --http" in stockade("mcp", "--token-file", "x").stderr
    assert (
        b"stdin is no pipe"
        in subprocess.run(
            [sys.executable, "-m", "stockade", "mcp"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        ).stderr
    )


@pytest.mark.parametrize("package", ["mcp", "uvicorn"])
def test_without_the_extra_the_way_to_it_is_named(package: str) -> None:
    """Only the server needs it: schemas are printed without."""
    source = f"import sys; sys.modules[{package!r}] = None\nfrom stockade.tools.cli.app import execute\nsys.exit(execute(sys.argv[1:]))"
    ran = [
        subprocess.run([sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=60, check=False)
        for arguments in (["mcp"], ["tools"])
    ]
    assert (ran[0].returncode, ran[0].stderr) == (
        125,
        f"stockade: the MCP server needs the package {package!r}, which is not installed\nhint: pip install 'stockade[mcp]'\n",
    )
    assert ran[1].returncode == 0


async def test_a_result_is_text_and_nothing_else() -> None:
    async with served(Surface.DEFAULT, Policy(), MODES[0]) as client:
        result = await client.call_tool("bash", {"command": "exit 1"})
        assert isinstance(result, CallToolResult)
        assert only_text(result).startswith("exit 1 · ")


def test_a_server_that_is_told_to_go_does_not_wait_for_its_client() -> None:
    """Its reader is not a thread that only the end of stdin would wake."""
    with subprocess.Popen([*COMMAND, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}).encode() + b"\n")
        server.stdin.flush()
        assert b'"serverInfo"' in server.stdout.readline()
        server.terminate()
        assert server.wait(60) == 143
