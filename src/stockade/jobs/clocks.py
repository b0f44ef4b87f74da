"""Time that passes for a job: all of it, or without the time in which the job was frozen."""

from __future__ import annotations


class JobClock:
    """When one job was frozen; moments are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float]] = []
        self._frozen_since: float | None = None

    @property
    def is_frozen(self) -> bool:
        return self._frozen_since is not None

    def freeze(self, now: float) -> None:
        """It stands still from `now` on; nothing new where it does already."""
        if self._frozen_since is None:
            self._frozen_since = now

    def thaw(self, now: float) -> None:
        """It goes on from `now` on; nothing new where it does already."""
        if self._frozen_since is not None:
            self._pauses.append((self._frozen_since, now))
            self._frozen_since = None

    def frozen_seconds(self, begin: float, end: float) -> float:
        """How much of the time between two moments it was frozen."""
        pauses = self._pauses if self._frozen_since is None else [*self._pauses, (self._frozen_since, end)]
        return sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in pauses)
