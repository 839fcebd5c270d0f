"""Who is let in: what can never be served is refused for good, what can't be queued now for a while."""

from __future__ import annotations

from collections import deque

from .config import EngineConfig
from .estimate import unattainable
from .intake import Limits, check
from .request import QueueFullError, Request, RequestRejectedError
from .scheduler import Scheduler


class Door:
    """Asked before a request is queued; told when one has ended, since the pace of ends is what a refusal names."""

    def __init__(self, config: EngineConfig, limits: Limits, scheduler: Scheduler) -> None:
        self._config, self.limits, self._scheduler = config, limits, scheduler
        self._ends: deque[float] = deque(maxlen=64)

    def review(self, request: Request, known: bool, beside: int = 0, beside_own: int = 0) -> None:
        """See ``Engine.review``. ``known``: a request of this id is under way. Refusals are counted.

        Raises:
            RequestRejectedError: it can never be served; the message has the numbers.
            QueueFullError: not now; it says when to come again.
        """
        try:
            self._review(request, known, beside, beside_own)
        except (RequestRejectedError, QueueFullError):
            self._scheduler.counters.requests_rejected += 1
            raise

    def _review(self, request: Request, known: bool, beside: int, beside_own: int) -> None:
        if known:
            raise RequestRejectedError(f"request id {request.request_id!r} is already in use", "duplicate_request")
        check(request, self.limits)
        if self._scheduler.num_unstarted + beside >= self._config.max_queue:
            raise self._full(f"{self._config.max_queue} requests are waiting, the most allowed (max_queue)")
        account, most = self._scheduler.fairness.account(request.user), self._config.max_queue_per_user
        if most is not None and account.unstarted + beside_own >= most:
            raise self._full(f"{most} requests of this user are waiting, the most allowed (max_queue_per_user)")
        if refusal := unattainable(self._scheduler, request, account, self.pace()):
            self._scheduler.counters.requests_unattainable += 1
            raise refusal

    def ended(self) -> None:
        """A request has ended."""
        self._ends.append(self._scheduler.clock())

    def pace(self) -> float | None:
        """Seconds from one request's end to the next, of late; None where there were not two yet."""
        ends = self._ends
        return (self._scheduler.clock() - ends[0]) / len(ends) if len(ends) > 1 else None

    def _full(self, why: str) -> QueueFullError:
        """Try again when about one request will have finished: 1 to 60 seconds."""
        pace = self.pace()
        after = 5.0 if pace is None else min(60.0, max(1.0, pace))
        return QueueFullError(f"{why}; try again in {after:.0f} s", after)
