"""Room that is kept back on the file system of the registry, for the records that must be written when it is full."""

from __future__ import annotations

import logging
import os
import secrets
import time
from typing import Final

_log = logging.getLogger(__name__)

SIZE: Final = 256 << 10
PERIOD: Final = 1.0  # seconds between two attempts to make it again


class Reserve:
    """A file of `SIZE` bytes that takes up its room; for one thread."""

    def __init__(self, path: str, period: float = PERIOD) -> None:
        self._path = path
        self._period = period
        self._is_there = False
        self._tried: float | None = None

    def fill(self) -> None:
        """Makes it where it is not there and the file system has room for it twice; where that fails, a later call tries again."""
        now = time.monotonic()
        if self._is_there or (self._tried is not None and now - self._tried < self._period):
            return
        self._tried = now
        try:
            if self._has_size():
                self._is_there = True
                return
            self._unlink()
            found = os.statvfs(os.path.dirname(self._path))
            if found.f_bavail * found.f_frsize < 2 * SIZE:
                return
            made = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                data = secrets.token_bytes(SIZE)  # a file system that compresses would make nothing of zeros
                while data:
                    data = data[os.write(made, data) :]
            except OSError:
                self._unlink()
                raise
            finally:
                os.close(made)
            self._is_there = True
        except OSError as why:
            _log.warning("no room can be kept back in %s: %s", self._path, why.strerror)

    def give_up(self) -> bool:
        """Gives its room back to the file system; True where there was any."""
        try:
            found = self._has_size() or self._is_there
            self._unlink()
        except OSError as why:
            _log.warning("%s cannot be removed: %s", self._path, why.strerror)
            return False
        self._is_there = False
        return found

    def _has_size(self) -> bool:
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return False
        return found.st_blocks * 512 >= SIZE

    def _unlink(self) -> None:
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
