"""What a record says that a job used and reached: numbers of those who counted, None where nobody did."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor, Policy
from stockade.jobs.reached import Reached
from stockade.launcher.outcome import Exited, TimedOut
from support.hungry import FORK
from support.programs import TRUE, python, shell

MIB = 1 << 20
PLACES = ("/tmp", "/home/job", "/dev/shm")
EMPTY = dict.fromkeys(PLACES, 0)
FILL = "head -c 64M /dev/zero >{}/x 2>/dev/null"


def build_policy(**limits: Any) -> Policy:
    return Policy(limits={"grace": 0.2, "wall_time": 30, **limits})


async def test_a_job_that_does_nothing_has_used_nothing_but_what_it_takes_to_start() -> None:
    async with Executor(build_policy()) as executor:
        usage = (await executor.run(TRUE)).usage
    assert usage.wall is not None
    assert 0 < usage.wall < 30
    assert (usage.output_bytes, usage.output_lines) == ({"stdout": 0, "stderr": 0},) * 2
    assert (usage.tmpfs_bytes, usage.tmpfs_inodes) == (EMPTY, dict.fromkeys(PLACES, 1))  # each place itself
    assert usage.frozen == 0


async def test_what_no_controller_counts_is_none_and_what_one_counts_is_a_number() -> None:
    async with Executor(build_policy()) as executor:
        result = await executor.run(TRUE)
        assert executor._engine is not None
        controllers = executor._engine.tree.controllers
    usage = result.usage
    counted = {
        "memory": (usage.peak_memory, usage.oom_kills),
        "pids": (usage.peak_processes, usage.refused_forks),
        "io": (usage.io_read, usage.io_written),
        "cpu": (usage.throttled,),
    }
    assert {controller: {value is not None for value in values} for controller, values in counted.items()} == {
        controller: {controller in controllers} for controller in counted
    }
    has_pressure = os.path.exists("/proc/pressure/cpu")
    assert set(usage.pressure or ()) >= ({"cpu.some", "memory.some", "memory.full", "io.some", "io.full"} if has_pressure else set())


async def test_output_is_counted_in_bytes_and_lines_by_stream() -> None:
    async with Executor(build_policy()) as executor:
        result = await executor.run(shell("printf 'a\\nb\\nc'; printf '\\0\\377\\n' >&2; for ((i = 0; i < 5000; i++)); do echo; done"))
        merged = await (await executor.start_with_policy(shell("echo a; echo b >&2"), Policy(merge_streams=True))).result()
        tail_policy = Policy(overflow="keep-tail", limits={"output": 65536})
        tail = await (await executor.start_with_policy(shell("yes 12345 | head -n 100000"), tail_policy)).result()
    assert result.usage.output_bytes == {"stdout": 5005, "stderr": 3}
    assert result.usage.output_lines == {"stdout": 5002, "stderr": 1}
    assert (merged.usage.output_bytes, merged.usage.output_lines) == ({"output": 4}, {"output": 2})
    assert tail.usage.output_bytes == {"stdout": 600_000, "stderr": 0}  # of which the last are kept
    assert tail.usage.output_lines == {"stdout": 100_000, "stderr": 0}
    assert tail.record.stdout_bytes <= 65536


@pytest.mark.parametrize("ending", ["exit 0", "kill -KILL $$", "sleep 60"])
async def test_what_its_own_places_held_is_known_however_it_ended(ending: str) -> None:
    script = f"head -c 1M /dev/zero >/tmp/a; touch /home/job/1 /home/job/2; head -c 5000 /dev/zero >/dev/shm/b; echo ready; {ending}"
    async with Executor(build_policy(wall_time=2 if "sleep" in ending else 30)) as executor:
        usage = (await executor.run(shell(script))).usage
    assert usage.tmpfs_bytes == {"/tmp": MIB, "/home/job": 0, "/dev/shm": 8192}
    assert usage.tmpfs_inodes == {"/tmp": 2, "/home/job": 3, "/dev/shm": 2}


async def test_a_place_of_the_host_is_not_taken_for_one_of_the_jobs_own() -> None:
    async with Executor(build_policy().replace(rw=("/var/tmp",))) as executor:
        usage = (await executor.run(TRUE)).usage
    assert usage.tmpfs_bytes == EMPTY


@pytest.mark.parametrize(
    ("place", "limit", "size", "text"),
    [("/tmp", "tmp_size", 8 * MIB, "8 MiB"), ("/home/job", "home_size", 4 * MIB, "4 MiB"), ("/dev/shm", "shm_size", 64 * 1024, "64 KiB")],
)
async def test_a_full_place_is_said_so_with_its_size(place: str, limit: Any, size: int, text: str) -> None:
    async with Executor(build_policy(**{limit: size})) as executor:
        result = await executor.run(shell(FILL.format(place)))
        roomy = await executor.run(shell(f"head -c 1000 /dev/zero >{place}/x"))
    assert result.outcome == Exited(1)
    assert result.record.reached == (Reached(limit, size, place=place),)
    assert result.record.notes == (f"{place} was full: {text}",)
    assert (roomy.record.reached, roomy.record.notes) == ((), ())


async def test_a_place_without_inodes_is_said_so() -> None:
    async with Executor(build_policy(tmp_inodes=32)) as executor:
        result = await executor.run(shell("for ((i = 0; i < 100; i++)); do : >/tmp/$i || exit 3; done 2>/dev/null"))
    assert (result.outcome.exit_code != 0, result.record.notes) == (True, ("/tmp was full: 32 inodes",))
    assert (result.usage.tmpfs_inodes or {})["/tmp"] == 32


async def test_a_place_that_is_emptied_before_the_end_was_full_where_it_was_looked_at() -> None:
    """With a limit that the executor watches, places are looked at ten times a second."""
    async with Executor(build_policy(cpu_time=20, tmp_size=4 * MIB)) as executor:
        result = await executor.run(shell(f"{FILL.format('/tmp')}; sleep 1; rm /tmp/x"))
    assert result.record.notes == ("/tmp was full: 4 MiB",)
    assert (result.usage.tmpfs_bytes or {})["/tmp"] == 0


async def test_the_limit_of_processes_that_was_reached_is_told_with_what_is_known() -> None:
    async with Executor(build_policy(processes=20)) as executor:
        result = await executor.run(python(FORK.replace("for pid in children", "time.sleep(1)\nfor pid in children")))
        few = await executor.run(shell("sleep 0.5 & wait"))
    assert result.outcome == Exited(0)
    counted = result.isolation["processes"] == "processes.cgroup"
    (reached,) = result.record.reached
    assert (reached.limit, reached.bound, reached.count) == ("processes", 20, 1 if counted else None)
    assert ("1 fork refused" if counted else "is not known here") in result.record.notes[0]
    assert few.record.reached == ()


async def test_a_signal_that_means_a_limit_says_so_only_where_that_limit_is_set(workspace: Path) -> None:
    async with Executor(build_policy(file_size=MIB).replace(workspace=str(workspace))) as executor:
        limited = await executor.run(["/usr/bin/dd", "if=/dev/zero", "of=big", "bs=1M", "count=2", "status=none"])
        free = await executor.start_with_policy(shell("kill -XFSZ $$"), Policy())
        unlimited = await free.result()
    assert limited.record.sentence() == "killed by SIGXFSZ: a file grew past the file size limit, 1 MiB"
    assert unlimited.record.sentence() == "killed by SIGXFSZ"
    assert limited.signal == unlimited.signal == signal.SIGXFSZ


async def test_usage_survives_a_restart_and_is_plain_json(tmp_path: Path) -> None:
    from stockade.config import Config
    from stockade.tools.cli.render import as_json, record_fields

    config = Config(state_dir=tmp_path / "state")
    async with Executor(build_policy(tmp_size=MIB), config=config) as executor:
        record = (await executor.run(shell(f"echo x; {FILL.format('/tmp')}"))).record
    async with Executor(build_policy(), config=config) as executor:
        again = await executor.get(record.id)
    assert (again.usage, again.reached, again.notes) == (record.usage, record.reached, record.notes)
    fields = json.loads(as_json(record_fields(again)))
    assert fields["usage"]["output_lines"] == {"stdout": 1, "stderr": 0}
    assert fields["reached"] == [{"limit": "tmp_size", "bound": MIB, "count": None, "peak": None, "place": "/tmp"}]


async def test_cpu_and_idle_time_are_told_with_their_numbers() -> None:
    async with Executor(build_policy(cpu_time=0.5)) as executor:
        spun = await executor.run(shell("while :; do :; done"))
    async with Executor(build_policy(idle_time=0.5)) as executor:
        idle = await executor.run(shell("echo once; sleep 30"))
    assert (spun.outcome.kind, spun.record.sentence()) == ("timed_out", "timed out after 0.5 s of CPU time")
    assert (isinstance(idle.outcome, TimedOut), idle.record.sentence()) == (True, "timed out after 0.5 s without output")
    assert (spun.usage.user or 0) + (spun.usage.system or 0) >= 0.5
