"""Artifacts: payloads, banked streams and files of a job, each read back by its id (1A.11, U-22).

<root>/artifacts/<id>.meta.json     what it is; believed field by field, and never for where the bytes are
<root>/artifacts/<id>.0.log         the bytes of a payload or a file; a stream's bytes stay where the job wrote them
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from pydantic import ValidationError

from stockade.bank.account import Account
from stockade.bank.bank import Bank
from stockade.bank.private import create_file, open_private_child, read_small, replace_file
from stockade.bank.references import (
    KINDS,
    MAX_PREVIEW_CHARS,
    PREVIEW_CHARS,
    STREAM_PREVIEW_CHARS,
    ArtifactKind,
    ContentType,
    Metadata,
    Reference,
    preview_of,
    unbanked,
)
from stockade.bank.retention import Kept, Removal, Retention, select
from stockade.bank.search import SearchPage, search
from stockade.bank.streams import Overflow, SinkFailed, Stream
from stockade.bank.taking import DEFAULT_LIMITS, Harvest, Refusal, TakeLimits, take_files
from stockade.bank.windows import DEFAULT_CHARS, Page, StreamReader
from stockade.errors import InvalidRequest, StateError, StockadeError
from stockade.ids import is_safe_id

_META: Final = ".meta.json"
_META_LIMIT: Final = 131_072
_LOADED: Final = 64
_WHOLE: Final = 2**62


@dataclass(frozen=True, slots=True)
class TakenArtifacts:
    """The files that were taken out of a workspace, as references, and the paths that were not, with their reasons."""

    references: tuple[Reference, ...]
    refused: tuple[Refusal, ...]


def _new_id() -> str:
    return "a" + secrets.token_hex(12)


def _printable(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "backslashreplace")


class ArtifactStore:
    """All artifacts of a bank, in memory of nothing that the disk does not say; safe in any thread."""

    def __init__(self, bank: Bank) -> None:
        """The artifacts that live in `bank`. Raises: StateError where their directory is not private and ours."""
        self._bank = bank
        self._directory = open_private_child(bank.root, "artifacts")
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, StreamReader] = OrderedDict()

    def close(self) -> None:
        """Let go of the directory; for when nobody reads or banks any more. The bank itself stays open."""
        with self._lock:
            self._loaded.clear()
            self._directory.close()

    # Banking

    def bank_artifact(
        self,
        payload: bytes | str,
        *,
        kind: ArtifactKind,
        label: str = "",
        session: str | None = None,
        job_id: str | None = None,
        content_type: ContentType = "text",
        preview_chars: int = PREVIEW_CHARS,
    ) -> Reference:
        """Keep `payload` and return the reference to it; a blank label becomes the kind.

        Raises: InvalidRequest where the kind is none of the four; StateError where it cannot be kept, and then nothing
        is left.
        """
        _check_kind(kind)
        data = payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else bytes(payload)
        artifact_id = _new_id()
        try:
            stream, writer = Stream.create(self._directory, artifact_id, cap=max(len(data), 1), overflow=Overflow.KILL)
            try:
                writer.write(data)
            finally:
                writer.close()
            metadata = Metadata(
                artifact_id=artifact_id,
                label=_label(label, kind),
                kind=kind,
                content_type=content_type,
                session=session,
                job_id=job_id,
                size_bytes=len(data),
                created_at=self._bank.clock(),
                preview=self._preview(StreamReader(stream), preview_chars),
            )
            self._commit(metadata)
        except (OSError, SinkFailed) as error:
            self._remove_files(artifact_id)
            raise StateError(
                f"the artifact could not be kept: {error}", hint="free space or restore access where the bank lives"
            ) from error
        except ValidationError as error:
            self._remove_files(artifact_id)
            raise InvalidRequest(str(error.errors()[0]["msg"]), field=str(error.errors()[0]["loc"][0])) from error
        return metadata.reference()

    def bank_stream(
        self,
        account: Account,
        stream: str,
        *,
        label: str,
        kind: ArtifactKind = "command-output",
        session: str | None = None,
        preview_chars: int = STREAM_PREVIEW_CHARS,
    ) -> Reference:
        """Make a closed stream an artifact, by reference: its bytes stay the file that was written (U-22).

        Never loses the outcome: where banking fails the reference has no id and says why and where the bytes are
        (N-B1).
        """
        reader = account.reader(stream)
        extent, failure = reader.stream.extent(), reader.stream.failure
        label = _label(label, kind)
        preview = self._preview(reader, preview_chars)
        try:
            if failure is not None and not failure.readable:
                raise failure
            metadata = Metadata(
                artifact_id=_new_id(),
                label=label,
                kind=kind,
                session=session,
                job_id=account.job_id,
                stream=stream,
                size_bytes=extent.size,
                lost_bytes=extent.start,
                created_at=self._bank.clock(),
                preview=preview,
            )
            self._commit(metadata)
        except (OSError, StockadeError, ValidationError) as error:
            reason = error.message if isinstance(error, StockadeError) else str(error)
            paths = tuple(path for path in reader.stream.paths if os.path.exists(path))
            return unbanked(label=label, kind=kind, size_bytes=extent.size, preview=preview, reason=reason, paths=paths)
        return metadata.reference()

    def take(
        self,
        workspace: int,
        paths: Iterable[str] | None = None,
        *,
        limits: TakeLimits = DEFAULT_LIMITS,
        kind: ArtifactKind = "stage-output",
        session: str | None = None,
        job_id: str | None = None,
    ) -> TakenArtifacts:
        """Take files out of the directory descriptor `workspace`: those at `paths`, or all; see `taking.take_files`."""
        _check_kind(kind)
        made: list[str] = []

        def target(_: str) -> tuple[str, int]:
            artifact_id = _new_id()
            fd = create_file(self._directory, f"{artifact_id}.0.log")
            made.append(artifact_id)
            return artifact_id, fd

        harvest: Harvest = take_files(workspace, paths, target, limits)
        references: list[Reference] = []
        refused = list(harvest.refused)
        for taken in harvest.taken:
            try:
                stream = Stream.load(self._directory, taken.stored_as, cap=max(taken.size, 1))
                metadata = Metadata(
                    artifact_id=taken.stored_as,
                    label=_printable(taken.path)[:4_096],
                    kind=kind,
                    content_type="bytes",
                    session=session,
                    job_id=job_id,
                    size_bytes=stream.extent().size,
                    created_at=self._bank.clock(),
                    preview=self._preview(StreamReader(stream), PREVIEW_CHARS),
                    origin_hex=os.fsencode(taken.path).hex(),
                    executable=taken.executable,
                )
                self._commit(metadata)
            except OSError as error:
                refused.append(Refusal(taken.path, f"it could not be kept: {error.strerror or error}"))
            else:
                references.append(metadata.reference())
                made.remove(taken.stored_as)
        for artifact_id in made:
            self._remove_files(artifact_id)
        return TakenArtifacts(tuple(references), tuple(refused))

    def _commit(self, metadata: Metadata) -> None:
        replace_file(self._directory, metadata.artifact_id + _META, metadata.model_dump_json().encode())

    @staticmethod
    def _preview(reader: StreamReader, chars: int) -> str:
        chars = max(0, min(chars, MAX_PREVIEW_CHARS))
        return preview_of(reader.head(chars + 1), chars)

    # Reading

    def metadata(self, artifact_id: str) -> Metadata | None:
        """What the sidecar says; None where the id is unsafe or unknown, or the sidecar is not to be believed."""
        if not is_safe_id(artifact_id):
            return None
        data = read_small(self._directory, artifact_id + _META, _META_LIMIT)
        try:
            metadata = Metadata.model_validate(json.loads(data)) if data is not None else None
        except ValueError:
            return None
        return metadata if metadata is not None and metadata.artifact_id == artifact_id else None

    def reader(self, artifact_id: str) -> StreamReader | None:
        """Windows on an artifact; None where it is unknown or gone."""
        metadata = self.metadata(artifact_id)
        if metadata is None:
            return None
        try:
            if metadata.stream is not None:
                return self._bank.account(metadata.job_id or "").reader(metadata.stream)
            with self._lock:
                reader = self._loaded.get(artifact_id)
                if reader is None:
                    stream = Stream.load(self._directory, artifact_id, cap=max(metadata.size_bytes, 1))
                    if not stream.paths:
                        return None
                    reader = self._loaded[artifact_id] = StreamReader(stream)
                self._loaded.move_to_end(artifact_id)
                while len(self._loaded) > _LOADED:
                    self._loaded.popitem(last=False)
                return reader
        except (OSError, StockadeError):
            return None

    def read_artifact(self, artifact_id: str, offset: int = 0, limit: int | None = None) -> Page | None:
        """Characters from `offset` on, `limit` of them or all; None where the artifact is unknown or gone.

        For hosts: without a limit the whole text is read into memory. Tools use `retrieve_context`.
        """
        reader = self.reader(artifact_id)
        if reader is None:
            return None
        return reader.read_chars(offset, _WHOLE if limit is None else limit, max_chars=_WHOLE)

    def retrieve_context(
        self, artifact_id: str, *, offset: int = 0, limit: int = DEFAULT_CHARS, pattern: str | None = None
    ) -> Page | SearchPage | None:
        """A window of at most 200 000 characters, or with `pattern` the matches from `offset` on; None as `reader`.

        Raises: InvalidRequest where the pattern is empty or too long.
        """
        reader = self.reader(artifact_id)
        if reader is None:
            return None
        return reader.read_chars(offset, limit) if pattern is None else search(reader, pattern, offset=offset)

    def _all(self) -> Iterator[Metadata]:
        for name in os.listdir(self._directory.fd):
            if name.endswith(_META) and (metadata := self.metadata(name.removesuffix(_META))) is not None:
                yield metadata

    def find(self, *, session: str | None = None, job_id: str | None = None) -> tuple[Reference, ...]:
        """The artifacts of a session or a job, or all, oldest first."""
        found = [
            metadata
            for metadata in self._all()
            if (session is None or metadata.session == session) and (job_id is None or metadata.job_id == job_id)
        ]
        return tuple(item.reference() for item in sorted(found, key=lambda item: (item.created_at, item.artifact_id)))

    # Removing

    def delete(self, artifact_id: str) -> None:
        """Remove an artifact; a stream's bytes stay with the job. Quiet where there is none."""
        if is_safe_id(artifact_id):
            self._remove_files(artifact_id)

    def _remove_files(self, artifact_id: str) -> int:
        """Remove what is stored under the id, the metadata first; returns the bytes that it had on disk."""
        size = 0
        with self._lock:
            self._loaded.pop(artifact_id, None)
        for suffix in (_META, ".0.log", ".0.marks"):
            name = artifact_id + suffix
            try:
                size += os.stat(name, dir_fd=self._directory.fd, follow_symlinks=False).st_blocks * 512
                os.unlink(name, dir_fd=self._directory.fd)
            except OSError:
                continue
        return size

    def _size(self, artifact_id: str) -> int:
        size = 0
        for suffix in (_META, ".0.log", ".0.marks"):
            try:
                size += os.stat(artifact_id + suffix, dir_fd=self._directory.fd, follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
        return size

    def kept(self, *, pinned: Iterable[str] = ()) -> tuple[Kept, ...]:
        """Everything in the bank, for retention: jobs with their artifacts, and artifacts of no job that is there.

        A job is pinned where it is named, still open, or has an artifact that is named.
        """
        wanted = set(pinned)
        jobs = {job.id: job for job in self._bank.jobs(pinned=wanted)}
        free: list[Kept] = []
        for metadata in self._all():
            named, size = metadata.artifact_id in wanted, self._size(metadata.artifact_id)
            job = jobs.get(metadata.job_id) if metadata.job_id is not None else None
            if job is not None:
                jobs[job.id] = Kept(job.id, "job", job.ended_at, job.size + size, job.pinned or named)
            else:
                free.append(Kept(metadata.artifact_id, "artifact", metadata.created_at, size, named))
        return (*jobs.values(), *free)

    def purge(self, retention: Retention, *, pinned: Iterable[str] = ()) -> Removal:
        """Remove what `retention` does not keep; ids in `pinned` and whatever a running job needs are never touched.

        One that resists does not stop the others: it is in the result.
        """
        removed: list[str] = []
        failed: list[tuple[str, str]] = []
        freed = 0
        for item in select(self.kept(pinned=pinned), retention, now=self._bank.clock()):
            try:
                if item.kind == "job":
                    self.remove_job(item.id)
                else:
                    self._remove_files(item.id)
            except (OSError, StockadeError) as error:
                failed.append((item.id, str(error)))
            else:
                removed.append(item.id)
                freed += item.size
        try:
            self._bank.empty_trash()
        except OSError as error:
            failed.append(("trash", str(error)))
        return Removal(tuple(removed), freed, tuple(failed))

    def remove_job(self, job_id: str) -> None:
        """Remove a job's streams and all artifacts that came of it. Raises: as `Bank.remove`."""
        self._bank.remove(job_id)
        for metadata in list(self._all()):
            if metadata.job_id == job_id:
                self._remove_files(metadata.artifact_id)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise InvalidRequest(f"unknown kind {kind!r}", field="kind", hint=f"use one of {', '.join(KINDS)}")


def _label(label: str, kind: ArtifactKind) -> str:
    return label.encode("utf-8", "backslashreplace").decode().strip()[:4_096] or cast("str", kind)
