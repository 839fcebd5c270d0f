"""A level summed up out of its samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .ask import Sample
from .level import Level, Load, Spread
from .objective import Objective, values_ms


def summarise(
    samples: Sequence[Sample],
    load: Load,
    objective: Objective | None = None,
    generator_cpu: float = 0.0,
    generator_late_ms: float = 0.0,
    unfinished: int = 0,
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
        input_tokens=_known(sample.prompt_tokens for sample in good),
        output_tokens=sum(sample.output_tokens for sample in good),
        cached_tokens=_known(sample.cached_tokens for sample in good),
        tokens_from=_tokens_from(good),
        spreads=_spreads(good),
        output_lengths=Spread.of([sample.output_tokens for sample in good]),
        peak_tokens_per_second=_peak(good, start, duration),
        max_concurrent=_most_at_once(samples),
        max_send_lag_ms=max((s.sent - s.due for s in samples), default=0.0) * 1e3,
        attainment=None if objective is None else objective.attainment(samples),
        generator_cpu=generator_cpu,
        generator_late_ms=generator_late_ms,
        series=_series(good, start),
        unasked=sum(sample.unasked for sample in samples),
        unfinished=unfinished,
    )


def _tokens_from(good: Sequence[Sample]) -> str:
    if any(sample.tokens is None for sample in good):
        return "chunks"
    return "tokenizer" if any(sample.counted for sample in good) else "usage"


def _known(counts: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None where none of them is."""
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if known or not found else None


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
