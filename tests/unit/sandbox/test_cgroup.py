"""Control group files are files: what is written and read is tested on plain directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.errors import HostUnfit
from stockade.sandbox import cgroup, delegation
from stockade.sandbox.counters import Usage
from stockade.sandbox.limitfiles import changed_files, limit_files
from stockade.sandbox.spec import CgroupLimits, MiB

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
PRIVATE = "41 31 0:38 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[cgroup.Leaf]:
    """A leaf whose files are those that a test writes to `tmp_path`."""
    parent = os.open(tmp_path.parent, os.O_RDONLY)
    made = cgroup.Leaf(parent, tmp_path.name, os.open(tmp_path, os.O_RDONLY))
    yield made
    made.close()
    os.close(parent)


def test_the_mount_is_found_on_a_hybrid_host() -> None:
    assert delegation.find_mount(HYBRID) == ("/sys/fs/cgroup/unified", "/")


def test_the_root_of_a_mount_is_told() -> None:
    assert delegation.find_mount(PRIVATE) == ("/sys/fs/cgroup", "/docker/abc")


def test_a_host_without_cgroup2_has_no_mount() -> None:
    assert delegation.find_mount(HYBRID.splitlines()[1]) is None


def test_our_own_cgroup_is_that_of_hierarchy_0() -> None:
    assert delegation.own_path("9:name=systemd:/\n4:memory:/x\n0::/user.slice/a\n") == "/user.slice/a"


def test_limits_are_written_in_the_units_of_the_kernel_and_bars_come_first() -> None:
    limits = CgroupLimits(memory_max=64 * MiB, swap_max=0, oom_group=True, pids_max=257, cpu_max=1.5, io_max=("8:0 rbps=1", "8:16 wbps=2"))
    assert limit_files(limits) == [
        ("cgroup.max.descendants", "0"),
        ("cgroup.max.depth", "0"),
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", "257"),
        ("cpu.max", "150000 100000"),
        ("io.max", "8:0 rbps=1"),
        ("io.max", "8:16 wbps=2"),
    ]


def test_a_share_too_small_for_the_kernel_becomes_its_smallest() -> None:
    assert ("cpu.max", "1000 100000") in limit_files(CgroupLimits(cpu_max=0.001))


OLD = CgroupLimits(memory_max=64 * MiB, swap_max=0, pids_max=10, cpu_max=2.0, io_max=("8:0 rbps=10 wbps=20",))
NEW = CgroupLimits(memory_max=32 * MiB, swap_max=0, pids_max=10, cpuset_cpus="0", io_max=("8:0 wbps=5 riops=7",))


def test_what_changes_is_written_with_what_takes_it_back() -> None:
    assert changed_files(OLD, NEW) == [
        ("memory.max", "33554432", "67108864"),
        ("cpu.max", "max 100000", "200000 100000"),
        ("cpuset.cpus", "0", "\n"),
        ("io.max", "8:0 rbps=max", "8:0 rbps=10"),
        ("io.max", "8:0 wbps=5", "8:0 wbps=20"),
        ("io.max", "8:0 riops=7", "8:0 riops=max"),
    ]
    assert changed_files(OLD, OLD) == []


def test_a_change_that_is_refused_half_way_is_taken_back(leaf: cgroup.Leaf, tmp_path: Path) -> None:
    """A directory without the third file stands for a kernel that refuses it."""
    for name in ("memory.max", "cpu.max"):
        (tmp_path / name).write_text("")
    with pytest.raises(FileNotFoundError) as refused:
        leaf.change(OLD, NEW)
    assert refused.value.filename == "cpuset.cpus"
    assert {name: (tmp_path / name).read_text() for name in ("memory.max", "cpu.max")} == {
        "memory.max": "67108864",
        "cpu.max": "200000 100000",
    }


def test_what_the_host_does_not_count_is_none_and_not_zero(leaf: cgroup.Leaf, tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    assert leaf.usage() == Usage(user_cpu=1.0, system_cpu=0.5)


def test_every_counter_is_read(leaf: cgroup.Leaf, tmp_path: Path) -> None:
    files = {
        "cpu.stat": "user_usec 1\nsystem_usec 2\nthrottled_usec 3000000\n",
        "memory.peak": "4096\n",
        "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\n",
        "pids.peak": "9\n",
        "pids.events": "max 4\n",
        "io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2\n",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert leaf.usage() == Usage(1e-6, 2e-6, 3.0, 4096, 9, 11, 22, 3, 2, 4, (("memory.some", 1.5), ("memory.full", 0.25)))


def test_a_leaf_is_populated_while_the_kernel_says_so(leaf: cgroup.Leaf, tmp_path: Path) -> None:
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert leaf.is_populated()
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not leaf.is_populated()


def test_a_refused_limit_names_its_file_and_value(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="value '67108864'") as caught:
            cgroup.write_file(directory, "memory.max", "67108864")
    finally:
        os.close(directory)
    assert caught.value.filename == "memory.max"


def test_a_place_that_cannot_be_written_is_refused_with_the_way_out() -> None:
    with pytest.raises(HostUnfit, match=r"systemd-run --user --scope -p Delegate=yes"):
        cgroup.Tree("/proc", "x")


def test_a_dead_executors_cgroup_is_swept_and_a_living_ones_is_not() -> None:
    base = os.environ["STOCKADE_CGROUP"]
    living = cgroup.Tree(base, "living")
    os.mkdir(f"{base}/stockade-dead")
    os.mkdir(f"{base}/stockade-dead/job-1")
    try:
        assert cgroup.sweep(base) == ["dead"]
        assert os.path.isdir(living.path)
    finally:
        living.close()
    assert not os.path.exists(f"{base}/stockade-dead")
