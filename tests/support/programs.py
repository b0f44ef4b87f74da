"""Programs that tests run inside, by name. Each is bounded by itself: it ends, and takes little, even where no wall holds it."""

from __future__ import annotations

PYTHON = "/usr/bin/python3"


def python(source: str, *arguments: str) -> list[str]:
    """The command that runs Python source inside."""
    return [PYTHON, "-c", source, *arguments]


def shell(script: str) -> list[str]:
    """The command that runs a bash script inside."""
    return ["/bin/bash", "-c", script]


TRUE = ["/usr/bin/true"]

# A daemon by double fork and setsid, with closed streams, that says in a file that it lives; ends by itself after 60 s.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for fd in (0, 1, 2):
        os.close(fd)
    end = time.time() + 60
    while time.time() < end:
        open("alive", "w").write(str(time.time()))
        time.sleep(0.05)
    os._exit(0)
while not os.path.exists("alive"):
    time.sleep(0.01)
print("ready", flush=True)
"""

# Ignores every signal that can be ignored and says so; ends by itself after 60 s.
STUBBORN = """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
print("ready", flush=True)
end = time.time() + 60
while time.time() < end: time.sleep(0.1)
"""

__all__ = ["DAEMON", "PYTHON", "STUBBORN", "TRUE", "python", "shell"]
