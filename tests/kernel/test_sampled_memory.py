"""Memory that no controller counts: each way to hold it is seen, and counted once; by a controller where the host has one."""

from __future__ import annotations

import time

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited, OutOfMemory
from support.hungry import HOLD, WAYS
from support.programs import python
from support.waiting import SLOWNESS

LIMIT = 96 << 20
SYSTEM_V = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(1, ctypes.c_size_t(256 << 20), 0o1600), os.strerror(ctypes.get_errno()))
print(libc.shmget(2, ctypes.c_size_t(1 << 20), 0o1600) >= 0)
"""


def policy(memory: int) -> Policy:
    return Policy(limits={"memory": memory, "tmp_size": "512M", "shm_size": "512M", "wall_time": 30})


@pytest.mark.parametrize("way", WAYS)
async def test_memory_over_the_limit_ends_the_job_however_it_is_held(way: str) -> None:
    async with Executor(policy(LIMIT)) as executor:
        result = await executor.run(python(WAYS[way] + HOLD))
    outcome = result.outcome
    assert isinstance(outcome, OutOfMemory)
    sampled = result.isolation["memory"] == "memory.sampled"  # the kernel's own controller lets nobody get beyond the limit
    assert (outcome.limit, (outcome.peak or 0) > (LIMIT if sampled else LIMIT // 2)) == (LIMIT, True)


@pytest.mark.parametrize("way", WAYS)
async def test_the_same_program_within_its_limit_ends_by_itself(way: str) -> None:
    async with Executor(policy(640 << 20)) as executor:
        result = await executor.run(python(WAYS[way] + HOLD.replace("5", "0.3")))
    assert (result.outcome, result.stdout) == (Exited(0), b"held\n")


async def test_a_job_with_more_descriptors_than_can_be_looked_at_is_ended() -> None:
    """What they hold is not known, and must not be taken for nothing. Control: with half as many it ends by itself."""
    program = """
import os, sys, time
for n in range(int(sys.argv[1])):
    if os.fork() == 0:
        kept = [os.dup(1) for _ in range(4000)]
        time.sleep(5)
        os._exit(0)
print('held', flush=True)
time.sleep(2)
"""
    async with Executor(policy(LIMIT).replace(limits={"open_files": 4096})) as executor:
        over, within = [await executor.run(python(program, number)) for number in ("20", "10")]
    assert within.outcome == Exited(0)
    if over.isolation["memory"] == "memory.cgroup":  # the kernel knows
        assert over.outcome == Exited(0)
        return
    assert isinstance(over.outcome, OutOfMemory)
    assert over.record.notes == ("more than 65536 descriptors were open, and what they hold could not be counted",)


@pytest.mark.parametrize("cause", ["output", "wall_time"])
async def test_memory_is_bounded_while_the_job_is_being_ended(cause: str) -> None:
    """It ignores the first signal and takes what it likes; nothing was looked at any more, for all of its grace.

    Control: with memory enough, it has all of its grace.
    """
    program = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, bytes(8 << 20))
time.sleep(1)
data = bytearray(256 << 20)
print("held", flush=True)
time.sleep(20)
"""
    limits = {"output": 16 << 20, "wall_time": 30, "grace": 4, "cpu_time": 60} | {
        "output": {"output": 1 << 20},
        "wall_time": {"wall_time": 0.5},
    }[cause]
    began = time.monotonic()
    async with Executor(policy(LIMIT).replace(limits=limits)) as executor:
        tight = await (await executor.start(python(program))).result()
    took, began = time.monotonic() - began, time.monotonic()
    async with Executor(policy(1 << 30).replace(limits=limits)) as executor:
        roomy = await (await executor.start(python(program))).result()
    expected = "output_limited" if cause == "output" else "timed_out"
    assert (tight.outcome.kind, roomy.outcome.kind) == (expected, expected)
    assert took < 3.5 * SLOWNESS
    assert time.monotonic() - began > 4
    if tight.isolation["memory"] == "memory.sampled":
        assert [note for note in tight.record.notes if "out of memory, 96 MiB limit" in note] == list(tight.record.notes) != []


async def test_pages_that_processes_share_count_once() -> None:
    share = "import mmap, os, time\nm = mmap.mmap(-1, 48 << 20); m.write(bytes(48 << 20))\nfor n in range(6):\n if os.fork() == 0:\n"
    share += "  sum(m[i] for i in range(0, 48 << 20, 4096)); time.sleep(1); os._exit(0)\nfor n in range(6): os.wait()\nprint('done')"
    async with Executor(policy(LIMIT)) as executor:
        result = await executor.run(python(share))
    assert (result.outcome, result.stdout) == (Exited(0), b"done\n")


async def test_a_memory_file_that_is_mapped_and_open_counts_once() -> None:
    share = "import mmap, os\nfd = os.memfd_create('x'); os.truncate(fd, 48 << 20); m = mmap.mmap(fd, 48 << 20); m.write(bytes(48 << 20))\n"
    share += (
        "f = os.open('/tmp/y', os.O_CREAT | os.O_RDWR); os.truncate(f, 24 << 20); n = mmap.mmap(f, 24 << 20); n.write(bytes(24 << 20))\n"
    )
    share += "import time; time.sleep(1); print('done')"
    async with Executor(policy(LIMIT)) as executor:
        result = await executor.run(python(share))
    assert (result.outcome, result.stdout) == (Exited(0), b"done\n")


async def test_system_v_segments_are_bounded_by_the_memory_limit() -> None:
    async with Executor(policy(LIMIT)) as executor:
        result = await executor.run(python(SYSTEM_V))
    assert result.stdout == b"-1 No space left on device\nTrue\n"


async def test_semaphores_and_message_queues_are_bounded() -> None:
    """They are kernel memory of no process: sixty arrays of semaphores took 120 MiB, and 32000 were allowed.

    Control: as many as programs use can be had.
    """
    script = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def until_refused(function):
    count = 0
    while count < 1000 and function() >= 0:
        count += 1
    return count, errno.errorcode.get(ctypes.get_errno())
print(*until_refused(lambda: libc.semget(0, 200, 0o1600)), *until_refused(lambda: libc.msgget(0, 0o1600)))
"""
    async with Executor(policy(LIMIT)) as executor:
        result = await executor.run(python(script))
    assert result.stdout == b"160 ENOSPC 256 ENOSPC\n"
