"""One level of load summed up: what came back, how fast, and how much of it was good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrivals import Ramp
from .ask import Sample
from .objective import Attainment, Objective, values_ms
from .percentile import percentile

PERCENTILES = (50, 90, 95, 99)
#: Latencies that people are shown, by their key's part.
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "inter_chunk": "between chunks", "e2el": "E2E"}
_REJECTED = ("HTTP 429", "HTTP 503")


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of n values; percentiles by nearest rank. All None where n is 0."""

    n: int
    mean: float | None
    std: float | None
    percentiles: Mapping[int, float | None]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        found = {p: percentile(values, p) for p in PERCENTILES}
        if not values:
            return cls(0, None, None, found)
        return cls(len(values), float(np.mean(values)), float(np.std(values)), found)


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked of the server."""

    loop: str  # "closed" or "open"
    concurrency: int | None  # closed: users; open: the cap on requests at once, if any
    rate: float | None  # open: requests a second; None with a ramp, or where requests have times of their own (a trace)
    burstiness: float = 1.0
    ramp: Ramp | None = None
    unit: str = "req"  # open: what comes so often; a conversation is several requests

    @property
    def name(self) -> str:
        if self.loop == "closed":
            return f"{self.concurrency} at once"
        if self.ramp is not None:
            return f"{self.ramp.start:g} to {self.ramp.end:g} {self.unit}/s"
        if self.rate is None:
            return "the trace's times"
        return "all at once" if self.rate == float("inf") else f"{self.rate:g} {self.unit}/s"

    @property
    def about(self) -> str:
        """The loop, and what shapes its arrivals beside the name."""
        if self.loop == "closed":
            return "closed loop"
        terms = ["open loop"]
        if self.ramp is not None:
            terms.append(f"{self.ramp.strategy} ramp")
        if self.burstiness != 1 and (self.ramp is not None or self.rate not in (None, float("inf"))):
            terms.append(f"burstiness {self.burstiness:g}")
        if self.concurrency is not None:
            terms.append(f"no more than {self.concurrency} at once")
        return ", ".join(terms)

    @property
    def x(self) -> float | None:
        """The load as a number, for plots; None where it is none."""
        if self.loop == "closed":
            return float(self.concurrency or 0)
        return None if self.rate is None or self.rate == float("inf") else self.rate

    def as_dict(self) -> dict[str, Any]:
        """The keys of `vllm bench serve`."""
        rate: float | str | None = self.rate
        if self.loop == "closed" or self.ramp is not None or rate == float("inf"):
            rate = "inf"
        burstiness = "inf" if self.burstiness == float("inf") else self.burstiness  # JSON knows no infinity
        found = {"loop": self.loop, "request_rate": rate, "burstiness": burstiness}
        found["max_concurrency"] = self.concurrency
        if self.ramp is not None:
            found["ramp_up_strategy"] = self.ramp.strategy
            found |= {"ramp_up_start_rps": self.ramp.start, "ramp_up_end_rps": self.ramp.end}
        return found


@dataclass(frozen=True, slots=True)
class Level:
    """Times are seconds, latencies milliseconds; rates and latencies are of the requests that ended well."""

    load: Load
    duration: float  # first due to last end
    completed: int
    failures: Mapping[str, int]
    reasons: Mapping[str, str]  # by kind of failure: the first one's, in the server's words
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    tokens_from: str  # "usage" or "chunks"
    spreads: Mapping[str, Spread]
    output_lengths: Spread
    peak_tokens_per_second: float
    max_concurrent: int
    max_send_lag_ms: float
    attainment: Attainment | None
    generator_cpu: float  # share of one core that the load generator used
    series: Mapping[str, list[float]] = field(default_factory=dict)  # per good request, for plots

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def rejected(self) -> int:
        """Failures by which the server said that it was full."""
        return sum(self.failures.get(kind, 0) for kind in _REJECTED)

    @property
    def output_throughput(self) -> float:
        return self.output_tokens / self.duration if self.duration > 0 else 0.0

    @property
    def request_throughput(self) -> float:
        return self.completed / self.duration if self.duration > 0 else 0.0

    @property
    def goodput(self) -> float | None:
        """Good requests a second."""
        if self.attainment is None:
            return None
        return self.attainment.good / self.duration if self.duration > 0 else 0.0

    def failed_line(self) -> str:
        def named(kind: str, count: int) -> str:
            reason = self.reasons.get(kind)
            return f"{count} x {kind}" + (f" ({reason})" if reason else "")

        kinds = ", ".join(named(kind, count) for kind, count in sorted(self.failures.items()))
        return f"{self.failed} of {self.failed + self.completed} requests FAILED: {kinds}" if self.failures else ""

    def as_dict(self) -> dict[str, Any]:
        """With the keys of `vllm bench serve`, and some more."""
        found: dict[str, Any] = {
            **self.load.as_dict(),
            "num_prompts": self.completed + self.failed,
            "duration": self.duration,
            "completed": self.completed,
            "failed": self.failed,
            "failures": dict(self.failures),
            "failure_reasons": dict(self.reasons),
            "rejected": self.rejected,
            "total_input_tokens": self.input_tokens,
            "total_output_tokens": self.output_tokens,
            "total_cached_tokens": self.cached_tokens,
            "tokens_from": self.tokens_from,
            "request_throughput": self.request_throughput,
            "request_goodput": self.goodput,
            "output_throughput": self.output_throughput,
            "total_token_throughput": (self.input_tokens + self.output_tokens) / self.duration if self.duration else 0,
            "max_output_tokens_per_s": self.peak_tokens_per_second,
            "max_concurrent_requests": self.max_concurrent,
            "max_send_lag_ms": self.max_send_lag_ms,
            "generator_cpu": self.generator_cpu,
            "percentile_method": "nearest rank",
            "output_lengths": _spread_dict(self.output_lengths),
            "series": dict(self.series),
        }
        if self.attainment is not None:
            found["slo_attainment"] = self.attainment.share
            found["slo_attainment_by_metric"] = dict(self.attainment.by_metric)
        for name, spread in self.spreads.items():
            found |= {f"mean_{name}_ms": spread.mean, f"std_{name}_ms": spread.std, f"n_{name}": spread.n}
            found |= {f"median_{name}_ms": spread.percentiles[50]}
            found |= {f"p{p}_{name}_ms": value for p, value in spread.percentiles.items()}
        return found


def summarise(
    samples: Sequence[Sample], load: Load, objective: Objective | None = None, generator_cpu: float = 0.0
) -> Level:
    """Sum a level up. Failed requests give no latency and no tokens, but their time counts."""
    good = [sample for sample in samples if sample.failure is None]
    start = min((s.due for s in samples), default=0.0)
    duration = max((s.end for s in samples), default=0.0) - start
    return Level(
        load=load,
        duration=duration,
        completed=len(good),
        failures=dict(Counter(sample.failure for sample in samples if sample.failure is not None)),
        reasons={s.failure: s.reason for s in reversed(samples) if s.failure is not None and s.reason},
        input_tokens=sum(sample.prompt_tokens or 0 for sample in good),
        output_tokens=sum(sample.output_tokens for sample in good),
        cached_tokens=sum(sample.cached_tokens or 0 for sample in good),
        tokens_from="usage" if all(sample.tokens is not None for sample in good) else "chunks",
        spreads=_spreads(good),
        output_lengths=Spread.of([sample.output_tokens for sample in good]),
        peak_tokens_per_second=_peak(good, start, duration),
        max_concurrent=_most_at_once(samples),
        max_send_lag_ms=max((s.sent - s.due for s in samples), default=0.0) * 1e3,
        attainment=None if objective is None else objective.attainment(samples),
        generator_cpu=generator_cpu,
        series=_series(good, start),
    )


def _spreads(good: Sequence[Sample]) -> dict[str, Spread]:
    values = [values_ms(sample) for sample in good]
    gaps = [[(b - a) * 1e3 for a, b in zip(s.times, s.times[1:], strict=False)] for s in good]
    per_token = [gap * s.chunks / max(1, s.output_tokens) for s, own in zip(good, gaps, strict=True) for gap in own]
    return {
        "ttft": Spread.of([v["ttft"] for v in values]),
        "tpot": Spread.of([v["tpot"] for v, s in zip(values, good, strict=True) if s.output_tokens > 1]),
        "itl": Spread.of(per_token),
        "inter_chunk": Spread.of([gap for own in gaps for gap in own]),
        "e2el": Spread.of([v["e2el"] for v in values]),
        "client_queue_time": Spread.of([(s.sent - s.due) * 1e3 for s in good]),
    }


def _peak(good: Sequence[Sample], start: float, duration: float) -> float:
    """Most tokens in one of the equal parts, of a second at most, that the level divides into: never below the mean."""
    if duration <= 0:
        return 0.0
    parts = max(1, int(-(-duration // 1)))
    counts = [0.0] * parts
    for sample in good:
        each = sample.output_tokens / max(1, sample.chunks)
        for at in sample.times:
            counts[min(parts - 1, int((at - start) / duration * parts))] += each
    return max(counts) * parts / duration


def _most_at_once(samples: Sequence[Sample]) -> int:
    events = sorted([(s.sent, 1) for s in samples] + [(s.end, -1) for s in samples])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


def _series(good: Sequence[Sample], start: float) -> dict[str, list[float]]:
    values = [values_ms(sample) for sample in good]
    return {
        "start": [round(sample.due - start, 4) for sample in good],
        "ttft_ms": [round(v["ttft"], 3) for v in values],
        "tpot_ms": [round(v["tpot"], 3) for v in values],
        "e2el_ms": [round(v["e2el"], 3) for v in values],
        "output_tokens": [float(sample.output_tokens) for sample in good],
        "input_tokens": [float(sample.prompt_tokens or 0) for sample in good],
    }


def _spread_dict(spread: Spread) -> dict[str, float | None]:
    return {"n": spread.n, "mean": spread.mean, **{f"p{p}": v for p, v in spread.percentiles.items()}}
