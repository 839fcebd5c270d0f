"""Prometheus metrics: vLLM's names where the meaning is vLLM's, ``bireme:`` names for the rest. See docs/metrics.md."""

from __future__ import annotations

import bisect
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..core.request import FinishReason
from ..core.stats import EngineStats

logger = logging.getLogger("bireme.server")

LABELS = ("model_name",)
_FAST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
)
_LONG = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5)


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series per counter, which nobody reads
        self.registry = CollectorRegistry()
        self.prompt_tokens = self._counter(
            "vllm:prompt_tokens", "Prompt tokens of requests that began to answer or ended."
        )
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.success = Counter(
            "vllm:request_success",
            "Requests ended, by reason: stop, length, abort, error.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        for reason in FinishReason:
            self.success.labels(model_name, reason.value)
        self.ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _FAST)
        self.itl = Tally("vllm:inter_token_latency_seconds", "Time between a request's tokens.", model_name, _ITL)
        self.registry.register(self.itl)
        self.tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "A request's mean time per token after its first.", _ITL
        )
        self.queue_time = self._histogram("vllm:request_queue_time_seconds", "Arrival to the first step on it.", _FAST)
        self.e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end, whatever the end.", _LONG)
        self.prompt_length = self._histogram("vllm:request_prompt_tokens", "Prompt tokens per request ended.", _TOKENS)
        self.output_length = self._histogram(
            "vllm:request_generation_tokens", "Output tokens per request ended.", _TOKENS
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry).labels(self.model_name)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, LABELS, buckets=buckets, registry=self.registry).labels(self.model_name)

    def watch(self, source: EngineSource) -> None:
        """Export the engine's own numbers too."""
        self.registry.register(EngineCollector(self.model_name, source))

    def record(self, prompt_tokens: int, request_id: str) -> RequestRecord:
        return RequestRecord(self, prompt_tokens, request_id)


class Tally(Collector):
    """A histogram fed on one thread, once per token: a tenth of the client library's cost."""

    def __init__(self, name: str, text: str, model_name: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._model_name = model_name
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # above the last bound: one more
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=LABELS)
        names = [*(repr(bound) for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, itertools.accumulate(self._counts), strict=True))
        family.add_metric((self._model_name,), buckets, self._sum)
        yield family


class RequestRecord:
    """One request's times and counts; each ends in exactly one reason, an abort included."""

    def __init__(self, metrics: Metrics, prompt_tokens: int, request_id: str) -> None:
        self._metrics = metrics
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.num_tokens = 0
        self.arrived = time.monotonic()
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.reason: FinishReason | None = None
        self._last_at = 0.0
        self._submitted = False
        self._refused = False

    def submitted(self) -> None:
        self._submitted = True

    def failed(self, status: int) -> None:
        """It ended with an HTTP error. One that the engine never took is no request for the metrics."""
        if status in (400, 429) and self.first_at is None:
            self._refused = True
        self.reason = FinishReason.ABORT if status == 503 else FinishReason.ERROR

    def queued(self, seconds: float) -> None:
        """It waited so long for the first step that worked on it."""
        self._metrics.queue_time.observe(seconds)

    def tokens(self, count: int) -> None:
        """``count`` tokens arrived now."""
        if not count:
            return
        now, metrics = time.monotonic(), self._metrics
        if self.first_at is None:
            self.first_at = now
            metrics.ttft.observe(now - self.arrived)
            metrics.prompt_tokens.inc(self.prompt_tokens)
        else:
            metrics.itl.observe((now - self._last_at) / count, count)
        self._last_at = now
        self.num_tokens += count
        metrics.generation_tokens.inc(count)

    def end(self, reasons: Sequence[FinishReason | None], cached_tokens: int) -> None:
        """The request is over; a choice without a reason was cut off."""
        if self.ended_at is not None or not self._submitted or self._refused:
            return
        self.ended_at = now = time.monotonic()
        if self.reason is None:
            cut = FinishReason.ABORT if None in reasons else None
            self.reason = cut or (FinishReason.LENGTH if FinishReason.LENGTH in reasons else FinishReason.STOP)
        metrics = self._metrics
        if self.first_at is None:
            metrics.prompt_tokens.inc(self.prompt_tokens)
        elif self.num_tokens > 1:
            metrics.tpot.observe((self._last_at - self.first_at) / (self.num_tokens - 1))
        metrics.success.labels(metrics.model_name, self.reason.value).inc()
        metrics.e2e.observe(now - self.arrived)
        metrics.prompt_length.observe(self.prompt_tokens)
        metrics.output_length.observe(self.num_tokens)
        self._log(cached_tokens)

    def _log(self, cached_tokens: int) -> None:
        """One line per request: numbers only, never what was asked or answered."""
        assert self.reason is not None and self.ended_at is not None
        first = "none" if self.first_at is None else f"{self.first_at - self.arrived:.3f} s"
        logger.info(
            "request %s: %s; prompt %d tokens (%d cached), output %d; first token %s, end %.3f s",
            self.request_id, self.reason.value, self.prompt_tokens, cached_tokens, self.num_tokens,
            first, self.ended_at - self.arrived,
        )  # fmt: skip


class EngineSource(Protocol):
    """Where the engine's own numbers come from: the latest the engine sent."""

    @property
    def stats(self) -> EngineStats | None: ...

    @property
    def deaths(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Exported:
    """One number of ``EngineStats`` under its metric name; a counter's name is given without ``_total``."""

    name: str
    text: str
    read: Callable[[EngineStats], float]
    counter: bool = False


EXPORTED = (
    _Exported("vllm:num_requests_running", "Sequences that run.", lambda s: s.running),
    _Exported("vllm:num_requests_waiting", "Sequences that wait.", lambda s: s.waiting),
    _Exported(
        "vllm:kv_cache_usage_perc", "Share of KV blocks held by running sequences, 0 to 1.", lambda s: s.kv_usage
    ),
    _Exported(
        "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda s: s.prompt_tokens, True
    ),
    _Exported("vllm:prefix_cache_hits", "Prompt tokens found there.", lambda s: s.prompt_tokens_cached, True),
    _Exported("vllm:num_preemptions", "Sequences put back to make room.", lambda s: s.preemptions, True),
    _Exported("bireme:engine_steps", "Steps of the engine.", lambda s: s.steps, True),
    _Exported("bireme:kv_blocks", "KV blocks in all.", lambda s: s.kv_blocks_total),
    _Exported("bireme:kv_blocks_live", "KV blocks held by running sequences.", lambda s: s.kv_blocks_live),
    _Exported("bireme:kv_blocks_cached", "KV blocks that only the prefix cache holds.", lambda s: s.kv_blocks_cached),
    _Exported("bireme:kv_blocks_free", "KV blocks that hold nothing.", lambda s: s.kv_blocks_free),
    _Exported(
        "bireme:kv_block_size_tokens", "Tokens per KV block: what prefix reuse counts in.", lambda s: s.block_size
    ),
)


class EngineCollector(Collector):
    """Exports the engine's latest statistics; nothing before it sent any."""

    def __init__(self, model_name: str, source: EngineSource) -> None:
        self._model_name = model_name
        self._source = source

    def collect(self) -> Iterable[Metric]:
        restarts = CounterMetricFamily("bireme:engine_restarts", "Times the engine process died.", labels=LABELS)
        restarts.add_metric((self._model_name,), float(self._source.deaths))
        yield restarts
        stats = self._source.stats
        if stats is None:
            return
        for one in EXPORTED:
            kind = CounterMetricFamily if one.counter else GaugeMetricFamily
            family = kind(one.name, one.text, labels=LABELS)
            family.add_metric((self._model_name,), float(one.read(stats)))
            yield family

    def describe(self) -> Iterable[Metric]:
        return ()
