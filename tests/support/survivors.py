"""Processes that try to outlive their job, and what tells on the host that one of them lives."""

from __future__ import annotations

import glob
from pathlib import Path

NAMES = ("daemon", "deaf", "main")

# A daemon (double fork, setsid, closed streams), one process that is stopped, one that ignores every signal, and their parent; all
# but the stopped one write to a file of their own every 20 ms. Ends by itself after 40 s; the stopped one is then killed.
SURVIVORS = """
import os, signal, sys, time
end = time.monotonic() + 40
def beat(name):
    file = os.open(name + ".beat", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    while time.monotonic() < end:
        os.write(file, b".")
        time.sleep(0.02)
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 64)
    beat("daemon")
stopped = os.fork()
if stopped == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    beat("deaf")
os.waitpid(stopped, os.WUNTRACED)
while not (os.path.exists("daemon.beat") and os.path.exists("deaf.beat")):
    time.sleep(0.005)
print("ready", flush=True)
if os.fork() == 0:
    beat("main")
while time.monotonic() < end:
    time.sleep(0.1)
os.kill(stopped, signal.SIGKILL)
"""


def beats(place: Path) -> list[Path]:
    """The files that the survivors of a job with this workspace write to."""
    return [place / f"{name}.beat" for name in NAMES]


def members(cgroup: str) -> list[int]:
    """The host pids in a cgroup and everything below it."""
    found: list[int] = []
    for path in glob.glob(f"{cgroup}/**/cgroup.procs", recursive=True):
        try:
            with open(path) as procs:
                found += [int(line) for line in procs]
        except OSError:
            continue  # removed meanwhile
    return sorted(found)


__all__ = ["NAMES", "SURVIVORS", "beats", "members"]
