"""The files of one stream: one that grows, or, where only the tail is kept, a row of which the oldest is dropped.

A segment is named `<stream>.<first byte>.log` and holds the stream's bytes from there on; its marks are in
`<stream>.<first byte>.marks`. It begins at a character boundary, so up to three bytes may also end the segment before
it; readers take the later one.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass

from stockade.bank.index import Mark, pack, unpack
from stockade.bank.private import READ_FLAGS, Directory, create_file, write_all

_NAME = re.compile(r"(?P<stream>[A-Za-z0-9_-]+)\.(?P<start>0|[1-9][0-9]{0,18})\.log\Z")
_MARKS_PER_WRITE = 64


@dataclass(slots=True)
class Segment:
    """One file of a stream; `fd` is open while it is being written."""

    start: int
    log: str
    marks: str
    fd: int | None = None
    marks_fd: int | None = None
    keeps_marks: bool = True


def _log_name(stream: str, start: int) -> str:
    return f"{stream}.{start}.log"


def create_segment(directory: Directory, stream: str, start: int = 0) -> int:
    """Create the empty file of a stream's bytes from `start` on; returns a descriptor to append and read. Raises: OSError."""
    return create_file(directory, _log_name(stream, start), append=True)


class Segments:
    """The files of one stream; one thread writes, any thread reads."""

    def __init__(self, directory: Directory, stream: str) -> None:
        self._directory = directory
        self._stream = stream
        # Held while a descriptor is used by a reader or closed by the writer: a number must not be reused in between.
        self._lock = threading.Lock()
        self._rows: list[Segment] = []
        self._unwritten: list[Mark] = []

    def _segment(self, start: int) -> Segment:
        return Segment(start, _log_name(self._stream, start), f"{self._stream}.{start}.marks")

    # Writing

    def begin(self, start: int, head: bytes, mark: Mark, *, made: int | None = None) -> None:
        """Create the segment that begins at byte `start` with `head`, and close the one before. Raises: OSError.

        Where its file has been made already, `made` is the descriptor of it, now this one's.
        """
        self.end_writing()
        segment = self._segment(start)
        segment.fd = create_segment(self._directory, self._stream, start) if made is None else made
        try:
            write_all(segment.fd, head)
        except OSError:
            os.close(segment.fd)
            os.unlink(segment.log, dir_fd=self._directory.fd)
            raise
        self._unwritten = [mark]
        with self._lock:
            self._rows.append(segment)

    def write(self, data: memoryview) -> int:
        """One write(2) to the newest segment; returns the bytes that it took. Raises: OSError."""
        fd = self._rows[-1].fd
        assert fd is not None, "the stream is closed"
        return os.write(fd, data)

    def note(self, marks: list[Mark]) -> None:
        """Remember `marks` for the sidecar of the newest segment."""
        self._unwritten += marks
        if len(self._unwritten) >= _MARKS_PER_WRITE:
            self._write_marks()

    def _write_marks(self) -> None:
        segment = self._rows[-1]
        # A short stream, as most are, has but the mark of its beginning, which needs no file.
        if self._unwritten and segment.keeps_marks and (segment.marks_fd is not None or segment.start or len(self._unwritten) > 1):
            try:
                if segment.marks_fd is None:
                    segment.marks_fd = create_file(self._directory, segment.marks, append=True)
                write_all(segment.marks_fd, pack(self._unwritten))
            except OSError:
                # A sidecar with a hole would lie; one that is missing or ends early only costs a reader some time.
                segment.keeps_marks = False
                if segment.marks_fd is not None:
                    os.close(segment.marks_fd)
                    segment.marks_fd = None
        self._unwritten = []

    def vanished(self) -> bool:
        """True where the newest segment no longer has a name: whatever is written to it dies with its descriptor."""
        fd = self._rows[-1].fd
        return fd is not None and os.fstat(fd).st_nlink == 0

    def end_writing(self, *, sync: bool = False) -> None:
        """Close the newest segment's descriptors, and write it through to the disk first if asked to.

        Raises: OSError where that fails; the descriptors are closed all the same.
        """
        if not self._rows:
            return
        self._write_marks()
        segment = self._rows[-1]
        with self._lock:
            fd, segment.fd = segment.fd, None
            marks_fd, segment.marks_fd = segment.marks_fd, None
            try:
                if fd is not None:
                    try:
                        if sync:
                            os.fdatasync(fd)
                    finally:
                        os.close(fd)
            finally:
                if marks_fd is not None:
                    os.close(marks_fd)

    def drop_before(self, byte: int) -> int:
        """Remove the segments that hold nothing at or after `byte`; returns where the first kept one begins."""
        with self._lock:
            while len(self._rows) > 1 and self._rows[1].start <= byte:
                segment = self._rows.pop(0)
                for name in (segment.log, segment.marks):
                    try:
                        os.unlink(name, dir_fd=self._directory.fd)
                    except OSError:
                        pass  # It is gone, or retention will get it with the directory.
            return self._rows[0].start

    # Reading

    def discover(self) -> int:
        """Find the files on disk; returns the number of the stream's bytes that they reach to. Raises: OSError."""
        starts: list[int] = []
        for name in os.listdir(self._directory.fd):
            match = _NAME.match(name)
            if match and match["stream"] == self._stream:
                starts.append(int(match["start"]))
        rows = [self._segment(start) for start in sorted(starts)]
        end = 0
        while rows:
            try:
                status = os.stat(rows[-1].log, dir_fd=self._directory.fd, follow_symlinks=False)
            except FileNotFoundError:
                rows.pop()
                continue
            end = rows[-1].start + status.st_size
            break
        with self._lock:
            self._rows = rows
        return end

    @property
    def start(self) -> int:
        """The first byte of the stream that is on disk."""
        with self._lock:
            return self._rows[0].start if self._rows else 0

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the bytes are, oldest first."""
        with self._lock:
            return tuple(os.path.join(self._directory.path, row.log) for row in self._rows)

    def stored_marks(self) -> list[Mark]:
        """All marks that the sidecars hold, in order; what is missing or torn is left out."""
        with self._lock:
            rows = list(self._rows)
        marks: list[Mark] = []
        for row in rows:
            try:
                fd = os.open(row.marks, READ_FLAGS, dir_fd=self._directory.fd)
            except OSError:
                continue
            with open(fd, "rb") as file:
                marks += unpack(file.read())
        return marks

    def store_marks(self, marks: list[Mark]) -> None:
        """Replace the sidecar of a finished stream of one segment by `marks`; a failure leaves none, which is allowed."""
        with self._lock:
            rows = list(self._rows)
        if len(rows) != 1:
            return
        temporary = f"{rows[0].marks}.{threading.get_native_id()}"
        try:
            fd = create_file(self._directory, temporary)
            try:
                write_all(fd, pack(marks))
            finally:
                os.close(fd)
            os.rename(temporary, rows[0].marks, src_dir_fd=self._directory.fd, dst_dir_fd=self._directory.fd)
        except OSError:
            return

    def pread(self, offset: int, size: int) -> bytes:
        """The stream's bytes from `offset`, at most `size`; fewer at the end, or where a file is gone."""
        parts: list[bytes] = []
        with self._lock:
            while size > 0:
                row = next((row for row in reversed(self._rows) if row.start <= offset), None)
                if row is None:
                    break
                later = next((other.start for other in self._rows if other.start > offset), None)
                room = size if later is None else min(size, later - offset)
                data = self._read(row, offset - row.start, room)
                parts.append(data)
                offset += len(data)
                size -= len(data)
                if len(data) < room:
                    break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, row: Segment, offset: int, size: int) -> bytes:
        fd = row.fd
        if fd is None:
            try:
                fd = os.open(row.log, READ_FLAGS, dir_fd=self._directory.fd)
            except OSError:
                return b""
        parts: list[bytes] = []
        try:
            while size > 0 and (part := os.pread(fd, size, offset)):
                parts.append(part)
                offset += len(part)
                size -= len(part)
        except OSError:
            return b"".join(parts)
        finally:
            if row.fd is None:
                os.close(fd)
        return parts[0] if len(parts) == 1 else b"".join(parts)
