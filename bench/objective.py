"""What counts as a good answer: bounds on a request's own latencies, as in ``--goodput ttft:1000 tpot:50``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .ask import Sample

NAMES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Objective:
    """Upper bounds in milliseconds; a request is good if it meets all. Failed requests are never good."""

    bounds: Mapping[str, float]

    @property
    def text(self) -> str:
        """As it is asked for."""
        return " ".join(f"{name}:{bound:g}" for name, bound in self.bounds.items())

    def met(self, sample: Sample) -> dict[str, bool]:
        """By metric whether ``sample`` keeps within the bound."""
        found = values_ms(sample)
        return {name: sample.failure is None and found[name] <= bound for name, bound in self.bounds.items()}

    def attainment(self, samples: Sequence[Sample]) -> Attainment:
        """Over everything that was sent."""
        met = [self.met(sample) for sample in samples]
        count = max(1, len(met))
        return Attainment(
            good=sum(all(one.values()) for one in met),
            share=sum(all(one.values()) for one in met) / count,
            by_metric={name: sum(one[name] for one in met) / count for name in self.bounds},
        )


@dataclass(frozen=True, slots=True)
class Attainment:
    """How often an objective was met; shares are of all requests sent."""

    good: int
    share: float
    by_metric: Mapping[str, float]


def parse_objective(terms: Sequence[str]) -> Objective | None:
    """``["ttft:1000", "tpot:50"]``, also with spaces or commas inside a term; None of nothing.

    Raises:
        ValueError: an unknown metric, or a bound that is no number of milliseconds.
    """
    bounds: dict[str, float] = {}
    for term in " ".join(terms).replace(",", " ").split():
        name, _, value = term.partition(":")
        if name in bounds:
            raise ValueError(f"goodput bounds {name} twice, with {term!r} the second time; give one bound")
        if name not in NAMES:
            raise ValueError(f"goodput names {name!r}; it takes {', '.join(NAMES)}, as in ttft:1000 tpot:50")
        try:
            bounds[name] = float(value)
        except ValueError:
            raise ValueError(f"goodput bound {term!r}: {value!r} is no number of milliseconds") from None
        if not bounds[name] >= 0:
            raise ValueError(f"goodput bound {term!r} must be 0 or more")
    return Objective(bounds) if bounds else None


def values_ms(sample: Sample) -> dict[str, float]:
    """TTFT and E2E from when it was due; TPOT between the first token and the last, 0 of a single token."""
    if sample.first is None or sample.last is None:
        return dict.fromkeys(NAMES, float("inf"))
    tokens = sample.output_tokens
    return {
        "ttft": (sample.first - sample.due) * 1e3,
        "tpot": (sample.last - sample.first) / (tokens - 1) * 1e3 if tokens > 1 else 0.0,
        "e2el": (sample.last - sample.due) * 1e3,
    }
