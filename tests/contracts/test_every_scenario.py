"""Every scenario of the contracts, and every verified defect of N, has a test that carries its id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SCENARIOS = {
    **{f"NL-{number:02}": "commands" for number in range(1, 36)},
    **{f"NA-{number:02}": "artifacts" for number in range(1, 17)},
    **{f"NT-{number:02}": "checklist" for number in range(1, 23)},
    **{f"NX-{number:02}": "extra" for number in range(1, 24)},
    **{f"N-defect-{number}": "defects" for number in range(1, 15)},
    **{f"DS-{number:02}": "seam" for number in range(1, 6)},
    **{f"DE-{number:02}": "bash executor" for number in range(1, 33)},
    **{f"DR-{number:02}": "bash run" for number in range(1, 36)},
    **{f"DT-{number:02}": "bash tools" for number in range(1, 63)},
    **{f"DI-{number:02}": "bash tools" for number in range(1, 4)},
    **{f"J-{number}": "jobs" for number in range(1, 15)},
    **{f"TB-{number:02}": "shells" for number in range(1, 8)},
    # TH-10 and TH-15 are about tools that edit and search files.
    **{f"TH-{number:02}": "shells" for number in range(1, 15) if number != 10},
}
LIVE_MODEL = {"NA-16", "NT-22"}  # a person with a key runs these; the contract lets them be left out


@pytest.mark.parametrize("kind", sorted(set(SCENARIOS.values())))
def test_every_scenario_has_a_test(kind: str) -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    marked = {each for marks in re.findall(r"mark\.case\(([^)]*)\)", text) for each in re.findall(r'"([^"]+)"', marks)}
    wanted = {scenario for scenario, of in SCENARIOS.items() if of == kind} - LIVE_MODEL
    assert wanted - marked == set()
