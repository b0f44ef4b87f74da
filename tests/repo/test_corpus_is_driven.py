"""Every program of tests/corpus is driven by a test that carries its id."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_program_is_named_by_a_test() -> None:
    programs = {path.name.split("-")[0] for path in (TESTS / "corpus").iterdir() if re.match(r"[a-f]\d\d-", path.name)}
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path.parent.name != "corpus"]
    marked = {case for text in texts for case in re.findall(r'mark\.case\("([a-f]\d\d)"\)', text)}
    # Cases that are parameters of one test stand in a list.
    listed = {case for text in texts for row in re.findall(r"^DRIVERS = \[(.*)\]$", text, re.MULTILINE) for case in re.findall(r"\w+", row)}
    assert len(programs) > 50
    assert (programs - marked - listed, (marked | listed) - programs) == (set(), set())
