"""A whole run as one record: JSON to keep, text to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .level import LATENCIES, PERCENTILES, Level, Load


@dataclass(slots=True)
class Run:
    """Everything about a run but the levels is plain JSON."""

    label: str
    about: dict[str, Any]  # machine, command, server, data
    levels: list[Level] = field(default_factory=list)
    best: Load | None = None  # what a search found

    def as_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            **self.about,
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
        raise ValueError(f"{path} is no result of `bireme bench serve`: it has no levels")
    return found


def ms(value: float | None) -> str:
    """Milliseconds for people."""
    if value is None:
        return "n/a"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def level_text(level: Level) -> str:
    """The table of one level."""
    lines = [
        f"{level.load.about}, {level.load.name}: {level.completed} completed, {level.failed} failed "
        f"({level.rejected} rejected) in {level.duration:.2f} s",
        f"  output {level.output_throughput:.1f} tok/s (peak {level.peak_tokens_per_second:.1f}), "
        f"{level.request_throughput:.2f} req/s; {level.input_tokens} tokens in ({level.cached_tokens} cached), "
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


def warnings(levels: Sequence[Level], busy: float) -> list[str]:
    """What a reader must know before believing the figures."""
    found = []
    for level in levels:
        if level.generator_cpu > busy:
            found.append(
                f"{level.load.name}: the load generator used {level.generator_cpu:.0%} of a core; it may be the "
                "bottleneck, so the server may be faster than these figures"
            )
        if level.tokens_from == "chunks" and level.completed:
            found.append(f"{level.load.name}: the server sends no usage; chunks are counted, which may not be tokens")
    return found
