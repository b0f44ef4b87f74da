"""The account of one job: what was agreed for it, and its streams, to write while it runs and to read for as long as they are kept."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from stockade.bank.cursors import Cursors
from stockade.bank.private import Directory, read_small
from stockade.bank.streams import Overflow, SinkFailed, Stream, StreamWriter
from stockade.bank.windows import StreamReader
from stockade.errors import InvalidRequest
from stockade.ids import is_safe_id

TERMS: Final = "account.json"  # the terms of an account that has been closed
OPEN: Final = "open"  # the same, while the job may still write
_Value = TypeVar("_Value")


class Terms(BaseModel):
    """What an account was opened with; `cap` is in bytes, for each stream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    job_id: str
    streams: Annotated[tuple[str, ...], Field(min_length=1, max_length=8)]
    cap: Annotated[int, Field(ge=1, lt=2**63)]
    overflow: Overflow
    created_at: float


class Account:
    """The streams of one job: written while it runs, read for as long as they are kept."""

    def __init__(
        self,
        directory: Directory,
        terms: Terms,
        streams: dict[str, Stream],
        writers: dict[str, StreamWriter],
        on_close: Callable[[Account], None] | None = None,
    ) -> None:
        self._directory = directory
        self._streams = streams
        self._writers = writers
        self._readers = {name: StreamReader(stream) for name, stream in streams.items()}
        self._cursors = {name: Cursors(stream) for name, stream in streams.items()}
        self._on_close = on_close
        self._lock = threading.Lock()
        self.terms = terms

    @property
    def job_id(self) -> str:
        """The job that this is the account of."""
        return self.terms.job_id

    @property
    def path(self) -> str:
        """The job's directory on this host."""
        return self._directory.path

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the streams; with one pipe for both outputs there is one, in order of arrival."""
        return self.terms.streams

    def _named(self, table: dict[str, _Value], stream: str) -> _Value:
        if stream not in table:
            raise InvalidRequest(f"job {self.job_id!r} has no stream {stream!r}", field="stream", hint=f"use one of {', '.join(table)}")
        return table[stream]

    def writer(self, stream: str) -> StreamWriter:
        """The writing end of `stream`, for one thread. Raises: InvalidRequest where it has none, as after a restart."""
        return self._named(self._writers, stream)

    def reader(self, stream: str) -> StreamReader:
        """Windows on `stream`, for any thread. Raises: InvalidRequest where there is no such stream."""
        return self._named(self._readers, stream)

    def cursors(self, stream: str) -> Cursors:
        """The incremental readers of `stream`. Raises: InvalidRequest where there is no such stream."""
        return self._named(self._cursors, stream)

    @property
    def finished(self) -> bool:
        """True where no stream will get another byte."""
        return all(stream.extent().finished for stream in self._streams.values())

    def sizes(self) -> dict[str, int]:
        """Persisted bytes that can be read, for each stream (U-16)."""
        return {name: reader.size for name, reader in self._readers.items()}

    def written(self) -> dict[str, int]:
        """Bytes that were persisted, for each stream; of a tail also those that are gone by now."""
        return {name: stream.extent().total for name, stream in self._streams.items()}

    def line_ends(self) -> dict[str, int]:
        """How many of those bytes are line ends, for each stream that was written here."""
        return {name: count for name, stream in self._streams.items() if (count := stream.line_ends) is not None}

    def set_cap(self, cap: int) -> None:
        """Changes the cap of every stream while it is written: of all of them or of none. Blocks while a write is under way.

        Raises: InvalidRequest where a stream has more than that already, or keeps its tail.
        """
        with contextlib.ExitStack() as held:
            for writer in self._writers.values():
                held.enter_context(writer.between_writes())
            for stream in self._streams.values():
                stream.check_cap(cap)
            for stream in self._streams.values():
                stream.cap = cap

    def close(self, *, sync: bool = False) -> tuple[SinkFailed, ...]:
        """Finish all streams and report those whose sink failed; never raises, and may be called again.

        The writers' threads must have ended. Reading stays possible.
        """
        with self._lock:
            failures: list[SinkFailed] = []
            for writer in self._writers.values():
                try:
                    writer.close(sync=sync)
                except SinkFailed as failure:
                    failures.append(failure)
            # Neither needs space, so an account can be closed on a full disk: the time of the file is when the job ended.
            for step in (self._stamp, self._unmark):
                try:
                    step()
                except OSError:
                    continue
            on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self)
        return tuple(failures)

    def release(self) -> None:
        """Let go of the directory at once; nothing can be read through this account afterwards."""
        self._directory.close()

    def _stamp(self) -> None:
        os.utime(OPEN, dir_fd=self._directory.fd, follow_symlinks=False)

    def _unmark(self) -> None:
        os.rename(OPEN, TERMS, src_dir_fd=self._directory.fd, dst_dir_fd=self._directory.fd)


def read_terms(directory: Directory, job_id: str) -> Terms | None:
    """The terms that a job's directory holds; None where they are missing, damaged or another's."""
    # In this order: when it is closed meanwhile, the second name is there.
    data = read_small(directory, OPEN, 65_536) or read_small(directory, TERMS, 65_536)
    try:
        terms = Terms.model_validate(json.loads(data)) if data is not None else None
    except ValueError:
        return None
    if terms is None or terms.job_id != job_id or not all(map(is_safe_id, terms.streams)):
        return None
    return terms


def exists(directory: Directory, name: str) -> bool:
    """True where there is an entry of that name, a link included."""
    try:
        os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    except OSError:
        return False
    return True
