"""A token bucket: so much a minute, refilled evenly, all of it at once after a minute's rest."""

from __future__ import annotations

from collections.abc import Callable


class Bucket:
    """Holds ``per_minute`` at most. What is known only afterwards may overdraw it, and is paid off before anything
    else is let in: so no sum over any minute exceeds twice ``per_minute`` by more than what one request made."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    @property
    def level(self) -> float:
        """What is left now; below zero while overdrawn."""
        now = self._clock()
        self._level = min(float(self.per_minute), self._level + (now - self._at) * self.per_minute / 60)
        self._at = now
        return self._level

    def change(self, per_minute: int) -> None:
        """A new limit; what was used stays used."""
        used = self.per_minute - self.level
        self.per_minute = per_minute
        self._level = per_minute - used

    def take(self, amount: float) -> None:
        """Take ``amount``, there or not; a negative one gives back."""
        self._level = min(float(self.per_minute), self.level - amount)

    def wait(self, amount: float) -> float:
        """Seconds until ``amount`` can be taken, 0 if now. More than the bucket holds waits for a full one."""
        return max(0.0, min(amount, self.per_minute) - self.level) * 60 / self.per_minute

    @property
    def reset(self) -> float:
        """Seconds until it is full."""
        return (self.per_minute - self.level) * 60 / self.per_minute
