"""The fork server starts with little, because every job pays for what it has loaded."""

from __future__ import annotations

import json
import subprocess
import sys

from stockade.launcher.spawn import import_paths

HEAVY = {"asyncio", "pydantic", "logging", "dataclasses", "subprocess", "threading", "inspect", "psutil"}


def test_the_fork_server_loads_nothing_heavy() -> None:
    source = (
        f"import sys; sys.path[:0] = {import_paths()!r}; import stockade.sandbox.forkserver, json; print(json.dumps(list(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", source], check=True, capture_output=True, timeout=30).stdout
    assert not HEAVY & set(json.loads(loaded))
