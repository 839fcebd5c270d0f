"""Percentiles by nearest rank: always a value that was measured, computed with exact integers."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], p: int) -> float | None:
    """The smallest value that at least ``p`` percent (1 to 100) of ``values`` do not exceed; None of no values."""
    if not 1 <= p <= 100:
        raise ValueError(f"percentile {p} is not in 1 to 100")
    if not values:
        return None
    return sorted(values)[-(-p * len(values) // 100) - 1]
