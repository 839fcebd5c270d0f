"""How often a dead engine is started again."""

from __future__ import annotations

MAX_DELAY_S = 30.0
#: Seconds of real work after which an engine counts as sound. Idle time proves nothing: what kills it is a request.
SOUND_S = 60.0
#: A pause between two steps longer than this was idle time.
_PAUSE_S = 1.0


class Restarts:
    """Deaths in a row, and the delay before each restart, which doubles. An engine that worked for ``SOUND_S`` seconds
    in all since its start wipes the slate clean."""

    def __init__(self, limit: int, first_delay: float) -> None:
        self.limit = limit
        self.deaths = 0  # in a row
        self._first_delay = first_delay
        self._worked = 0.0
        self._stepped_at = 0.0

    def stepped(self, now: float) -> None:
        """The engine gave tokens at ``now`` (monotonic seconds)."""
        self._worked += min(now - self._stepped_at, _PAUSE_S)
        self._stepped_at = now
        if self._worked > SOUND_S:
            self.deaths = 0

    def died(self) -> float | None:
        """Seconds to wait before the next start; None when there shall be none."""
        self.deaths += 1
        self._worked = 0.0
        if self.deaths > self.limit:
            return None
        return min(self._first_delay * 2.0 ** (self.deaths - 1), MAX_DELAY_S)
