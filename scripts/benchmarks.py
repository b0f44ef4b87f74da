"""Benchmarks: each measures Stockade and a peer in turn in the same run, and prints the ratio of medians.

Absolute times are of the machine and the moment; the ratios are what to compare. Numbers are printed, never asserted.
"""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

from bench_limits import bench_fairness, bench_overshoot

from stockade import Executor, Policy
from stockade.config import Config

ROUNDS = 200
PAUSE = 0.01  # seconds between two commands: what one leaves to be done must not be paid by the next, whoever's it is
TRUE = ["/usr/bin/true"]
# The same sandbox as far as bwrap can make it: all namespaces, composed root, own proc, dev, tmp and home, captured output.
BWRAP = [
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--ro-bind",
    "/etc/alternatives",
    "/etc/alternatives",
    "--ro-bind",
    "/etc/ld.so.cache",
    "/etc/ld.so.cache",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--tmpfs",
    "/home/job",
    "--chdir",
    "/home/job",
    "--hostname",
    "stockade",
]
BWRAP_MINIMAL = ["bwrap", "--unshare-all", "--ro-bind", "/", "/"]
GIB = 1 << 30


def line(name: str, seconds: list[float]) -> float:
    """Prints the median and the 95th percentile in milliseconds; returns the median."""
    ordered = sorted(seconds)
    median, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
    print(f"  {name:<44} median {median * 1e3:8.2f} ms   p95 {high * 1e3:8.2f} ms   best {ordered[0] * 1e3:8.2f} ms")
    return median


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


async def captured(argv: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    await process.communicate()


def plain_write(argv: list[str], path: str) -> float:
    """Seconds that the command takes to write its output to a new file by itself."""
    with open(path, "wb") as file:
        began = time.perf_counter()
        subprocess.run(argv, stdout=file, check=True)
        seconds = time.perf_counter() - began
    os.unlink(path)
    return seconds


async def bench_run() -> None:
    """`run(["/usr/bin/true"])` on a running executor beside bwrap and a plain subprocess."""
    async with Executor(Policy()) as warm, Executor(Policy(), config=Config(standby=False)) as cold:
        rows: dict[str, Callable[[], Awaitable[object]]] = {
            "stockade, one sandbox built ahead": lambda: warm.run(TRUE),
            "stockade, nothing built ahead": lambda: cold.run(TRUE),
            "bwrap, the same root, captured": lambda: captured([*BWRAP, *TRUE]),
            "bwrap --unshare-all --ro-bind / /, captured": lambda: captured([*BWRAP_MINIMAL, *TRUE]),
            "bwrap --unshare-all, subprocess.run": lambda: asyncio.to_thread(subprocess.run, [*BWRAP_MINIMAL, *TRUE]),
            "no sandbox, subprocess.run": lambda: asyncio.to_thread(subprocess.run, TRUE),
        }
        for action in rows.values():
            await action()
        print(f"one job, start to settled record with its output, in turn and {PAUSE * 1e3:g} ms apart:")
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(ROUNDS):
            for name, action in rows.items():
                times[name].append(await timed(action))
                await asyncio.sleep(PAUSE)
        _ratios(times)
        print("one after the other without a pause, each by itself:")
        _ratios({name: [await timed(action) for _ in range(ROUNDS)] for name, action in rows.items()})


def _ratios(times: dict[str, list[float]]) -> None:
    """Prints each row, and the first one's ratio to each of the others."""
    medians = {name: line(name, seconds) for name, seconds in times.items()}
    first, *others = medians
    for name in others:
        print(f"  ratio to {name:<42} {medians[first] / medians[name]:.2f}")


async def bench_capture() -> None:
    """Capture of 1 GiB beside the same command that writes to a file by itself."""
    print("capture of `head -c 1G /dev/zero`:")
    argv = ["/usr/bin/head", "-c", "1G", "/dev/zero"]
    policy = Policy(limits={"output": "2GiB", "wall_time": 300})
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        async with Executor(policy, config=Config(state_dir=f"{place}/state")) as executor:
            ours, theirs = [], []
            for _ in range(5):
                job = await executor.start(argv)
                ours.append(await timed(job.wait))
                theirs.append(await asyncio.to_thread(plain_write, argv, f"{place}/plain"))
        ratio = line("straight to a file", theirs) / line("captured by stockade", ours)
    print(f"  rate of capture / rate of the plain write: {ratio:.2f}")


async def bench_pages() -> None:
    """A page at the end of a 1 GiB stream beside one at its start."""
    print("a page of 50,000 characters of a 1 GiB stream:")
    policy = Policy(limits={"output": "2GiB", "wall_time": 300})
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        async with Executor(policy, config=Config(state_dir=f"{place}/state")) as executor:
            job = await executor.start(["/bin/sh", "-c", "yes 'one line of some text' | head -c 1G"])
            await job.wait()
            total = (await executor.read(job.id, offset=0, limit=1)).total_chars
            start = [await timed(lambda: executor.read(job.id, offset=0)) for _ in range(50)]
            end = [await timed(lambda: executor.read(job.id, offset=total - 50_000)) for _ in range(50)]
        ratio = line("at the end", end) / line("at the start", start)
    print(f"  end / start: {ratio:.2f}")


async def bench_status() -> None:
    """Status of one job among 10,000 settled ones."""
    count = 10_000
    print(f"status of one job among {count} settled ones:")
    async with Executor(Policy(), config=Config(max_jobs=64)) as executor:
        ids: list[str] = []

        async def some() -> None:
            while len(ids) < count:
                ids.append("")
                ids[ids.index("")] = (await executor.run(TRUE)).id

        await asyncio.gather(*(some() for _ in range(4)))
        line("executor.get", [await timed(functools.partial(executor.get, each)) for each in ids[:: count // 500]])


async def bench_lag() -> None:
    """How late the event loop is while eight jobs flood, and what the executor's memory does."""
    print("event loop while 8 jobs flood (keep-tail, 5 s):")
    policy = Policy(overflow="keep-tail", limits={"output": "4MiB", "wall_time": 60})
    async with Executor(policy) as executor:
        jobs = [await executor.start(["/usr/bin/yes"]) for _ in range(8)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        late, end = [], time.perf_counter() + 5
        while time.perf_counter() < end:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            late.append(time.perf_counter() - began - 0.01)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        written = 0
        for job in jobs:
            written += (await executor.read_bytes(job.id, offset=0, limit=1)).total_bytes
        await executor.kill_all()
    late.sort()
    print(f"  lag median {late[len(late) // 2] * 1e3:.1f} ms, p99 {late[int(len(late) * 0.99)] * 1e3:.1f} ms")
    print(f"  peak memory grew by {grown / 1024:.1f} MiB while {written / GIB:.2f} GiB were written")


BENCHES = {
    "run": bench_run,
    "capture": bench_capture,
    "pages": bench_pages,
    "status": bench_status,
    "lag": bench_lag,
    "overshoot": bench_overshoot,
    "fairness": bench_fairness,
}


def main() -> None:
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        sys.exit(f"unknown benchmark {unknown.pop()!r}; there are {', '.join(BENCHES)}")
    for name in sys.argv[1:] or BENCHES:
        asyncio.run(BENCHES[name]())


if __name__ == "__main__":
    main()
