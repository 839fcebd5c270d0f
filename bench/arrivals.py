"""When the requests of an open loop are due: drawn before the run, so that no answer can delay a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STRATEGIES = ("linear", "exponential")


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that goes from ``start`` to ``end`` requests a second over a level's requests."""

    start: float
    end: float
    strategy: str = STRATEGIES[0]

    def __post_init__(self) -> None:
        for rate in (self.start, self.end):
            if not 0 < rate < float("inf"):
                raise ValueError(f"a ramp's rate is {rate:g}; it must be above 0 and below inf")
        if self.strategy not in STRATEGIES:
            raise ValueError(f"ramp-up-strategy is {self.strategy!r}; it must be {' or '.join(STRATEGIES)}")


def schedule(count: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """``count`` moments in seconds from the start, ``rate`` a second in the mean.

    The gaps are Gamma(``burstiness``, 1 / (rate * burstiness)): 1 is a Poisson process, below it comes in bursts, above
    it ever more evenly, infinity is a metronome. They are scaled so that the last one is due at count / rate exactly,
    as `vllm bench serve` does it; an infinite rate sends all at once.
    """
    _check(rate, burstiness)
    if rate == float("inf"):
        return [0.0] * count
    if burstiness == float("inf"):
        return [(i + 1) / rate for i in range(count)]
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), count)
    due = np.cumsum(gaps)
    return [float(value) for value in due * (count / rate / due[-1])] if count else []


def ramp(count: int, shape: Ramp, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Like ``schedule`` with a rate that follows ``shape``."""
    _check(shape.start, burstiness)
    steps = np.linspace(0.0, 1.0, count) if count > 1 else np.zeros(count)
    start, end = shape.start, shape.end
    rates = start + (end - start) * steps if shape.strategy == "linear" else start * (end / start) ** steps
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rates * burstiness))
    return [float(value) for value in np.cumsum(gaps)]


def gap_variation(due: Sequence[float]) -> float:
    """The coefficient of variation of the gaps: 1 for a Poisson process, 0 for a metronome."""
    gaps = np.diff(np.asarray(due))
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else 0.0


def _check(rate: float, burstiness: float) -> None:
    if not rate > 0:
        raise ValueError(f"request-rate is {rate}; it must be above 0, or inf")
    if not burstiness > 0:
        raise ValueError(f"burstiness is {burstiness}; it must be above 0")
