"""A phase of load summed up in a few figures: for comparisons that need no level's worth of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .ask import Sample
from .percentile import percentile


@dataclass(frozen=True, slots=True)
class Report:
    """One phase of load. Latencies are seconds; None where no request gave a sample."""

    requests: int
    good: int
    failures: dict[str, int]
    wall: float  # first due to last end
    output_tokens: int  # of the good
    tokens_from: str  # "usage" or "chunks"
    output_tokens_per_second: float
    requests_per_second: float
    prompt_tokens: int
    cached_tokens: int
    ttft: dict[str, float | None]  # p50, p95, p99
    tpot: dict[str, float | None]  # time per output token after the first
    latency: dict[str, float | None]
    send_lag: float  # the longest that a request left later than due

    def failed_line(self) -> str:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.failures.items()))
        return f"{self.requests - self.good} of {self.requests} requests FAILED: {kinds}" if self.failures else ""


def report(samples: Sequence[Sample]) -> Report:
    """Sum a phase up; latencies and throughput are of the requests that ended well."""
    good = [sample for sample in samples if sample.failure is None]
    wall = max((s.end for s in samples), default=0.0) - min((s.due for s in samples), default=0.0)
    tokens = sum(sample.output_tokens for sample in good)
    return Report(
        requests=len(samples),
        good=len(good),
        failures=dict(Counter(sample.failure for sample in samples if sample.failure is not None)),
        wall=wall,
        output_tokens=tokens,
        tokens_from="usage" if all(sample.tokens is not None for sample in good) else "chunks",
        output_tokens_per_second=tokens / wall if wall > 0 else 0.0,
        requests_per_second=len(good) / wall if wall > 0 else 0.0,
        prompt_tokens=sum(sample.prompt_tokens or 0 for sample in good),
        cached_tokens=sum(sample.cached_tokens or 0 for sample in good),
        ttft=_spread([s.first - s.due for s in good if s.first is not None]),
        tpot=_spread([_tpot(s) for s in good if s.output_tokens > 1]),
        latency=_spread([s.end - s.due for s in good]),
        send_lag=max((s.sent - s.due for s in samples), default=0.0),
    )


def _tpot(sample: Sample) -> float:
    assert sample.first is not None and sample.last is not None
    return (sample.last - sample.first) / (sample.output_tokens - 1)


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {f"p{p}": percentile(values, p) for p in (50, 95, 99)}
