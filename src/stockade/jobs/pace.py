"""How often the memory of a job is looked at where no controller counts it."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 0.1  # seconds between two looks at a job that does not grow
SHORTEST: Final = 0.01
_SHARE: Final = 10  # a look may take a tenth of the time until the next one
_MARGIN: Final = 3  # looks before a job that grows as it does now reaches its limit


class Pace:
    """The pause before the next look: the shorter, the sooner a job that grows as it last did will be at its limit."""

    def __init__(self) -> None:
        self.pause = SHORTEST  # a job begins with a look: many take what they need at once
        self._held = 0
        self._at: float | None = None

    def saw(self, held: int, limit: int, *, at: float, cost: float) -> None:
        """Takes in what one look found: bytes held and permitted, when (on any clock, in seconds), and how many seconds it took."""
        grown, passed = held - self._held, 0.0 if self._at is None else at - self._at
        self._held, self._at = held, at
        pause = min(LONGEST, 2 * self.pause)
        if passed > 0 and grown > 0:
            pause = min(pause, (limit - held) * passed / grown / _MARGIN)
        self.pause = max(SHORTEST, min(LONGEST, max(pause, _SHARE * cost)))


__all__ = ["LONGEST", "SHORTEST", "Pace"]
