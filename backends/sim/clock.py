"""Time that passes only when somebody waits."""

from __future__ import annotations


class VirtualClock:
    """Seconds; call it to read it, as one would ``time.monotonic``."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance_to(self, when: float) -> None:
        self.now = max(self.now, when)
