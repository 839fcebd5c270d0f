"""Those who watch the engine. It notes its steps and sends views only while somebody does."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from .client import EngineClient
from .errors import ApiError
from .messages import View

MOST = 64  # who may watch at once
KEPT = 8  # views kept for one who reads slowly; the oldest go


class Seat:
    """One watcher's place."""

    def __init__(self) -> None:
        self._views: deque[View] = deque(maxlen=KEPT)
        self._news = asyncio.Event()

    def put(self, view: View) -> None:
        self._views.append(view)
        self._news.set()

    async def next(self, timeout: float) -> View | None:
        """The next view; None if none came within ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._news.wait()
        if not self._views:
            return None
        view = self._views.popleft()
        if not self._views:
            self._news.clear()
        return view


class Watchers:
    """All of one server."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._seats: set[Seat] = set()

    def __len__(self) -> int:
        return len(self._seats)

    def join(self) -> Seat:
        """Watch from now on, until ``leave``. Raises ``ApiError`` 429 when too many do."""
        if len(self._seats) >= MOST:
            raise ApiError(429, f"{MOST} dashboards are open already, the most this server feeds.", retry_after=10)
        seat = Seat()
        self._seats.add(seat)
        if len(self._seats) == 1:
            self._client.watch(self._show)
        return seat

    def leave(self, seat: Seat) -> None:
        """Watch no more; safe to call twice."""
        if seat in self._seats:
            self._seats.remove(seat)
            if not self._seats:
                self._client.watch(None)

    def _show(self, view: View) -> None:
        for seat in self._seats:
            seat.put(view)
