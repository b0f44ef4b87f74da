"""What the README says is true: its examples run, its tables are the code's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from stockade.policy.files import load_policy
from stockade.tools.cli import exit_codes
from support.cli import COMMAND, environment
from support.mcp import text_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^#+ ([^\n]*)\n(?:(?!^#).)*?^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
SAYS = {  # what the example of each section prints, among other things
    "Start": "b'hi\\n' 0 exit 0",
    "Jobs in the background": "b'begun\\n'",
    "Interactive jobs": "b'hello world\\nand all the rest'",
    "Background commands": "exited 0",
    "The bash seam": "belongs to another session",
    "Shells that the host owns": "[('shell-1', 'sleep 60', 'running')]\nkilled",
}


@pytest.mark.parametrize(("section", "example"), EXAMPLES, ids=[section for section, _ in EXAMPLES])
def test_each_example_runs(section: str, example: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    source = example.replace("/srv/project", str(tmp_path / "project")).replace("/var/lib/stockade", str(tmp_path / "state"))
    ran = subprocess.run([sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert SAYS[section] in ran.stdout


def test_no_example_is_left_out() -> None:
    assert README.count("```python\n") == len(EXAMPLES) == len(SAYS)


async def test_the_mcp_configuration_starts_a_server(tmp_path: Path) -> None:
    (text,) = re.findall(r"```json\n(\{\"mcpServers\".*?)```", README, re.DOTALL)
    (tmp_path / "project").mkdir()
    wanted = json.loads(text.replace("/srv/project", str(tmp_path / "project")))["mcpServers"]["stockade"]
    assert wanted["command"] == "stockade"
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *wanted["args"]], env=environment())
    async with Client(server) as client:
        said = await text_of(client, "bash", command="pwd; exit 3")
        description = (await client.list_tools()).tools[0].description
    assert re.fullmatch(rf"exit 3 · \S+ s\n{tmp_path}/project", said)
    assert "at most 600s, 1G of memory" in str(description)


def test_the_policy_file_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    assert load_policy(text, origin="README").limits.memory == 512 << 20


def test_the_tree_is_the_tree() -> None:
    (tree,) = re.findall(r"```\nsrc/stockade/\n(.*?)```", README, re.DOTALL)
    named = {name for line in tree.splitlines() for name in re.findall(r"^  (\w+/|\w+\.py)|(?<= )(\w+\.py)", line)}
    names = {part.rstrip("/") for pair in named for part in pair if part}
    present = {path.name for path in (ROOT / "src" / "stockade").iterdir() if not path.name.startswith("__")}
    assert names == present
    for directory in re.findall(r"^(\w+)/ ", tree, re.MULTILINE):
        assert (ROOT / directory).is_dir()


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    (table,) = re.findall(r"\| exit code \| meaning \|\n\|---\|---\|\n(.*?)\n\n", README, re.DOTALL)
    named = {code for row in table.splitlines() for code in row.split("|")[1].strip().split(", ")}
    assert named == {code for code, _ in exit_codes.TABLE}


def test_every_error_is_in_the_table() -> None:
    from stockade import errors

    public = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.StockadeError)}
    assert {name for name in public - {"StockadeError", "Protocol"} if f"`{name}`" not in README} == set()
