"""Benchmarks of what holds a greedy job: how far one gets past its memory, what looking at it costs, what it takes from others."""

from __future__ import annotations

import asyncio
import os
import statistics
import struct
import tempfile
import time

from stockade import Executor, Policy
from stockade.config import Config
from stockade.launcher.outcome import OutOfMemory
from stockade.launcher.sampling import MemorySampler

MIB = 1 << 20
LIMIT = 256 * MIB
CEILING = 3072 * MIB  # what an allocator stops at by itself
ROUNDS = int(os.environ.get("ROUNDS", "10"))
SLOWNESS = float(os.environ.get("STOCKADE_TEST_SLOWNESS", "1"))

# Takes memory as fast as it can by one of several ways, WORKERS at a time, and keeps count in a file that the host reads.
ALLOCATOR = """
import ctypes, mmap, os, struct, sys, threading, time
way, workers, idle, ceiling = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
STEP = 1 << 20
with open("taken", "r+b") as file:
    counts = mmap.mmap(file.fileno(), 4096)
data = bytes(STEP)

def take(number):
    if way in ("pages", "threads", "shared"):
        area = mmap.mmap(-1, ceiling, flags=mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if way == "shared" else mmap.MAP_PRIVATE))
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        step = lambda at: ctypes.memset(start + at, 1, STEP)
    else:
        fd = os.memfd_create("x") if way == "memfd" else os.open("/dev/shm/x%d" % number, os.O_CREAT | os.O_RDWR)
        step = lambda at: os.write(fd, data)
    for at in range(0, ceiling, STEP):
        step(at)
        struct.pack_into("<Q", counts, 8 * number, at + STEP)
    time.sleep(60)

time.sleep(idle)
if way == "threads":
    for number in range(1, workers):
        threading.Thread(target=take, args=(number,)).start()
else:
    for number in range(1, workers):
        if os.fork() == 0:
            take(number)
take(0)
"""
ALLOCATORS = (  # way, how many at once, seconds of doing nothing before
    ("pages", 1, 0.0),
    ("pages", 1, 0.55),
    ("pages", 2, 0.55),
    ("pages", 4, 0.55),
    ("pages", 8, 0.55),
    ("threads", 4, 0.55),
    ("shared", 4, 0.55),
    ("tmpfs", 1, 0.55),
    ("tmpfs", 4, 0.55),
    ("memfd", 1, 0.55),
    ("memfd", 4, 0.55),
)
# A family that shares what it can: COUNT processes that sleep.
FAMILY = "import os, time\nfor n in range({}):\n if os.fork() == 0: break\nprint('up', flush=True)\ntime.sleep(600)"

FIXED_WORK = """
import sys, time
began, used = time.perf_counter(), time.process_time()
total = 0
for number in range(int(sys.argv[1])):
    total += number * number
print(time.perf_counter() - began, time.process_time() - used)
"""
SPIN = "import os\nfor _ in range(2 * os.cpu_count() - 1):\n if os.fork() == 0: break\nwhile True: pass"
FORK = "import os\nwhile True:\n try:\n  if os.fork() == 0: pass\n except OSError: pass"
FILL = """
data = bytes(1 << 20)
while True:
    try:
        with open("/tmp/x", "wb", 0) as file:
            while True:
                file.write(data)
    except OSError:
        pass
"""
FAULT = """
import ctypes, mmap
SIZE = 64 << 20
while True:
    area = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages = (ctypes.c_char * SIZE).from_buffer(area)
    ctypes.memset(pages, 1, SIZE)
    del pages
    area.close()
"""
PYTHON = ["/usr/bin/python3", "-S", "-c"]
GREEDY = {
    "spins on every core": [*PYTHON, SPIN],
    "floods its output": ["/usr/bin/yes"],
    "forks up to its limit": [*PYTHON, FORK],
    "fills its tmpfs": [*PYTHON, FILL],
    "faults memory in and out": [*PYTHON, FAULT],
}


async def bench_overshoot() -> None:
    """How much more than its memory limit a fast allocator gets, as it counted itself; and how soon it is gone."""
    async with Executor(Policy()) as executor:
        mechanism = (await executor.run(["/usr/bin/true"])).isolation["memory"]
    print(f"past a memory limit of 256 MiB, held by {mechanism} ({ROUNDS} rounds each):")
    for way, workers, idle in ALLOCATORS:
        past, seconds, seen = [], [], []
        for _ in range(ROUNDS):
            taken, lasted, peak = await _overrun(way, workers, idle * SLOWNESS)
            past.append((taken - LIMIT) / MIB)
            seconds.append(lasted - idle * SLOWNESS)
            seen.append((peak or 0) / MIB)
        name = f"{way} by {workers}" + (", at once" if idle == 0 else ", after a pause")
        print(
            f"  {name:<28} past the limit: median {statistics.median(past):5.0f} MiB, worst {max(past):5.0f} MiB; "
            f"to the end of the job median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s; told peak {max(seen):.0f} MiB"
        )
    await _cost_of_looking()


async def _overrun(way: str, workers: int, idle: float) -> tuple[int, float, int | None]:
    with tempfile.TemporaryDirectory() as workspace:
        counter = os.open(f"{workspace}/taken", os.O_RDWR | os.O_CREAT)
        os.truncate(counter, 4096)
        limits = {"memory": LIMIT, "shm_size": 4096 * MIB, "wall_time": 60 * SLOWNESS, "grace": 0.1}
        async with Executor(Policy(workspace=workspace, limits=limits)) as executor:
            result = await executor.run([*PYTHON, ALLOCATOR, way, str(workers), str(idle), str(CEILING // workers)])
        assert isinstance(result.outcome, OutOfMemory), (result.outcome, result.stderr)
        taken = sum(struct.unpack(f"<{workers}Q", os.pread(counter, 8 * workers, 0)))
        os.close(counter)
        return taken, result.usage.wall or 0.0, result.outcome.peak


async def _cost_of_looking() -> None:
    print("one look at the memory of a job, where no controller counts it (CPU time; share of one core at ten a second):")
    async with Executor(Policy(limits={"processes": 300, "memory": "2G", "wall_time": 600})) as executor:
        for count in (1, 10, 100):
            job = await executor.start([*PYTHON, FAMILY.format(count - 1)])
            said = b""
            async for piece in job.follow():
                said += piece
                if said.count(b"up") == count:
                    break
            tree = executor._live[job.id].tree
            assert tree is not None
            costs = []
            for limit in (1 << 40, 1):  # far away: resident sizes alone; reached: proportional ones too
                began = time.process_time()
                for _ in range(20):
                    MemorySampler(tree.leaf).look(limit, 0)
                costs.append((time.process_time() - began) / 20)
            await job.kill(grace=0)
            print(
                f"  {count:>3} processes: {costs[0] * 1e3:6.2f} ms ({costs[0] * 10:.1%}) below the limit, "
                f"{costs[1] * 1e3:6.2f} ms where it seems reached"
            )


async def bench_fairness() -> None:
    """What a greedy job takes from the supervisor's event loop and from a sibling that has fixed work to do."""
    policy = Policy(overflow="keep-tail", limits={"output": "4MiB", "wall_time": 600, "grace": 0.1, "processes": 128, "tmp_size": "64M"})
    async with Executor(policy, config=Config(standby=True)) as executor:
        isolation = (await executor.run(["/usr/bin/true"])).isolation
        held = f"{isolation['memory']}, {isolation['processes']}, {await _cpu(executor)}"
        print(f"beside one greedy job on {os.cpu_count()} cores ({held}):")
        work = await _calibrated(executor)
        alone, part, still = await _beside(executor, work)
        print(f"  {'nothing':<26} sibling {alone:5.2f} s         {part:4.0%} of a core  lag p50 {still[0]:5.1f} ms  p99 {still[1]:5.1f} ms")
        for name, argv in GREEDY.items():
            job = await executor.start(argv)
            await asyncio.sleep(0.5 * SLOWNESS)
            took, part, lag = await _beside(executor, work)
            await job.kill(grace=0)
            print(
                f"  {name:<26} sibling {took:5.2f} s  x {took / alone:4.2f} {part:4.0%} of a core"
                f"  lag p50 {lag[0]:5.1f} ms  p99 {lag[1]:5.1f} ms  (x {lag[0] / still[0]:.1f}, x {lag[1] / still[1]:.1f})"
            )


async def _cpu(executor: Executor) -> str:
    job = await executor.start_with_policy(["/usr/bin/true"], executor.policy.replace(limits={"cpu_weight": 100}))
    return (await job.result()).isolation["cpu_weight"]


async def _calibrated(executor: Executor) -> int:
    """As many rounds of the fixed work as take about two seconds alone."""
    tried = 200_000
    seconds, _ = await _work(executor, tried)
    return max(tried, int(tried * 2 / seconds))


async def _work(executor: Executor, rounds: int) -> tuple[float, float]:
    """Seconds that fixed work takes in a job, by the clock on the wall and of CPU."""
    wall, cpu = map(float, (await executor.run([*PYTHON, FIXED_WORK, str(rounds)])).stdout.split())
    return wall, cpu


async def _beside(executor: Executor, rounds: int) -> tuple[float, float, tuple[float, float]]:
    """Median seconds that the sibling's work takes, of three, and the part of a core that it gets, which does not depend on how fast
    the core is meanwhile; the event loop's lag (median, 99th percentile) in ms.
    """
    late: list[float] = []

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - began - 0.005)

    watching = asyncio.create_task(watch())
    took, cpu = sorted([await _work(executor, rounds) for _ in range(3)])[1]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    late.sort()
    return took, cpu / took, (max(late[len(late) // 2], 1e-5) * 1e3, max(late[int(len(late) * 0.99)], 1e-5) * 1e3)
