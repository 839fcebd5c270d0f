"""One level of load as a record: what came back, how fast, and how much of it was good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrivals import Ramp
from .objective import Attainment
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
    input_tokens: int | None  # None: the server doesn't say; so with cached_tokens
    output_tokens: int
    cached_tokens: int | None
    tokens_from: str  # "usage", "tokenizer" (the generator's own) or "chunks": the worst of what any request had
    spreads: Mapping[str, Spread]
    output_lengths: Spread
    peak_tokens_per_second: float
    max_concurrent: int
    max_send_lag_ms: float
    attainment: Attainment | None
    generator_cpu: float  # share of one core that the load generator used
    generator_late_ms: float  # how late its own event loop was, 95 times of 100 at most
    series: Mapping[str, list[float]] = field(default_factory=dict)  # per good request, for plots
    unasked: int = 0  # later turns of conversations of which one failed
    unfinished: int = 0  # requests that had not ended, or not begun, when the level was interrupted

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

    def _total_throughput(self) -> float | None:
        if self.input_tokens is None:
            return None
        return (self.input_tokens + self.output_tokens) / self.duration if self.duration > 0 else 0.0

    def failed_line(self) -> str:
        def named(kind: str, count: int) -> str:
            reason = self.reasons.get(kind)
            return f"{count} x {kind}" + (f" ({reason})" if reason else "")

        kinds = ", ".join(named(kind, count) for kind, count in sorted(self.failures.items()))
        unasked = f"; {self.unasked} later turns of their conversations were not asked" if self.unasked else ""
        count = self.failed + self.completed
        return f"{self.failed} of {count} requests FAILED: {kinds}{unasked}" if self.failures else ""

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
            "unasked": self.unasked,
            "unfinished": self.unfinished,
            "total_input_tokens": self.input_tokens,
            "total_output_tokens": self.output_tokens,
            "total_cached_tokens": self.cached_tokens,
            "tokens_from": self.tokens_from,
            "request_throughput": self.request_throughput,
            "request_goodput": self.goodput,
            "output_throughput": self.output_throughput,
            "total_token_throughput": self._total_throughput(),
            "max_output_tokens_per_s": self.peak_tokens_per_second,
            "max_concurrent_requests": self.max_concurrent,
            "max_send_lag_ms": self.max_send_lag_ms,
            "generator_cpu": self.generator_cpu,
            "generator_late_ms": self.generator_late_ms,
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


def _spread_dict(spread: Spread) -> dict[str, float | None]:
    return {"n": spread.n, "mean": spread.mean, **{f"p{p}": v for p, v in spread.percentiles.items()}}
