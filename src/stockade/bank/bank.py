"""What jobs leave behind on disk: a private directory for each job, created exclusively, and a file for each of its
streams (U-15).

    <root>/jobs/<job>/account.json       what was agreed: streams, cap, overflow; named `open` while the job may still write
    <root>/jobs/<job>/<stream>.0.log     the bytes, and beside longer ones `.marks`, an index that can be made again
    <root>/artifacts/                    see `artifacts`
    <root>/spares/                       the next job's directory, made ahead, see `spares`
    <root>/trash/                        on its way out: moved here first, so that a reader sees a job whole or not at
    all

Everything here blocks; callers with an event loop come in through a thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stockade.bank.cursors import Cursors
from stockade.bank.private import (
    Directory,
    create_file,
    create_private_child,
    open_child,
    open_private_child,
    open_private_root,
    read_small,
    write_all,
)
from stockade.bank.retention import Kept
from stockade.bank.spares import Spares
from stockade.bank.streams import Overflow, SinkFailed, Stream, StreamWriter
from stockade.bank.trees import remove_tree
from stockade.bank.windows import StreamReader
from stockade.errors import InvalidRequest, StateError, UnknownJob
from stockade.ids import is_safe_id

_TERMS: Final = "account.json"
_OPEN: Final = "open"
_LOADED: Final = 16
_Value = TypeVar("_Value")
_BLOCK: Final = 512  # The unit of st_blocks, whatever the file system's own is.


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
        os.utime(_OPEN, dir_fd=self._directory.fd, follow_symlinks=False)

    def _unmark(self) -> None:
        os.rename(_OPEN, _TERMS, src_dir_fd=self._directory.fd, dst_dir_fd=self._directory.fd)


class Bank:
    """The private directory that holds the output of all jobs; safe in any thread."""

    def __init__(self, root: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        """Open or create the bank at `root`. Raises: StateError where the directory is not private and ours."""
        self.root = open_private_root(os.fspath(root))
        self._jobs = open_private_child(self.root, "jobs")
        self._trash = open_private_child(self.root, "trash")
        self._spares_place = open_private_child(self.root, "spares")
        self._spares = Spares(self._spares_place)
        self._lock = threading.Lock()
        self._live: dict[str, Account] = {}
        self._loaded: OrderedDict[str, Account] = OrderedDict()
        self.clock = clock

    def open_account(
        self,
        job_id: str,
        *,
        streams: tuple[str, ...] = ("stdout", "stderr"),
        cap: int,
        overflow: Overflow = Overflow.KILL,
    ) -> Account:
        """Create the directory and the stream files of a new job; `cap` is in bytes, for each stream.

        Raises: InvalidRequest where an argument is wrong; StateError where the files cannot be made, and then none are
        left.
        """
        for name, value in (("job_id", job_id), *(("streams", stream) for stream in streams)):
            if not is_safe_id(value):
                raise InvalidRequest(f"{value!r} cannot name a file", field=name, hint="use letters, digits, '_' and '-', at most 128")
        try:
            terms = Terms(job_id=job_id, streams=streams, cap=cap, overflow=overflow, created_at=self.clock())
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidRequest(str(first["msg"]), field=str(first["loc"][0])) from error
        text = terms.model_dump_json().encode()
        spare = self._spares.use(self._jobs, job_id, text, streams)
        directory = spare[0] if spare is not None else create_private_child(self._jobs, job_id)
        files = spare[1] if spare is not None else {}
        made: dict[str, tuple[Stream, StreamWriter]] = {}
        try:
            if spare is None:
                opened = create_file(directory, _OPEN)
                try:
                    write_all(opened, text)
                finally:
                    os.close(opened)
            for name in streams:
                made[name] = Stream.create(directory, name, cap=cap, overflow=overflow, made=files.get(name))
        except OSError as error:
            for _, writer in made.values():
                try:
                    writer.close()
                except SinkFailed:
                    pass  # It never had a byte.
            directory.close()  # Nobody else has it, and who keeps this error would keep the descriptor.
            self._remove_tree(job_id)
            raise StateError(
                f"cannot keep output in {directory.path!r}: {error.strerror or error}",
                hint="see to it that the bank's root can be written and has space",
            ) from error
        account = Account(
            directory,
            terms,
            {name: stream for name, (stream, _) in made.items()},
            {name: writer for name, (_, writer) in made.items()},
            on_close=_reporting_to(self),
        )
        with self._lock:
            self._live[job_id] = account
        return account

    def make_spare(self, streams: tuple[str, ...]) -> None:
        """Make the next job's directory ahead, for these streams; never raises."""
        self._spares.make(_OPEN, streams)

    def sweep_spares(self) -> None:
        """Remove the spare of a bank that was not closed; for its one writer, before it writes. Raises: OSError."""
        self._spares.sweep()

    def close(self) -> None:
        """Let go of all directories; for when nobody reads or writes any more. Accounts that are open are closed."""
        self._spares.close()
        for account in list(self._live.values()):
            account.close()
        with self._lock:
            for account in self._loaded.values():
                account.release()
            self._loaded.clear()
            for directory in (self._jobs, self._trash, self._spares_place, self.root):
                directory.close()

    def _settled(self, account: Account) -> None:
        with self._lock:
            self._live.pop(account.job_id, None)
            self._remember(account)

    def _remember(self, account: Account) -> None:
        self._loaded[account.job_id] = account
        self._loaded.move_to_end(account.job_id)
        while len(self._loaded) > _LOADED:
            self._loaded.popitem(last=False)

    def account(self, job_id: str) -> Account:
        """The account of a job, running or ended, in this process or before it. Raises: UnknownJob, StateError."""
        with self._lock:
            account = self._live.get(job_id) or self._loaded.get(job_id)
            if account is None:
                account = self._load(job_id)
            if account.job_id not in self._live and account.finished:
                self._remember(account)
            return account

    def _load(self, job_id: str) -> Account:
        directory = open_child(self._jobs, job_id) if is_safe_id(job_id) else None
        if directory is None:
            raise UnknownJob(
                f"the bank has no output of job {job_id!r}",
                field="job_id",
                hint="it was never started, or its output was purged",
            )
        terms = _read_terms(directory, job_id)
        if terms is None:
            raise StateError(
                f"{os.path.join(directory.path, _TERMS)!r} is missing or damaged",
                hint="the stream files beside it can still be read by hand",
            )
        streams = {
            name: Stream.load(directory, name, cap=terms.cap, overflow=terms.overflow, still_open=lambda: _exists(directory, _OPEN))
            for name in terms.streams
        }
        return Account(directory, terms, streams, {})

    def seal(self, job_id: str) -> None:
        """Declare ended the account of a job that died with its supervisor; then it may be purged. Raises: UnknownJob."""
        self.account(job_id).close()
        with self._lock:
            # The next reader finds the streams finished.
            self._live.pop(job_id, None)
            self._loaded.pop(job_id, None)

    def remove(self, job_id: str) -> None:
        """Remove a job's directory with all that is in it; a job that is not there is no error.

        Raises: InvalidRequest where the job is still writing; OSError where something resists, after the rest is gone.
        """
        if not is_safe_id(job_id):
            return
        with self._lock:
            if job_id in self._live:
                raise InvalidRequest(f"job {job_id!r} is still writing", field="job_id", hint="kill it, or wait for it to end")
            self._loaded.pop(job_id, None)
        self._remove_tree(job_id)

    def _remove_tree(self, job_id: str) -> None:
        name = f"{job_id[:64]}.{secrets.token_hex(6)}"
        try:
            os.rename(job_id, name, src_dir_fd=self._jobs.fd, dst_dir_fd=self._trash.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOSPC):
                raise
            remove_tree(self._jobs.fd, job_id)
            return
        remove_tree(self._trash.fd, name)

    def empty_trash(self) -> None:
        """Remove what an interrupted removal has left. Raises: OSError as `remove`."""
        for name in os.listdir(self._trash.fd):
            remove_tree(self._trash.fd, name)

    def jobs(self, *, pinned: Iterable[str] = ()) -> tuple[Kept, ...]:
        """All jobs that have a directory; pinned are those named and those that are still open."""
        wanted = set(pinned)
        kept: list[Kept] = []
        for name in os.listdir(self._jobs.fd):
            directory = open_child(self._jobs, name)
            if directory is None:
                continue
            try:
                ended_at = os.stat(_TERMS, dir_fd=directory.fd, follow_symlinks=False).st_mtime
            except OSError:
                ended_at = directory.stat().st_mtime
            held = name in wanted or name in self._live or _exists(directory, _OPEN)
            kept.append(Kept(name, "job", ended_at, disk_use(directory), held))
        return tuple(kept)


def _reporting_to(bank: Bank) -> Callable[[Account], None]:
    """What an account does when it closes, without keeping the bank alive: the bank already keeps the account."""
    owner = weakref.ref(bank)

    def settled(account: Account) -> None:
        kept = owner()
        if kept is not None:
            kept._settled(account)  # noqa: SLF001  # the bank's own function, only written outside of it

    return settled


def _read_terms(directory: Directory, job_id: str) -> Terms | None:
    # In this order: when it is closed meanwhile, the second name is there.
    data = read_small(directory, _OPEN, 65_536) or read_small(directory, _TERMS, 65_536)
    try:
        terms = Terms.model_validate(json.loads(data)) if data is not None else None
    except ValueError:
        return None
    if terms is None or terms.job_id != job_id or not all(map(is_safe_id, terms.streams)):
        return None
    return terms


def _exists(directory: Directory, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def disk_use(directory: Directory) -> int:
    """Bytes on disk of the files directly in `directory`; holes cost nothing."""
    size = 0
    try:
        with os.scandir(directory.fd) as entries:
            for entry in entries:
                try:
                    size += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                except FileNotFoundError:
                    continue
    except OSError:
        return size
    return size
