"""Programs that take what they can get of one thing, up to a bound of their own, and say how far they came."""

from __future__ import annotations

# Takes 1 GiB in steps, touched, and holds it for a while.
ALLOCATE = "import time\nkeep = [bytearray(16 << 20) for _ in range(64)]\nprint(len(keep), flush=True)\ntime.sleep(20)"
# Forks children that wait until it is refused, 400 times at most; prints how many there were and why there were no more.
FORK = """
import errno, os, signal, time
children = []
why = None
while len(children) < 400:
    try: pid = os.fork()
    except OSError as error:
        why = errno.errorcode[error.errno]
        break
    if pid == 0:
        time.sleep(20)
        os._exit(0)
    children.append(pid)
print(len(children), why, flush=True)
for pid in children: os.kill(pid, signal.SIGKILL)
"""
# Fills a directory with bytes and another with files, 256 MiB and 20,000 files at most; prints what stopped it, and where.
FILL = """
import errno, json, os, sys
def bytes_of(place):
    block, count = bytes(1 << 20), 0
    file = os.open(place + "/big", os.O_CREAT | os.O_WRONLY)
    try:
        while count < 256 << 20: count += os.write(file, block)
    except OSError as error: return [count, errno.errorcode[error.errno]]
    finally:
        os.close(file)
        os.unlink(place + "/big")
    return [count, None]
def files_of(place):
    count = 0
    try:
        while count < 20000:
            os.close(os.open(f"{place}/{count}", os.O_CREAT | os.O_WRONLY))
            count += 1
    except OSError as error: return [count, errno.errorcode[error.errno]]
    finally:
        for number in range(count): os.unlink(f"{place}/{number}")
    return [count, None]
print(json.dumps({place: [bytes_of(place), files_of(place)] for place in sys.argv[1:]}))
"""

__all__ = ["ALLOCATE", "FILL", "FORK"]
