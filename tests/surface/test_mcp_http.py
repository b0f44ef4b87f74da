"""`stockade mcp --http`: who is let in, whose commands are whose, and what is left at the end of a session and of the server."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import socket
import time
from pathlib import Path

import httpx2
import pytest
from mcp import MCPError

from stockade.errors import InvalidRequest
from stockade.tools.mcp_server.http import Address, check_tokens, parse_address
from stockade.tools.mcp_server.tokens import read_tokens
from support.cli import stockade
from support.leaks import Leftovers
from support.mcp import LEGACY, MODES, http_process, http_server, id_in, over_http, refused, text_of
from support.survivors import SURVIVORS, beats
from support.waiting import BOUND, eventually, grows

ONE, TWO = "one-token-of-many-characters", "another-token-of-many-characters"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file with two tokens in it that only its owner may read."""
    file = tmp_path / "tokens"
    file.write_text(f"# one a line\n{ONE}\n\n{TWO}\n")
    file.chmod(0o600)
    return file


def ask(url: str, **headers: str) -> httpx2.Response:
    """The first request of a session, with these headers."""
    return httpx2.post(url, json=INITIALIZE, headers={**ACCEPT, **headers}, timeout=60)


@pytest.mark.parametrize("mode", MODES)
async def test_both_wires_serve_the_same_tools(mode: str, workspace: Path) -> None:
    told: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    with http_server("--workspace", str(workspace)) as url:
        async with over_http(url, mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["bash", "bash_output", "bash_input", "bash_kill"]
            result = await client.call_tool("bash", {"command": "echo out; sleep 4"}, progress_callback=note)
            assert not result.is_error
            assert len(told) == 1
            handle = id_in(await text_of(client, "bash", command="echo begun; sleep 60", wait_s=0.5))
            assert (await text_of(client, "bash_kill", id=handle)).startswith("killed: SIGTERM by the caller")
            assert (await text_of(client, "bash_output", id=handle, from_line=1)).endswith("\nbegun")
            call = asyncio.create_task(client.call_tool("bash", {"command": "while true; do echo . >> mine; sleep 0.02; done"}))
            await eventually(lambda: (workspace / "mine").exists(), "the command runs")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await eventually(lambda: not grows([workspace / "mine"]), "the command has been ended")
            assert "(aborted: " in await refused(client, "bash_output", id="zzzz")


async def test_sessions_do_not_see_each_other(workspace: Path) -> None:
    (workspace / "survivors.py").write_text(SURVIVORS)
    with http_server("--workspace", str(workspace), "--grace", "0.2") as url:
        async with over_http(url, mode=LEGACY) as one, over_http(url, mode=LEGACY) as two:
            handle = id_in(await text_of(one, "bash", command="python3 survivors.py", background=True))
            await eventually(lambda: all(file.exists() for file in beats(workspace)), "every survivor lives")
            for tool in ("bash_output", "bash_kill", "bash_input"):
                assert "running: none" in await refused(two, tool, id=handle)
            assert (await two.list_resources()).resources == []
            with pytest.raises(MCPError):
                await two.read_resource(f"stockade://job/{handle}/output")
            assert (await text_of(one, "bash_output", id=handle)).startswith("running")
        # The end of a session is the end of what it has started.
        await eventually(lambda: not grows(beats(workspace)), "every survivor is dead")


async def test_tokens_tell_clients_apart_where_there_is_no_session(tokens: Path) -> None:
    with http_server("--token-file", str(tokens)) as url:
        async with over_http(url, token=ONE) as one, over_http(url, token=ONE) as again, over_http(url, token=TWO) as two:
            handle = id_in(await text_of(one, "bash", command="echo hi; sleep 60", wait_s=0.5))
            assert (await text_of(again, "bash_output", id=handle, from_line=1)).endswith("\nhi")
            assert "running: none" in await refused(two, "bash_output", id=handle)


async def test_a_session_is_its_clients(tokens: Path) -> None:
    with http_server("--token-file", str(tokens)) as url:
        opened = await asyncio.to_thread(ask, url, Authorization=f"Bearer {ONE}")
        session = opened.headers["mcp-session-id"]
        for token, status in ((TWO, 404), (ONE, 202)):
            note = httpx2.Request(
                "POST",
                url,
                json={"jsonrpc": "2.0", "method": "notifications/initialized"},
                headers={**ACCEPT, "Authorization": f"Bearer {token}", "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"},
            )
            async with httpx2.AsyncClient() as web:
                assert (await web.send(note)).status_code == status


def test_who_has_no_token_is_not_let_in(tokens: Path) -> None:
    with http_server("--token-file", str(tokens)) as url:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {ONE}"}, {"Authorization": f"Bearer {ONE}x"}):
            answer = ask(url, **header)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert ask(url, Authorization=f"bearer {TWO}").status_code == 200


def test_pages_of_other_sites_are_not_let_in(tokens: Path) -> None:
    """A browser sends the name by which it has found us, and the site whose page it shows (DNS rebinding)."""
    with http_server("--host-name", "build.example") as url:
        assert ask(url, Host="evil.example").status_code == 421
        assert ask(url, Host="build.example").status_code == 200
        assert ask(url, Origin="http://evil.example").status_code == 403
        assert ask(url, Origin="http://localhost:3000").status_code == 200
        assert ask(url).status_code == 200


async def test_nothing_is_left_when_the_server_is_told_to_go(workspace: Path) -> None:
    (workspace / "survivors.py").write_text(SURVIVORS)
    with http_server("--workspace", str(workspace), "--grace", "0.2") as url:
        async with over_http(url) as client:
            await text_of(client, "bash", command="python3 survivors.py", background=True)
            await eventually(lambda: all(file.exists() for file in beats(workspace)), "every survivor lives")
    assert not await asyncio.to_thread(grows, beats(workspace))
    assert not Leftovers.now().cgroups


async def test_connections_that_ask_for_nothing_do_not_keep_others_out(tokens: Path) -> None:
    """Each descriptor of the server could be taken by who has no token, for ever; now a quarter at most, and for ten seconds."""
    with http_process("--token-file", str(tokens), open_files=256) as (server, url):
        idle = [socket.socket() for _ in range(300)]
        server.signal(signal.SIGSTOP)
        try:  # all at once, as far as the listening socket lets them wait
            for connection in idle:
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", port_in(url)))
            server.signal(signal.SIGCONT)
            answer = await asyncio.to_thread(lambda: patient(url, Authorization=f"Bearer {ONE}"))
            assert answer.status_code == 200
        finally:
            for connection in idle:
                connection.close()


def test_a_server_whose_log_nobody_reads_goes_on() -> None:
    """A refused name is one line on stderr: who sends enough of them filled the pipe, and the server waited for a reader."""
    with http_process() as (server, url), httpx2.Client(headers={**ACCEPT, "Host": "evil.example"}, timeout=60) as web:
        assert server.process.stderr is not None
        room = fcntl.fcntl(server.process.stderr, fcntl.F_SETPIPE_SZ, 4_096)
        for _ in range(room // 16):
            assert web.post(url, json=INITIALIZE).status_code == 421
        assert ask(url).status_code == 200


def port_in(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def patient(url: str, **headers: str) -> httpx2.Response:
    """As `ask`, again and again while the server has too many connections."""
    deadline = time.monotonic() + 2 * BOUND
    while True:
        try:
            return ask(url, **headers)
        except httpx2.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_what_others_can_reach_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "build.example"):
        with pytest.raises(InvalidRequest, match="there is no token"):
            check_tokens(Address(host, 80), ())
        check_tokens(Address(host, 80), (ONE,))
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_tokens(Address(host, 80), ())
    refusal = stockade("mcp", "--http", "0.0.0.0:0")
    assert (refusal.returncode, b"--token-file" in refusal.stderr) == (125, True)


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("8080", ("127.0.0.1", 8080)),
        ("build.example:0", ("build.example", 0)),
    ],
)
def test_addresses(written: str, address: tuple[str, int]) -> None:
    parsed = parse_address(written)
    assert (parsed.host, parsed.port) == address


@pytest.mark.parametrize("written", ["", ":80", "x", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:" + "1" * 5000])
def test_what_is_no_address(written: str) -> None:
    with pytest.raises(InvalidRequest, match="is no address"):
        parse_address(written)


def test_tokens_are_kept_private(tokens: Path, tmp_path: Path) -> None:
    assert read_tokens(str(tokens), "of-the-environment-16") == (ONE, TWO)
    assert read_tokens(None, " of-the-environment-16 ") == ("of-the-environment-16",)
    assert read_tokens(None, None) == ()
    tokens.chmod(0o640)
    with pytest.raises(InvalidRequest, match="others may read"):
        read_tokens(str(tokens), None)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_tokens(str(tmp_path / "none"), None)
    for bad in ("short", "with a space in its middle", "not-ascii-ÄÖÜ-not-ascii"):
        with pytest.raises(InvalidRequest, match="at least 16"):
            read_tokens(None, bad)
