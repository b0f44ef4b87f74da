"""From a job's pipes to its sinks: one thread that reads and stores, so that the event loop never waits for a disk.

Back-pressure is the pipe's own: while a sink is writing, nobody reads. A stream whose sink has refused (cap reached, disk full) is
read on and thrown away, so that the program is never stuck in write(2) while it is being ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from errno import EIO, EPIPE
from typing import ParamSpec, Protocol

P = ParamSpec("P")
_log = logging.getLogger(__name__)

CHUNK = 256 * 1024
PIPE_SIZE = 1024 * 1024
_PACKETS = 256  # read in one go, where a job has set its end of the pipe to packets (O_DIRECT in pipe(2)) and writes byte by byte
_JOIN_BOUND = 30.0


class Sink(Protocol):
    """Where a stream's bytes are kept; called from the pump's thread only."""

    def write(self, data: memoryview) -> bool:
        """Stores the bytes; False where they went over the cap. Raises: an exception where they could not be stored."""

    def close(self) -> None:
        """Ends the stream; everything is on disk afterwards. Raises: an exception where it is not."""


class Stream:
    """One pipe, or the master of a terminal, on its way to its sink. Callbacks run in the pump's thread and must only pass the word on."""

    def __init__(
        self,
        name: str,
        descriptor: int,
        sink: Sink,
        *,
        on_over_cap: Callable[[Stream], None],
        on_failed: Callable[[Stream, Exception], None],
        on_progress: Callable[[Stream], None],
        on_closed: Callable[[Stream], None],
    ) -> None:
        self.name = name
        self.descriptor = descriptor
        self.sink = sink
        self.last_activity = time.monotonic()
        self.discarding = False
        self.on_over_cap = on_over_cap
        self.on_failed = on_failed
        self.on_progress = on_progress
        self.on_closed = on_closed


class Pump:
    """The thread that moves bytes for every stream of an executor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._streams: dict[int, Stream] = {}
        self._abandoned: set[Stream] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._has_died = False
        self._view = memoryview(bytearray(CHUNK))
        self._thread = threading.Thread(target=self._run, name="stockade-pump", daemon=True)
        self._thread.start()

    def add(self, stream: Stream) -> None:
        """Takes over a stream; its descriptor is closed by the pump. Raises: OSError, where the thread has died."""
        os.set_blocking(stream.descriptor, False)
        with contextlib.suppress(OSError):  # over the user's share of pipe memory: the default size does as well
            fcntl.fcntl(stream.descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        with self._lock:
            if self._has_died:
                os.close(stream.descriptor)
                raise OSError(EPIPE, "the thread that stores output has died; make a new executor")
            self._streams[stream.descriptor] = stream
            self._epoll.register(stream.descriptor, select.EPOLLIN)

    def abandon(self, stream: Stream) -> None:
        """Closes a stream that has not ended although its job is gone: somebody outside holds the pipe."""
        with self._lock:
            self._abandoned.add(stream)
        self._wake()

    def close(self) -> None:
        """Ends the thread; streams that are still open are closed with what has been read."""
        self._closing = True
        self._wake()
        self._thread.join(_JOIN_BOUND)
        self._epoll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake already
            os.write(self._wake_write, b"w")

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take_turn()
            for stream in list(self._streams.values()):
                self._finish(stream)
        except BaseException as error:  # noqa: BLE001 - a bug of ours: every job would wait for its streams for ever
            _log.exception("the thread that stores output has died")
            with self._lock:
                self._has_died = True
            reason = RuntimeError(f"the thread that stores output has died: {error!r}")
            for stream in list(self._streams.values()):
                self._fail(stream, reason)

    def _take_turn(self) -> None:
        for descriptor, _ in self._epoll.poll():
            if descriptor == self._wake_read:
                self._on_wake()
            elif (stream := self._streams.get(descriptor)) is not None:  # not abandoned earlier in this very batch
                self._move_or_fail(stream)

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        with self._lock:
            abandoned, self._abandoned = self._abandoned, set()
        for stream in abandoned:
            if self._streams.get(stream.descriptor) is stream:
                self._move_or_fail(stream)
            if self._streams.get(stream.descriptor) is stream:
                self._finish(stream)

    def _move_or_fail(self, stream: Stream) -> None:
        try:
            self._move(stream)
        except Exception as error:  # noqa: BLE001 - this stream's end, not that of the others
            self._fail(stream, error)

    def _move(self, stream: Stream) -> None:
        """What is there, up to a bound, and one write, so that no stream starves another."""
        filled, has_ended = 0, False
        for _ in range(_PACKETS):
            try:
                count = os.readv(stream.descriptor, [self._view[filled:]])
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != EIO:
                    raise
                count = 0  # a terminal that its last process has closed (pty(7)); what it wrote before has been read
            if count == 0:
                has_ended = True
                break
            filled += count
            if count >= select.PIPE_BUF or CHUNK - filled < select.PIPE_BUF:
                break
        if filled:
            self._store(stream, filled)
        if has_ended:
            self._finish(stream)

    def _store(self, stream: Stream, count: int) -> None:
        stream.last_activity = time.monotonic()
        if stream.discarding:
            return
        try:
            if not stream.sink.write(self._view[:count]):
                stream.discarding = True
                _tell(stream.on_over_cap, stream)
        except Exception as error:  # noqa: BLE001 - whatever a sink raises is this stream's end, not the pump's
            stream.discarding = True
            _tell(stream.on_failed, stream, error)
        _tell(stream.on_progress, stream)

    def _fail(self, stream: Stream, error: Exception) -> None:
        _tell(stream.on_failed, stream, error)
        self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        with self._lock:
            if self._streams.pop(stream.descriptor, None) is None:
                return
            with contextlib.suppress(OSError, ValueError):  # closing the descriptor does it as well, but for its copies
                self._epoll.unregister(stream.descriptor)
        os.close(stream.descriptor)
        try:
            stream.sink.close()
        except Exception as error:  # noqa: BLE001 - as above
            _tell(stream.on_failed, stream, error)
        _tell(stream.on_closed, stream)


def _tell(callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    try:
        callback(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the event loop of this job is closed, say; the other streams go on
        _log.exception("nobody could be told of a stream")
