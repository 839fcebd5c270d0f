"""A whole run as one record: JSON to keep, text to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .level import LATENCIES, PERCENTILES, Level, Load

#: A generator that uses more of its core than this may be what limits the figures.
BUSY = 0.8
#: Milliseconds that requests may be sent later than due, by p99, before a reader is told.
SENT_LATE_MS = 50.0
#: Milliseconds that the generator's own event loop may be late, by p95, before a reader is told.
LATE_MS = 20.0


@dataclass(slots=True)
class Run:
    """Everything about a run but the levels is plain JSON."""

    label: str
    about: dict[str, Any]  # machine, command, server, data
    levels: list[Level] = field(default_factory=list)
    best: Load | None = None  # what a search found
    interrupted: bool = False  # by Ctrl-C

    def as_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            **self.about,
            "interrupted": self.interrupted,
            "best": None if self.best is None else {"load": self.best.name, "x": self.best.x, "loop": self.best.loop},
            "levels": [{"level": level.load.name, "x": level.load.x} | level.as_dict() for level in self.levels],
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=1, default=str), encoding="utf-8")


def read_run(path: Path) -> dict[str, Any]:
    """A run as ``write`` left it.

    Raises:
        ValueError: no such file, or another one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no result of `bireme bench serve`: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("levels"), list):
        why = "of its own: it is a paired run" if isinstance(found, dict) and "runs" in found else "in it"
        raise ValueError(f"{path} is no result of `bireme bench serve`: it has no levels {why}")
    if not all(isinstance(level, dict) and {"level", "loop"} <= level.keys() for level in found["levels"]):
        raise ValueError(f"{path} is no result of `bireme bench serve`: its levels don't say which load they had")
    return found


def load_of(level: dict[str, Any]) -> str:
    """A recorded level's load with all that shaped it: levels that have this in common were asked alike."""
    terms = [f"{level['loop']} loop"]
    terms += [f"{level['ramp_up_strategy']} ramp"] if "ramp_up_strategy" in level else []
    if level["loop"] == "open":
        terms += [f"burstiness {level['burstiness']}"] if level.get("burstiness", 1) != 1 else []
        terms += [f"no more than {level['max_concurrency']} at once"] if level.get("max_concurrency") else []
    return ", ".join([*terms, level["level"]])


def ms(value: float | None) -> str:
    """Milliseconds for people."""
    if value is None:
        return "n/a"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def level_text(level: Level) -> str:
    """The table of one level."""
    lines = [
        f"{level.load.about}, {level.load.name}: {level.completed} completed, {level.failed} failed "
        f"({level.rejected} rejected) in {level.duration:.2f} s{_unfinished(level)}",
        f"  output {level.output_throughput:.1f} tok/s (peak {level.peak_tokens_per_second:.1f}), "
        f"{level.request_throughput:.2f} req/s; {_tokens_in(level)}, "
        f"{level.output_tokens} out (from {level.tokens_from}), "
        f"{ms(level.output_lengths.mean)} each; at most {level.max_concurrent} at once",
        f"  {'ms':<15}{'n':>8}{'mean':>10}" + "".join(f"{f'p{p}':>10}" for p in PERCENTILES),
    ]
    if not level.completed:
        lines = lines[:1]
    for name, title in LATENCIES.items():
        spread = level.spreads[name]
        if spread.n:
            cells = "".join(f"{ms(spread.percentiles[p]):>10}" for p in PERCENTILES)
            lines.append(f"  {title:<15}{spread.n:>8}{ms(spread.mean):>10}{cells}")
    if level.load.loop == "open":
        queue = level.spreads["client_queue_time"]
        lines.append(f"  sent later than due: p99 {ms(queue.percentiles[99])} ms, most {ms(level.max_send_lag_ms)} ms")
    if level.attainment is not None:
        each = ", ".join(f"{name} {share:.1%}" for name, share in level.attainment.by_metric.items())
        lines.append(
            f"  goodput {level.goodput or 0:.2f} req/s; objective met by {level.attainment.share:.1%} ({each})"
        )
    if level.failures:
        lines.append(f"  {level.failed_line()}")
    return "\n".join(lines)


def _unfinished(level: Level) -> str:
    if not level.unfinished:
        return ""
    return f"; INTERRUPTED: {level.unfinished} more had not begun or not ended, and are left out"


def _tokens_in(level: Level) -> str:
    if level.input_tokens is None:
        return "tokens in: the server doesn't say"
    cached = "cached: the server doesn't say" if level.cached_tokens is None else f"{level.cached_tokens} cached"
    return f"{level.input_tokens} tokens in ({cached})"


def warnings(levels: Sequence[Level], repeats: bool = False) -> list[str]:
    """What a reader must know before believing the figures. ``repeats``: no prompt should have been seen before."""
    found = []
    for level in levels:
        if level.generator_cpu > BUSY:
            found.append(
                f"{level.load.name}: the load generator used {level.generator_cpu:.0%} of a core; it may be the "
                "bottleneck, so the server may be faster than these figures"
            )
        if level.generator_late_ms > LATE_MS:
            found.append(
                f"{level.load.name}: the load generator ran {ms(level.generator_late_ms)} ms late (p95), for it was "
                "busy or had no core to itself: latencies are no finer than that, and the server may be faster"
            )
        late = level.spreads["client_queue_time"].percentiles[99]
        if level.load.loop == "open" and level.load.concurrency is None and late is not None and late > SENT_LATE_MS:
            found.append(
                f"{level.load.name}: requests were sent up to {ms(level.max_send_lag_ms)} ms later than due; the load "
                "generator did not keep up, and the latencies hold that wait too"
            )
        if level.tokens_from == "chunks" and level.completed:
            found.append(f"{level.load.name}: the server sends no usage; chunks are counted, which may not be tokens")
        elif level.tokens_from == "tokenizer":
            found.append(
                f"{level.load.name}: the server sends no usage; answers' tokens are --tokenizer's of their text"
            )
        if level.unasked:
            found.append(f"{level.load.name}: {level.unasked} turns were not asked, as one before them had failed")
    seen = [one for one in levels if one.cached_tokens and one.cached_tokens > (one.input_tokens or 0) / 2]
    if repeats and seen:
        names = ", ".join(dict.fromkeys(level.load.name for level in seen))
        found.append(
            f"{names}: most prompt tokens came out of a prefix cache; another --seed makes prompts it has not seen"
        )
    return found
