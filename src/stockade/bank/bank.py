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

import errno
import os
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from pydantic import ValidationError

from stockade.bank.account import OPEN, TERMS, Account, Terms, exists, read_terms
from stockade.bank.private import (
    Directory,
    create_file,
    create_private_child,
    open_child,
    open_private_child,
    open_private_root,
    write_all,
)
from stockade.bank.retention import Kept
from stockade.bank.spares import Spares
from stockade.bank.streams import Overflow, SinkFailed, Stream, StreamWriter
from stockade.bank.trees import remove_tree
from stockade.errors import InvalidRequest, StateError, UnknownJob
from stockade.ids import is_safe_id

_LOADED: Final = 16
_BLOCK: Final = 512  # The unit of st_blocks, whatever the file system's own is.


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
                opened = create_file(directory, OPEN)
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
        self._spares.make(OPEN, streams)

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
        terms = read_terms(directory, job_id)
        if terms is None:
            raise StateError(
                f"{os.path.join(directory.path, TERMS)!r} is missing or damaged",
                hint="the stream files beside it can still be read by hand",
            )
        streams = {
            name: Stream.load(directory, name, cap=terms.cap, overflow=terms.overflow, still_open=lambda: exists(directory, OPEN))
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
                ended_at = os.stat(TERMS, dir_fd=directory.fd, follow_symlinks=False).st_mtime
            except OSError:
                ended_at = directory.stat().st_mtime
            held = name in wanted or name in self._live or exists(directory, OPEN)
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
