"""A job's directory with its empty files, made while nobody waits for it: creating four inodes can take milliseconds.

It becomes a job's by rename(2). One that a crash has left is removed when its bank is next opened for writing.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass

from stockade.bank.private import Directory, create_file, create_private_child, write_all
from stockade.bank.segments import create_segment
from stockade.bank.trees import remove_tree
from stockade.errors import StateError


@dataclass(frozen=True, slots=True)
class Spare:
    """A directory among the spares, with a descriptor of each file that is in it."""

    directory: Directory
    name: str
    terms: int
    streams: dict[str, int]

    def close(self) -> None:
        """Close every descriptor; the files stay."""
        for descriptor in (self.terms, *self.streams.values()):
            os.close(descriptor)
        self.directory.close()


class Spares:
    """At most one spare, for the streams that were wanted last; safe in any thread."""

    def __init__(self, place: Directory) -> None:
        """`place` is the directory that holds them, of one process at a time."""
        self._place = place
        self._lock = threading.Lock()
        self._spare: Spare | None = None
        self._is_closed = False

    def make(self, terms: str, streams: tuple[str, ...]) -> None:
        """Make one where there is none; `terms` is the name of the file for the terms. Never raises: a spare is not needed."""
        with self._lock:
            if self._spare is not None or self._is_closed:
                return
            try:
                self._spare = _create(self._place, secrets.token_hex(6), terms, streams)
            except (OSError, StateError):
                return

    def use(self, jobs: Directory, job_id: str, terms: bytes, streams: tuple[str, ...]) -> tuple[Directory, dict[str, int]] | None:
        """Make the spare the directory of a job, with its terms written; the descriptors of its streams are the caller's.

        None where there is no spare with these streams or it cannot be used; then nothing has happened.
        """
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None:
            return None
        try:
            if tuple(spare.streams) != streams:
                raise FileNotFoundError
            write_all(spare.terms, terms)
            os.rename(spare.name, job_id, src_dir_fd=self._place.fd, dst_dir_fd=jobs.fd)
        except OSError:
            self._discard(spare)
            return None
        os.close(spare.terms)
        spare.directory.path = os.path.join(jobs.path, job_id)
        return spare.directory, spare.streams

    def sweep(self) -> None:
        """Remove what a crash has left; before the first is made. Raises: OSError."""
        for name in os.listdir(self._place.fd):
            remove_tree(self._place.fd, name)

    def close(self) -> None:
        """Remove what is there, and make no more."""
        with self._lock:
            self._is_closed = True
            spare, self._spare = self._spare, None
        if spare is not None:
            self._discard(spare)

    def _discard(self, spare: Spare) -> None:
        spare.close()
        try:
            remove_tree(self._place.fd, spare.name)
        except OSError:
            return  # it is swept later


def _create(place: Directory, name: str, terms: str, streams: tuple[str, ...]) -> Spare:
    directory = create_private_child(place, name)
    made: list[int] = []
    try:
        made.append(create_file(directory, terms))
        made.extend(create_segment(directory, stream) for stream in streams)
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        directory.close()
        remove_tree(place.fd, name)
        raise
    return Spare(directory, name, made[0], dict(zip(streams, made[1:], strict=True)))
