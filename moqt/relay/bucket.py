"""A token bucket: a rate, and how much may come at once."""

from __future__ import annotations


class Bucket:
    """Fills with time at ``rate`` a second up to ``burst``; empties with use.

    May go below zero by one use. Time is the caller's, in seconds; it may jump back.
    """

    __slots__ = ("_at", "_burst", "_rate", "level")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._at = now
        self.level = burst

    def wait(self, now: float) -> float:
        """Seconds until something may be taken; 0 is now."""
        gained = max(now - self._at, 0.0) * self._rate
        self.level = min(self._burst, self.level + gained)
        self._at = now
        return 0.0 if self.level > 0 else (1.0 - self.level) / self._rate

    def take(self, amount: float = 1.0) -> None:
        """Use it."""
        self.level -= amount
