"""Moving bytes from a pipe to a stream in a thread of its own: it reads on only when the bytes before are kept (N-K8,
U-18).
"""

from __future__ import annotations

import enum
import os
import select
from typing import Final

from stockade.bank.streams import SinkFailed, StreamWriter

CHUNK: Final = 1_048_576
# More than a pipe holds: somebody is still writing, and stopping means not waiting for them.
_AFTER_STOP: Final = 4 * CHUNK


class PumpEnd(enum.Enum):
    """Why a pump stopped."""

    END_OF_FILE = "end of file"
    OVERFLOW = "overflow"
    SINK_FAILED = "sink failed"
    STOPPED = "stopped"


def pump(source: int, writer: StreamWriter, *, stop: int | None = None, chunk: int = CHUNK) -> PumpEnd:
    """Move everything from the descriptor `source` to `writer` until it ends, or until `stop` becomes readable.

    What is in the pipe when `stop` is seen is still moved, as far as it is there. The cause of SINK_FAILED is in the
    stream's `failure`.
    """
    poll = select.poll()
    poll.register(source, select.POLLIN)
    if stop is not None:
        poll.register(stop, select.POLLIN)
    buffer = bytearray(chunk)
    view = memoryview(buffer)
    stopped, left = False, _AFTER_STOP
    while True:
        ready = {fd for fd, _ in poll.poll(0 if stopped else None)}
        stopped = stopped or stop in ready
        if source not in ready or left <= 0:
            if stopped:
                return PumpEnd.STOPPED
            continue
        size = os.readv(source, [buffer])
        left -= size if stopped else 0
        if not size:
            return PumpEnd.END_OF_FILE
        try:
            if not writer.write(view[:size]):
                return PumpEnd.OVERFLOW
        except SinkFailed:
            return PumpEnd.SINK_FAILED
