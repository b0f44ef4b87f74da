"""Every scenario of contract N, and every verified defect, has a test that carries its id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SCENARIOS = {
    **{f"NL-{number:02}": "commands" for number in range(1, 28)},
    **{f"NA-{number:02}": "artifacts" for number in range(1, 16)},
    **{f"NX-{number:02}": "extra" for number in range(1, 24)},
    **{f"N-defect-{number}": "defects" for number in range(1, 15)},
}


@pytest.mark.parametrize("kind", sorted(set(SCENARIOS.values())))
def test_every_scenario_has_a_test(kind: str) -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    marked = {each for marks in re.findall(r"mark\.case\(([^)]*)\)", text) for each in re.findall(r'"([^"]+)"', marks)}
    assert {scenario for scenario, of in SCENARIOS.items() if of == kind} - marked == set()
