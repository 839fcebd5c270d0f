"""How late the load generator itself is: a heartbeat in its event loop, late where a core is busy or lacking."""

from __future__ import annotations

import asyncio
import time

from .percentile import percentile

_EVERY = 0.01  # seconds between beats


class Pulse:
    """Beats while its block runs: ``async with Pulse() as pulse: ...``, and then knows how late the beats came, and
    ``busy``, the share of one core that this process used meanwhile."""

    def __init__(self) -> None:
        self.busy = 0.0
        self._late: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._began = self._used = 0.0

    async def __aenter__(self) -> Pulse:
        self._began, self._used = time.perf_counter(), time.process_time()
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *error: object) -> None:
        self.busy = (time.process_time() - self._used) / max(1e-9, time.perf_counter() - self._began)
        if self._task is not None:
            self._task.cancel()

    def late_ms(self, p: int = 95) -> float:
        """Milliseconds that ``p`` percent of the beats did not exceed; 0 of none."""
        return (percentile(self._late, p) or 0.0) * 1e3

    async def _beat(self) -> None:
        while True:
            due = time.perf_counter() + _EVERY
            await asyncio.sleep(_EVERY)
            self._late.append(max(0.0, time.perf_counter() - due))
