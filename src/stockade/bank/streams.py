"""The bytes a job writes: kept up to a cap, counted as they are persisted, never lost silently (N-K3, N-K4, U-16 to
U-18).

A stream is written by one thread and read by any. Nothing is buffered here: back-pressure is the writing thread itself,
which does not read on from the pipe until write(2) has taken what it gave (N-K8).
"""

from __future__ import annotations

import enum
import errno as errno_names
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stockade.bank.index import Mark, TextIndex, boundary_after, first_char_width
from stockade.bank.private import Directory
from stockade.bank.segments import Segments
from stockade.errors import InvalidRequest, StockadeError

KIB: Final = 1024
MIB: Final = 1024 * KIB
# Larger writes cost the kernel up to four times as much a byte (ext4 with large folios, Linux 6.18), smaller ones more calls.
_WRITE: Final = 128 * KIB
_CATCH_UP: Final = 1 * MIB
_WORTH_STORING: Final = 8 * MIB


class Overflow(enum.StrEnum):
    """What happens to a stream that has more to say than its cap."""

    KILL = "kill"
    """The first `cap` bytes are kept and the job is ended."""
    KEEP_TAIL = "keep-tail"
    """The last `cap` bytes are kept and the job goes on."""


class SinkFailed(StockadeError):
    """A stream could not be kept: which, the kernel's errno, and how many bytes had been persisted before (U-17)."""

    code = "sink"

    def __init__(self, stream: str, errno: int, persisted: int, *, call: str = "write") -> None:
        name = errno_names.errorcode.get(errno, str(errno))
        super().__init__(
            f"{stream} sink failed: {call}: {name} ({os.strerror(errno)}); {persisted} bytes were kept",
            hint="free space or restore access where the bank lives, then run the command again",
        )
        self.stream = stream
        self.errno = errno
        self.persisted = persisted
        self.call = call

    @property
    def readable(self) -> bool:
        """True where the bytes persisted before the failure can be relied on; a spill whose close failed cannot."""
        return self.call in ("write", "open")


@dataclass(frozen=True, slots=True)
class Extent:
    """What of a stream can be read, in bytes: from `start` up to `total`, which counts from the stream's beginning."""

    start: int
    total: int
    finished: bool

    @property
    def size(self) -> int:
        """Bytes that are persisted and can be read."""
        return self.total - self.start


class Stream:
    """One stream of a job: its files, its counters and its index."""

    def __init__(self, directory: Directory, name: str, *, cap: int, overflow: Overflow) -> None:
        self.name = name
        self.cap = cap
        self.overflow = overflow
        self.segments = Segments(directory, name)
        self.index = TextIndex()
        self.failure: SinkFailed | None = None
        self._lock = threading.Lock()
        self._indexing = threading.Lock()
        self._total = 0
        self._line_ends = 0
        self._finished = False
        self._written_here = False
        self._still_open: Callable[[], bool] | None = None

    @classmethod
    def create(
        cls, directory: Directory, name: str, *, cap: int, overflow: Overflow, made: int | None = None
    ) -> tuple[Stream, StreamWriter]:
        """A new stream and the one writer that it will ever have; `made` as for `Segments.begin`. Raises: OSError."""
        stream = cls(directory, name, cap=cap, overflow=overflow)
        stream.segments.begin(0, b"", Mark(0, 0, 0), made=made)
        stream._written_here = True
        return stream, StreamWriter(stream)

    @classmethod
    def load(
        cls,
        directory: Directory,
        name: str,
        *,
        cap: int,
        overflow: Overflow = Overflow.KILL,
        still_open: Callable[[], bool] | None = None,
    ) -> Stream:
        """A stream that is on disk already, as after a restart; `still_open` asks whether its writer may be alive.

        Raises: OSError.
        """
        stream = cls(directory, name, cap=cap, overflow=overflow)
        # Asked before the files are looked at: bytes that come in between are then still expected.
        stream._still_open = still_open
        stream._finished = still_open is None or not still_open()
        stream._total = stream.segments.discover()
        stream._restore()
        return stream

    def _restore(self) -> None:
        first, marks = self.segments.start, self.segments.stored_marks()
        # Where the first kept segment has lost its marks, characters and lines are numbered from its beginning.
        begin = next((mark for mark in marks if mark.byte == first), Mark(first, 0, 0))
        self.index = TextIndex(begin)
        self.index.restore([mark for mark in marks if mark.byte > first], self._total)

    def extent(self) -> Extent:
        """What can be read now; consistent in itself."""
        with self._lock:
            tail = self._total - self.cap if self.overflow is Overflow.KEEP_TAIL else 0
            return Extent(max(tail, 0, self.segments.start), self._total, self._finished)

    @property
    def line_ends(self) -> int | None:
        """How many line ends were written; None where the bytes were written by somebody else, and reading them would be needed."""
        return self._line_ends if self._written_here else None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files on this host that hold the stream, oldest first."""
        return self.segments.paths

    def pread(self, offset: int, size: int) -> bytes:
        """The stream's bytes from `offset`, at most `size`; fewer at the end, or where a file is gone."""
        return self.segments.pread(offset, size)

    def boundary_from(self, offset: int) -> int:
        """The first byte at or after `offset` at which a character of the whole stream begins; reads ten bytes."""
        floor = self.segments.start  # Segments begin at a boundary.
        begin = max(offset - 6, floor)
        data = self.pread(begin, offset - begin + 4)
        position = 0 if begin == floor else boundary_after(data)
        while begin + position < offset and position < len(data):
            position += first_char_width(data, position)
        return max(begin + position, offset)

    def refresh(self) -> None:
        """Look at the disk again: for a reader in another process than the writer's. Raises: OSError."""
        if self._written_here or self._finished:
            return
        with self._indexing:
            finished = self._still_open is None or not self._still_open()
            total = self.segments.discover()
            with self._lock:
                self._total, self._finished = total, finished
            if self.index.totals().bytes < self.segments.start or self.index.totals().bytes > total:
                self._restore()

    def indexed(self) -> TextIndex:
        """The index, brought up to the bytes that are there; bytes that the writer has not counted are counted now."""
        counted, target = self.index.totals().bytes, self.extent().total
        begun = counted
        while counted < target:
            # Step by step, because the writer waits for this lock too.
            with self._indexing:
                counted = self.index.totals().bytes
                data = self.pread(counted, min(_CATCH_UP, target - counted)) if counted < target else b""
                self.index.extend(data)
                counted += len(data)
            if not data:
                break
        if self._finished and counted - begun > _WORTH_STORING:
            self.segments.store_marks(self.index.marks())
        return self.index

    def check_cap(self, cap: int) -> None:
        """Raises: InvalidRequest where the cap cannot be changed to `cap` any more."""
        if self.overflow is Overflow.KEEP_TAIL:
            raise InvalidRequest(
                "output: a stream that keeps its tail has files of its cap's size", field="output", hint="leave output as it is"
            )
        if cap < self.extent().total:
            raise InvalidRequest(
                f"output: {self.name} has {self.extent().total} bytes already, more than {cap}",
                field="output",
                hint="give at least that much, or kill the job",
            )

    # For the writer

    def count(self, data: memoryview) -> None:
        """Count `data`, which has just been persisted; the writer's thread."""
        with self._indexing:
            behind = self.index.totals().bytes != self._total
            line_ends = bytes(data).count(b"\n")
            with self._lock:
                self._total += len(data)
                self._line_ends += line_ends
            # Counting what is no text would slow the command and keep the interpreter busy for everybody; the first
            # reader of the text pays instead. A tail cannot wait for one: what it drops must have been counted.
            if self.overflow is Overflow.KEEP_TAIL or not (behind or self.index.costly):
                self.segments.note(self.index.extend(data))

    def finish(self) -> None:
        """There will be no more bytes."""
        with self._lock:
            self._finished = True


class StreamWriter:
    """The writing end of a stream, for one thread."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._segment_start = 0
        self._closed = False
        self._writing = threading.Lock()  # the cap must not change between a look at it and the write
        quarter = min(stream.cap // 4, 64 * MIB)
        self._segment_size = max(quarter, 64 * KIB) if stream.overflow is Overflow.KEEP_TAIL else None

    @property
    def stream(self) -> Stream:
        """The stream that this writes."""
        return self._stream

    def between_writes(self) -> threading.Lock:
        """A lock under which nothing is written."""
        return self._writing

    def write(self, data: bytes | bytearray | memoryview) -> bool:
        """Persist `data` as far as the cap lets; False where it did not all fit, and exactly `cap` bytes are kept
        (N-K3).

        Raises: SinkFailed where the sink fails; what was persisted before stays readable and is what is counted (U-17).
        """
        with self._writing:
            return self._write(memoryview(data).cast("B"))

    def _write(self, view: memoryview) -> bool:
        stream = self._stream
        if stream.failure is not None:
            raise stream.failure
        fits = True
        if stream.overflow is Overflow.KILL:
            room = stream.cap - stream.extent().total
            fits = len(view) <= room
            view = view[:room]
        while view:
            part = view
            if self._segment_size is not None:
                part = view[: self._room_in_segment(self._segment_size)]
            view = view[self._persist(part) :]
        return fits

    def _persist(self, part: memoryview) -> int:
        stream = self._stream
        written, failure = 0, None
        try:
            while written < len(part):
                written += stream.segments.write(part[written : written + _WRITE])
        except OSError as error:
            failure = error
        if stream.segments.vanished():
            raise self._fail(errno_names.ENOENT, call="the file was removed")
        stream.count(part[:written])
        if failure is not None:
            raise self._fail(failure.errno or errno_names.EIO) from failure
        return written

    def _room_in_segment(self, segment_size: int) -> int:
        stream = self._stream
        total = stream.extent().total
        if total - self._segment_start >= segment_size:
            mark = stream.index.mark_now()
            try:
                stream.segments.begin(mark.byte, stream.index.pending, mark)
            except OSError as error:
                raise self._fail(error.errno or errno_names.EIO, call="open") from error
            self._segment_start = total
            stream.index.forget_before(stream.segments.drop_before(total - stream.cap))
        return segment_size - (total - self._segment_start)

    def _fail(self, errno: int, *, call: str = "write") -> SinkFailed:
        stream = self._stream
        if stream.failure is None:
            stream.failure = SinkFailed(stream.name, errno, stream.extent().size, call=call)
        return stream.failure

    def close(self, *, sync: bool = False) -> None:
        """End the stream; with `sync`, only after the disk has it. Closing twice is allowed.

        Raises: SinkFailed where the sink had failed before or fails now; the stream is finished all the same.
        """
        stream = self._stream
        if not self._closed:
            self._closed = True
            try:
                try:
                    if stream.segments.vanished():
                        self._fail(errno_names.ENOENT, call="the file was removed")
                finally:
                    stream.segments.end_writing(sync=sync)
            except OSError as error:
                self._fail(error.errno or errno_names.EIO, call="close")
            finally:
                stream.finish()
        if stream.failure is not None:
            raise stream.failure
