"""Prometheus metrics: vLLM's names where the meaning is vLLM's, ``bireme:`` names for the rest. See docs/metrics.md."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..core.request import FinishReason
from ..core.slo import Slo
from .engine_metrics import LABELS, EngineCollector, EngineSource
from .goodput import Goodput
from .recent import Recent
from .record import RequestRecord
from .user_metrics import UserCollector
from .users.caller import Caller
from .users.directory import Directory

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

    def __init__(self, model_name: str, slo: Slo | None = None) -> None:
        self.model_name = model_name
        self.goodput = Goodput(slo)
        self.recent = Recent()
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
        self.prefill_time = self._histogram(
            "vllm:request_prefill_time_seconds", "First step on a request to its first token.", _FAST
        )
        self.decode_time = self._histogram("vllm:request_decode_time_seconds", "First token to last.", _LONG)
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

    def watch_users(self, directory: Directory, source: EngineSource) -> None:
        """Export what each user uses and has under way."""
        self.registry.register(UserCollector(self.model_name, directory, self.goodput, source))

    def record(self, prompt_tokens: int, request_id: str, caller: Caller | None = None) -> RequestRecord:
        return RequestRecord(self, prompt_tokens, request_id, caller)

    def ended(self, record: RequestRecord) -> None:
        """Count a request that is over."""
        assert record.reason is not None and record.ended_at is not None
        age = record.ended_at - record.arrived
        if record.first_at is not None:
            self.prefill_time.observe(max(0.0, record.first_at - record.arrived - (record.queue_seconds or 0.0)))
            self.decode_time.observe(record.last_at - record.first_at)
        if record.tpot is not None:
            self.tpot.observe(record.tpot)
        self.success.labels(self.model_name, record.reason.value).inc()
        self.e2e.observe(age)
        self.prompt_length.observe(record.prompt_tokens)
        self.output_length.observe(record.num_tokens)
        self.recent.add(record.ttft, record.tpot)
        self.goodput.judge(record.caller.label, record.reason, record.ttft, record.tpot, age)


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
