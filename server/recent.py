"""Latencies of the latest requests: what percentiles on the dashboard are taken of."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 300.0  # seconds that an ended request counts
MOST = 2000  # requests kept
PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds at some percentiles, of ``count`` requests; empty where there were none."""

    count: int
    percentiles: dict[str, float]  # "p50": ...


class Recent:
    """Requests that ended, the latest last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ended: deque[tuple[float, float | None, float | None]] = deque(maxlen=MOST)

    def add(self, ttft: float | None, tpot: float | None) -> None:
        """A request ended; None where it made no token, or only one."""
        self._ended.append((self._clock(), ttft, tpot))

    def latencies(self) -> dict[str, Latency]:
        """``ttft`` and ``tpot`` over the last ``WINDOW`` seconds."""
        since = self._clock() - WINDOW
        recent = [one for one in self._ended if one[0] >= since]
        return {
            name: _latency([value for one in recent if (value := one[at]) is not None])
            for at, name in ((1, "ttft"), (2, "tpot"))
        }


def _latency(values: list[float]) -> Latency:
    """By the nearest rank: each is a value that some request really had."""
    values.sort()
    ranks = {f"p{percent}": max(0, math.ceil(len(values) * percent / 100) - 1) for percent in PERCENTS}
    return Latency(len(values), {name: values[rank] for name, rank in ranks.items()} if values else {})
