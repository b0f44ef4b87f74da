"""The pump: one stream's trouble is that stream's, and the thread never dies in silence."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from stockade.launcher.stdio import Pump, Stream
from support.waiting import BOUND

ROUNDS = 300


@dataclass
class Memory:
    """A sink that keeps what it gets, or raises what it was given."""

    error: BaseException | None = None
    data: bytearray = field(default_factory=bytearray)

    def write(self, data: memoryview) -> bool:
        if self.error is not None:
            raise self.error
        self.data += data[:1024]
        return True

    def close(self) -> None:
        pass


@dataclass
class Seen:
    """What a stream's owner is told."""

    closed: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list)
    raises: bool = False

    def stream(self, descriptor: int, sink: Memory) -> Stream:
        return Stream(
            "stdout",
            descriptor,
            sink,
            on_over_cap=lambda _: None,
            on_failed=lambda _, error: self.errors.append(error),
            on_progress=self._progress,
            on_closed=lambda _: self.closed.set(),
        )

    def _progress(self, _: Stream) -> None:
        if self.raises:
            raise RuntimeError("event loop is closed")


@pytest.fixture
def pump() -> Iterator[Pump]:
    pump = Pump()
    yield pump
    pump.close()


def passes_bytes(pump: Pump) -> bool:
    """True where a new stream gets from its pipe to its sink."""
    read, write = os.pipe()
    sink, seen = Memory(), Seen()
    pump.add(seen.stream(read, sink))
    os.write(write, b"hello")
    os.close(write)
    return seen.closed.wait(BOUND) and sink.data == b"hello"


def test_a_stream_that_is_abandoned_while_it_is_written_to_stops_no_other(pump: Pump) -> None:
    """The wake and the stream's own event in one batch of epoll: the thread died of a KeyError and no stream moved any more."""
    for _ in range(ROUNDS):
        read, write = os.pipe()
        os.set_blocking(write, False)
        done = threading.Event()

        def feed(write: int = write, done: threading.Event = done) -> None:
            while not done.is_set():
                try:
                    os.write(write, bytes(65536))
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    return

        feeder = threading.Thread(target=feed)
        seen = Seen()
        pump.add(seen.stream(read, Memory()))
        feeder.start()
        pump.abandon(seen.stream(read, Memory()))  # of an earlier life of this number
        stream = pump._streams[read]
        pump.abandon(stream)
        closed = seen.closed.wait(BOUND)
        done.set()
        feeder.join()
        os.close(write)
        assert closed
    assert passes_bytes(pump)


def test_an_owner_that_cannot_be_told_stops_no_other_stream(pump: Pump) -> None:
    read, write = os.pipe()
    sink, seen = Memory(), Seen(raises=True)
    pump.add(seen.stream(read, sink))
    os.write(write, b"x")
    os.close(write)
    assert seen.closed.wait(BOUND)
    assert (sink.data, passes_bytes(pump)) == (b"x", True)


def test_a_thread_that_dies_fails_every_stream_and_takes_no_more(pump: Pump, caplog: pytest.LogCaptureFixture) -> None:
    read, write = os.pipe()
    other_read, other_write = os.pipe()
    seen, other = Seen(), Seen()
    pump.add(other.stream(other_read, Memory()))
    pump.add(seen.stream(read, Memory(SystemExit("a bug"))))
    os.write(write, b"x")
    assert seen.closed.wait(BOUND)
    assert other.closed.wait(BOUND)
    assert [str(error) for error in seen.errors + other.errors] == ["the thread that stores output has died: SystemExit('a bug')"] * 2
    assert "has died" in caplog.text
    late_read, late_write = os.pipe()
    with pytest.raises(OSError, match="make a new executor"):
        pump.add(Seen().stream(late_read, Memory()))
    for descriptor in (write, other_write, late_write):
        os.close(descriptor)
