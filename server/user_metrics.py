"""Metrics by user. The label holds names that the operator gave and "other": nothing that clients send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .engine_metrics import LABELS, EngineSource
from .goodput import Goodput
from .users.directory import Directory
from .users.user import OTHER

USER_LABELS = (*LABELS, "user")
_USAGE = (
    ("bireme:user_prompt_tokens", "Prompt tokens, by user.", "prompt"),
    ("bireme:user_cached_tokens", "Prompt tokens that the prefix cache had, by user.", "cached"),
    ("bireme:user_generation_tokens", "Tokens generated, by user.", "output"),
    ("bireme:user_requests", "Requests answered, by user.", "requests"),
    ("bireme:user_rejected", "Requests answered 429, by user.", "rejected"),
)
_GOODPUT = (
    ("bireme:slo_requests", "Requests held to the objective.", "judged"),
    ("bireme:slo_ttft_met", "Requests whose first token came in time.", "ttft"),
    ("bireme:slo_tpot_met", "Requests whose further tokens came in time.", "tpot"),
    ("bireme:slo_met", "Requests that met the whole objective: the goodput.", "both"),
)


class UserCollector(Collector):
    """Reads what others count; counts nothing itself."""

    def __init__(self, model_name: str, directory: Directory, goodput: Goodput, source: EngineSource) -> None:
        self._model_name = model_name
        self._directory = directory
        self._goodput = goodput
        self._source = source

    def collect(self) -> Iterable[Metric]:
        usage, attained = self._directory.book.all(), self._goodput.users()
        for name, text, field in _USAGE:
            yield self._counter(name, text, [(user, getattr(one, field)) for user, one in usage])
        for name, text, field in _GOODPUT:
            yield self._counter(name, text, [(user, getattr(one, field)) for user, one in attained])
        counts = self._counts()
        for index, (name, text) in enumerate(
            (("running", "Sequences that run, by user."), ("waiting", "Sequences that wait, by user."))
        ):
            family = GaugeMetricFamily(f"bireme:user_requests_{name}", text, labels=USER_LABELS)
            for user, both in counts.items():
                family.add_metric((self._model_name, user), both[index])
            yield family

    def describe(self) -> Iterable[Metric]:
        return ()

    def _counter(self, name: str, text: str, values: Sequence[tuple[str, int]]) -> Metric:
        family = CounterMetricFamily(name, text, labels=USER_LABELS)
        for user, value in values:
            family.add_metric((self._model_name, user), value)
        return family

    def _counts(self) -> dict[str, tuple[int, int]]:
        """(running, waiting) of each known user, and of all others together."""
        known = self._directory.names
        found = dict.fromkeys((*known, OTHER), (0, 0))
        stats = self._source.stats
        for share, counts in stats.users.items() if stats is not None else ():
            label = share if share in found else OTHER
            found[label] = (found[label][0] + counts.running, found[label][1] + counts.waiting)
        return found
