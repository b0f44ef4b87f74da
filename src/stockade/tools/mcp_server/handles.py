"""Short names for jobs, as a model can carry them from call to call: the first characters of the job's id, four where that is enough.

They are made from ids alone, so those of an earlier life of the server on the same state directory are found again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SHORTEST: Final = 4


class Handles:
    """Names and the jobs that they stand for, each name once."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def add(self, job_id: str) -> str:
        """The name of a job, which it keeps."""
        if (known := self._names.get(job_id)) is not None:
            return known
        name = next((job_id[:size] for size in range(SHORTEST, len(job_id)) if job_id[:size] not in self._jobs), job_id)
        self._jobs[name], self._names[job_id] = job_id, name
        return name

    def recall(self, job_ids: Iterable[str]) -> None:
        """Names the jobs of earlier lives, oldest first, as they were named then."""
        for job_id in job_ids:
            self.add(job_id)

    def job(self, name: str) -> str | None:
        """The job that a name stands for; its whole id is one too."""
        return name if name in self._names else self._jobs.get(name)
