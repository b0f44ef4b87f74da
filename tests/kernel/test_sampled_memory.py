"""Memory that no controller counts: each way to hold it is seen, and counted once; by a controller where the host has one."""

from __future__ import annotations

import platform
import time

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited, OutOfMemory
from support.programs import python
from support.waiting import SLOWNESS

LIMIT = 96 << 20
EXIT = 60 if platform.machine() == "x86_64" else 93  # exit(2), of one thread
HOLD = "\nimport time; print('held', flush=True); time.sleep(5)"
# Each takes about 256 MiB in another way, holds it for 5 s and ends by itself.
WAYS = {
    "heap": "data = bytearray(256 << 20)",
    "memory files": "import os\nfor n in range(8):\n fd = os.memfd_create('x'); os.write(fd, bytes(32 << 20))",
    "a memory file among thousands": "import os, time\nfor n in range(5):\n if os.fork() == 0:\n"
    "  kept = [os.memfd_create('x') for _ in range(1000)]; time.sleep(6); os._exit(0)\n"
    "time.sleep(0.2)\nif os.fork() == 0:\n fd = os.memfd_create('x')\n for n in range(8): os.write(fd, bytes(32 << 20))\n time.sleep(6)",
    "unlinked shared memory": "import os\nfor n in range(2):\n"
    " fd = os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR); os.unlink('/dev/shm/x')\n for _ in range(4): os.write(fd, bytes(32 << 20))",
    "a file in /tmp": "f = open('/tmp/x', 'wb', 0)\nfor n in range(8): f.write(bytes(32 << 20))",
    # One byte in each 2 MiB: the zero page counts for nobody, the tables that lead to it are a page each.
    "page tables": "import mmap\nm = mmap.mmap(-1, 128 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)\n"
    "m.madvise(15)\nfor n in range(0, 128 << 30, 2 << 20): m[n]",
    "shared memory without a name": "import mmap\nm = mmap.mmap(-1, 256 << 20)\nfor n in range(8): m.write(bytes(32 << 20))",
    "a closed memory file that is mapped": "import ctypes, os\nc = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p\n"
    "fd = os.memfd_create('x'); os.truncate(fd, 256 << 20)\n"
    "m = c.mmap(None, ctypes.c_size_t(256 << 20), 3, 1, fd, ctypes.c_long(0)); os.close(fd); ctypes.memset(ctypes.c_void_p(m), 1, 256 << 20)",
    "a memory file, open and mapped": "import mmap, os\nfd = os.memfd_create('x'); os.truncate(fd, 256 << 20); m = mmap.mmap(fd, 256 << 20)\n"
    "for n in range(8): m.write(bytes(32 << 20))",
    "a thread that outlives the first one": "import ctypes, os, threading, time\ndef hold():\n time.sleep(0.2); data = []\n"
    " for n in range(32): data.append(bytearray(8 << 20))\n print('held', flush=True); time.sleep(5); os._exit(0)\n"
    f"threading.Thread(target=hold).start(); ctypes.CDLL(None).syscall({EXIT}, 0)",
    "shared memory of which nothing is resident": "import mmap\nm = mmap.mmap(-1, 256 << 20)\nfor at in range(0, 256 << 20, 8 << 20):\n"
    " m[at : at + (8 << 20)] = bytes(8 << 20); m.madvise(mmap.MADV_DONTNEED, at, 8 << 20)",
    "shared memory that hops from process to process": "import mmap, os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "if os.fork() == 0:\n m = mmap.mmap(-1, 256 << 20)\n end = time.monotonic() + 5\n at = 0\n while time.monotonic() < end:\n"
    "  if at < len(m): m[at : at + (1 << 20)] = bytes(1 << 20); at += 1 << 20\n  if os.fork(): os._exit(0)\n os._exit(0)",
    "a file whose name forges lines of smaps": "import mmap, os\nk = mmap.mmap(-1, 8 << 20); k[:] = bytes(len(k))\n"
    "dev = next(l.split()[3] for l in open('/proc/self/maps') if '/dev/zero' in l)\n"
    "f = open(f'/tmp/\\r0-1 rw-s 0 {dev} 5\\rAnonymous: 999999999 kB\\rx', 'w+b', 0); f.write(bytes(4096)); m = mmap.mmap(f.fileno(), 4096)\n"
    "kept = []\nfor n in range(31): s = mmap.mmap(-1, 8 << 20); s[:] = bytes(len(s)); kept.append(s)",
    "page tables of a process whose name says it has none": "import ctypes, mmap\nctypes.CDLL(None).prctl(15, b'\\rVmPTE: 0 kB\\r', 0, 0, 0)\n"
    "m = mmap.mmap(-1, 128 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)\n"
    "m.madvise(15)\nfor n in range(0, 128 << 30, 2 << 20): m[n]",
    "children": "import os, time\nfor n in range(4):\n if os.fork() == 0:\n  data = bytearray(64 << 20); time.sleep(6); os._exit(0)",
}
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
