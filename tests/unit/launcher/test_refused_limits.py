"""A cgroup or a limit that the kernel refuses: what is said names the file, the value and the limit to change."""

from __future__ import annotations

from stockade.launcher.sandboxes import limit_hint
from stockade.policy.model import Limits
from stockade.sandbox.limitfiles import LIMIT_OF_FILE, limit_files
from stockade.sandbox.spec import CgroupLimits


def test_every_file_that_carries_a_limit_names_one() -> None:
    every = CgroupLimits(1, 1, 0, True, 1, 1.0, 1, "0", ("8:0 rbps=1",))
    files = {file for file, _ in limit_files(every)} - {"cgroup.max.descendants", "cgroup.max.depth"}
    assert files == set(LIMIT_OF_FILE)
    assert set(LIMIT_OF_FILE.values()) <= set(Limits.model_fields)


def test_the_way_out_is_the_limit_where_there_is_one() -> None:
    assert limit_hint("cpu.max", "Invalid argument, value 'x'") == "Invalid argument, value 'x': change limits.cpus, or leave it out"
    assert limit_hint("cgroup.max.depth", "why") == limit_hint(None, "why") == "why"
