"""Every clause that the source names is explained in the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# U-25, N-K3, D-3, J-12, T-6, 1A.8; "N-V1 to N-V8" names its ends.
CLAUSE = re.compile(r"\b(?:[UDJT]-\d+|N-[A-Z]\d+|1[A-D]\.\d+)\b")
TABLE = re.compile(r"conflict table (\d\.\d)")


def test_every_clause_that_is_named_is_explained_and_no_other() -> None:
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {clause for text in texts for pattern in (CLAUSE, TABLE) for clause in pattern.findall(text)}
    explained = re.findall(r"^\| (\S+) \| \S.{8,} \|$", (ROOT / "tests" / "contracts" / "CLAUSES.md").read_text(), re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert (named - set(explained), set(explained) - named - {"clause"}) == (set(), set())
    assert len(named) > 80
