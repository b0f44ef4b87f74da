"""What can be asked of a state directory from outside of its executor: `ps`, `show`, `logs`, `kill` and `purge`.

The first three only read, while an executor runs there and after it died; `kill` asks the one that runs, `purge` needs that none does.
"""

from __future__ import annotations

import codecs
import contextlib
import re
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stockade.bank.artifacts import ArtifactStore
from stockade.bank.bank import Bank
from stockade.bank.retention import Removal, Retention
from stockade.bank.windows import StreamReader
from stockade.config import from_environment
from stockade.errors import InvalidRequest, StateError, UnknownJob
from stockade.jobs import purging
from stockade.jobs.control import ask_to_kill
from stockade.jobs.directory import Layout, Owner, StateDirectory, living_owner, look
from stockade.jobs.reader import StoreReader
from stockade.jobs.records import JobRecord
from stockade.jobs.store import Store
from stockade.tools.cli.outlet import write_all
from stockade.tools.cli.render import printable

PERIOD: Final = 0.1  # seconds between two looks of `logs -f`
_LOOKS: Final = 5
_CONTROLS: Final = re.compile(r"\r(?!\n)|[^\n\t\r -\x7e\xa0-\U0010ffff]")


def find_layout(state_dir: str | None) -> Layout:
    """The state directory that is meant. Raises: InvalidRequest where none is named, StateError where there is none."""
    found = from_environment().state_dir if state_dir is None else state_dir
    if found is None:
        raise InvalidRequest("no state directory is named", field="state_dir", hint="give --state-dir DIR, or set STOCKADE_STATE_DIR")
    return look(found)


@dataclass(frozen=True, slots=True)
class Seen:
    """Records and the executor that lived while they were read."""

    records: tuple[JobRecord, ...]
    owner: Owner | None

    def is_alive(self, record: JobRecord) -> bool:
        """True where somebody may still settle the record."""
        return not record.settled and self.owner is not None and self.owner.instance in (None, record.instance)

    def standing(self, record: JobRecord) -> str:
        """How it ended or where it stands; a job that died with its executor is not shown as running."""
        if record.settled or self.is_alive(record):
            return record.sentence()
        return f"lost: its executor died while it was {record.state}"


def see(layout: Layout, question: Callable[[StoreReader], tuple[JobRecord, ...]]) -> Seen:
    """Reads records while the directory stays in the same hands. Raises: StateError."""
    owner = living_owner(layout)
    with StoreReader.open(layout.database) as reader:
        records = question(reader)
        for _ in range(_LOOKS):
            before, owner = owner, living_owner(layout)
            if owner == before:
                break
            records = question(reader)
        return Seen(records, owner)


def see_job(layout: Layout, job_id: str) -> tuple[Seen, JobRecord]:
    """One record. Raises: UnknownJob, StateError."""
    seen = see(layout, lambda reader: tuple(filter(None, [reader.get(job_id)])))
    if not seen.records:
        raise UnknownJob(f"unknown job {printable(job_id)!r}", field="job", hint="`stockade ps` lists those that there are")
    return seen, seen.records[0]


def kill_job(layout: Layout, job_id: str, *, signal: int, grace: float | None) -> tuple[bool, str]:
    """Has the executor that runs a job end it: whether it was running, and how it ended.

    Raises: UnknownJob; StockadeError where its executor refuses or does not answer.
    """
    seen, record = see_job(layout, job_id)
    if not seen.is_alive(record):
        return False, seen.standing(record)
    return True, ask_to_kill(layout, job_id, signal=signal, grace=grace)


def show_log(layout: Layout, job_id: str, stream: str, *, follow: bool, lines: int | None, exact: bool) -> str | None:
    """Writes a job's output to our stdout; why it is not all where that is so.

    Raises: UnknownJob, StateError; OSError where our stdout cannot be written.
    """
    seen, record = see_job(layout, job_id)
    bank = Bank(layout.bank)
    reader = _reader(bank, record, stream)
    with StoreReader.open(layout.database) as store:
        while reader is None and follow and seen.is_alive(record):  # it is about to start
            if not _pause():
                return None
            seen, record = see_job(layout, job_id)
            reader = _reader(bank, record, stream)
        if reader is None:
            raise UnknownJob(
                f"the bank has no output of job {job_id!r}", field="job", hint="it never came to write any, or its output was removed"
            )

        def is_over() -> bool:
            if not follow:
                return True
            now = store.get(job_id)
            return now is None or now.settled or living_owner(layout) is None

        _copy(reader, _begin(reader, lines), is_over, _Writer(exact=exact))
    seen, record = see_job(layout, job_id)
    return seen.standing(record) if not record.settled and not seen.is_alive(record) else None


def _reader(bank: Bank, record: JobRecord, stream: str) -> StreamReader | None:
    try:
        account = bank.account(record.id)
    except UnknownJob:
        return None
    except StateError:
        if record.settled:
            raise
        return None  # it is being made
    return account.reader("output" if stream == "stdout" and "stdout" not in account.streams else stream)


def _begin(reader: StreamReader, lines: int | None) -> int:
    if lines is None:
        return 0
    total = reader.read_lines(1, 1).total_lines
    return reader.read_lines(max(1, total - lines + 1), 1).byte_offset if lines else reader.size


def _copy(reader: StreamReader, position: int, is_over: Callable[[], bool], writer: _Writer) -> None:
    while True:
        over = is_over()  # asked before the bytes: what it wrote last is then still seen
        page = reader.read_bytes(position)
        position = page.next_offset
        if page.data:
            writer.write(page.data)
        elif over or not _pause():
            writer.end()
            return


class _Writer:
    """Our stdout: the exact bytes, or text in which no control character can reach a terminal."""

    def __init__(self, *, exact: bool) -> None:
        self._decoder = None if exact else codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # a carriage return whose line feed may be yet to come; by itself it would write over what is there

    def write(self, data: bytes) -> None:
        self._put(data, final=False)

    def end(self) -> None:
        self._put(b"", final=True)

    def _put(self, data: bytes, *, final: bool) -> None:
        if self._decoder is not None:
            text = self._held + self._decoder.decode(data, final)
            self._held = "\r" if text.endswith("\r") and not final else ""
            text = text.removesuffix(self._held) if self._held else text
            data = _CONTROLS.sub(lambda found: printable(found[0]), text).encode()
        write_all(1, data)


def _pause() -> bool:
    """Waits for a moment; False where meanwhile the reader of our stdout has gone."""
    hangup = select.poll()
    hangup.register(1, 0)
    return not hangup.poll(PERIOD * 1000)


def purge(layout: Layout, retention: Retention, *, unread: bool, only_say: bool) -> Removal:
    """Removes settled jobs, with their output and artifacts, that `retention` does not keep; no executor may live there.

    What nobody has read stays, but with `unread`. Raises: StateError where one does, or where the directory cannot be used.
    """
    with contextlib.ExitStack() as opened:
        opened.enter_context(StateDirectory.open(layout.root))
        store = None if only_say else opened.enter_context(Store.open(layout.database))  # which sets a damaged one aside
        reader = opened.enter_context(StoreReader.open(layout.database))
        bank = Bank(layout.bank)
        if store is not None:
            bank.empty_trash()
        return purging.purge(
            ArtifactStore(bank),
            reader.every,
            None if store is None else store.delete,
            retention,
            now=time.time(),
            unread=unread,
        )
