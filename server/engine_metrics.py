"""The engine's own numbers as metrics: the latest it sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..core.stats import EngineStats

LABELS = ("model_name",)


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
    _Exported(
        "bireme:slo_refused",
        "Requests refused because their first token would have come too late.",
        lambda s: s.requests_unattainable,
        True,
    ),
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
