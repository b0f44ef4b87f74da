"""Programs that take what they can get of one thing, up to a bound of their own, and say how far they came."""

from __future__ import annotations

import platform

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

EXIT = 60 if platform.machine() == "x86_64" else 93  # exit(2), of one thread
HOLD = "\nimport time; print('held', flush=True); time.sleep(5)"
# Ways to hold memory: each takes about 256 MiB in another way, holds it for 5 s and ends by itself.
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

__all__ = ["ALLOCATE", "FILL", "FORK", "HOLD", "WAYS"]
