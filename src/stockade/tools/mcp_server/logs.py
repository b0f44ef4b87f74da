"""Log lines of a server go to stderr, and are lost where nobody reads it: strangers can cause them, so they may not hold the server up."""

from __future__ import annotations

import logging
import os
import select
from typing import Final

_LINE: Final = 4_096  # bytes that a pipe takes at once if it says that it takes any (PIPE_BUF, pipe(7))


class Unblocking(logging.Handler):
    """Writes each record to a descriptor at once or, where that would wait, not at all."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """One write of at most 4,096 bytes; the end of a longer record is the part that is kept."""
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
            if any(events & select.POLLOUT for _, events in self._poll.poll(0)):
                os.write(self._descriptor, line[-_LINE:])
        except (OSError, TypeError, ValueError):  # nobody listens any more, or the record does not fit its own text
            pass


def log_to(descriptor: int) -> None:
    """From now on every warning of this process goes there; for a process that is nothing but a server."""
    handler = Unblocking(descriptor)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)


__all__ = ["log_to"]
