"""The programs of tests/corpus: public bug reports turned into small programs, whose headers say how to drive and judge them."""

from __future__ import annotations

import shutil
from pathlib import Path

CORPUS = Path(__file__).parent.parent / "corpus"


def place(case: str, workspace: Path) -> str:
    """Copies the program of a case into a workspace; returns the argv[0] that starts it there."""
    (program,) = CORPUS.glob(f"{case}-*")
    shutil.copy(program, workspace)
    (workspace / program.name).chmod(0o755)
    return f"./{program.name}"


def verdict(output: bytes) -> str:
    """The program's own judgement: what follows VERDICT on its last such line, with what it observed where it is no PASS."""
    text = output.decode("utf-8", "replace")
    lines = [line.removeprefix("VERDICT ") for line in text.splitlines() if line.startswith("VERDICT ")]
    assert lines, f"no verdict in {text[-2000:]!r}"
    return lines[-1] if not lines[-1].startswith("FAIL") else f"{lines[-1]}\n{text[-4000:]}"


def observed(output: bytes, what: str) -> str:
    """What follows `OBS <what>` in the output."""
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith(f"OBS {what}"):
            return line.removeprefix(f"OBS {what}").strip()
    raise AssertionError(f"nothing about {what!r} in {output[-2000:]!r}")
