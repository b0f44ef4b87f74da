"""A range of host ids for each job of a privileged executor.

A slot is 65,536 consecutive ids above 0x70000000, which no distribution hands out to users or containers (systemd's own ranges end
below). Slots of all executors on a host are told apart by byte locks on one file: an open file description lock (fcntl(2),
F_OFD_SETLK) goes when its owner does, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading

from stockade.errors import HostUnfit, TooManyJobs
from stockade.sandbox.namespaces import IdMap

FIRST_ID = 0x70000000
SLOT_SIZE = 65536
SLOTS = 4000
LOCK_DIRECTORY = "/run/stockade"
F_OFD_SETLK = 37


class IdSlots:
    """The slots that this executor holds."""

    def __init__(self, directory: str = LOCK_DIRECTORY) -> None:
        """Opens the lock file. Raises: HostUnfit, where it cannot be made."""
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(f"{directory}/id-slots", flags, 0o600)
        except OSError as error:
            raise HostUnfit(
                f"the lock file for host ids cannot be opened in {directory!r}: {error.strerror}",
                feature="identity.range",
                hint=f"make {directory!r} writable for root",
            ) from None
        self._held: set[int] = set()
        self._turn = threading.Lock()  # our own threads share the file's locks: only `_held` keeps them apart
        self._first = os.getpid() % SLOTS  # so that executors rarely try the same ones

    def take(self) -> int:
        """The number of a free slot. Raises: TooManyJobs, where every slot of this host is taken."""
        # Always the first free one: the fork server keeps what it has made for a slot.
        with self._turn:
            for step in range(SLOTS):
                slot = (self._first + step) % SLOTS
                if slot not in self._held and self._lock(slot, fcntl.F_WRLCK):
                    self._held.add(slot)
                    return slot
        raise TooManyJobs(f"all {SLOTS} ranges of host ids are taken", hint="wait for a job to end")

    def give_back(self, slot: int) -> None:
        """Frees a slot whose job has no process left."""
        with self._turn:
            self._lock(slot, fcntl.F_UNLCK)
            self._held.discard(slot)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self, slot: int, kind: int) -> bool:
        # struct flock: type, whence, start, length, pid (0 for these locks)
        lock = struct.pack("hhxxxxqqixxxx", kind, os.SEEK_SET, slot, 1, 0)
        try:
            fcntl.fcntl(self._file, F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


def range_map(slot: int) -> IdMap:
    """Ids 0 to 65535 inside are the slot's ids outside."""
    return (0, FIRST_ID + slot * SLOT_SIZE, SLOT_SIZE)


def caller_map(inside: int, outside: int) -> IdMap:
    """One id inside is the caller's own outside; nothing else is mapped."""
    return (inside, outside, 1)
