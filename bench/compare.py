"""Two runs side by side, and two servers measured in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .level import Level
from .results import ms

#: (key, for people, whether more is better)
FIGURES = (
    ("output_throughput", "tok/s out", True),
    ("request_throughput", "req/s", True),
    ("request_goodput", "good req/s", True),
    ("p50_ttft_ms", "TTFT p50 ms", False),
    ("p95_ttft_ms", "TTFT p95 ms", False),
    ("p50_tpot_ms", "TPOT p50 ms", False),
    ("p95_tpot_ms", "TPOT p95 ms", False),
    ("p95_e2el_ms", "E2E p95 ms", False),
    ("failed", "failed", False),
)


def compare(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Levels that both runs have, figure by figure, with the ratio of the second to the first."""
    names = (str(first.get("label") or "first"), str(second.get("label") or "second"))
    others = {level["level"]: level for level in second["levels"]}
    lines = []
    for level in first["levels"]:
        other = others.get(level["level"])
        if other is None:
            continue
        lines += [f"{level['loop']} loop, {level['level']}", f"  {'':<14}{names[0]:>16}{names[1]:>16}{'ratio':>10}"]
        for key, title, more in FIGURES:
            lines.append(_row(title, level.get(key), other.get(key), more))
    missing = {level["level"] for level in first["levels"]} ^ set(others)
    if missing:
        lines.append(f"Only one of the two has: {', '.join(sorted(missing))}")
    return "\n".join(line for line in lines if line)


def _row(title: str, a: float | None, b: float | None, more: bool) -> str:
    if a is None and b is None:
        return ""
    ratio = "n/a" if not a or b is None else f"{b / a:.2f}"
    word = "" if not a or b is None or a == b else ("  better" if (b > a) == more else "  worse")
    return f"  {title:<14}{ms(a):>16}{ms(b):>16}{ratio:>10}{word}"


@dataclass(frozen=True, slots=True)
class Pair:
    """The same load on two servers, as often as there were rounds; the order turned around each time."""

    name: str
    ours: tuple[Level, ...]
    theirs: tuple[Level, ...]

    def ratios(self, key: str) -> list[float]:
        """Ours over theirs, round by round, lowest first."""
        pairs = [(a.as_dict()[key], b.as_dict()[key]) for a, b in zip(self.ours, self.theirs, strict=True)]
        return sorted(a / b for a, b in pairs if a is not None and b)


def pair_text(pairs: Sequence[Pair], labels: tuple[str, str]) -> str:
    """Per level the middle ratio and its spread over the rounds."""
    lines = [f"{labels[0]} over {labels[1]}: the middle of the rounds' ratios (lowest to highest)"]
    for pair in pairs:
        lines.append(f"{pair.name}")
        for key, title, _ in FIGURES[:-1]:
            found = pair.ratios(key)
            if found:
                middle = found[(len(found) - 1) // 2]
                rounds = "1 round" if len(found) == 1 else f"{len(found)} rounds"
                lines.append(f"  {title:<14}{middle:>8.2f}  ({found[0]:.2f} to {found[-1]:.2f}, {rounds})")
        failed = [sum(level.failed for level in levels) for levels in (pair.ours, pair.theirs)]
        if any(failed):
            lines.append(f"  FAILED requests: {failed[0]} and {failed[1]}")
    return "\n".join(lines)


def middle(levels: Sequence[Level], key: str) -> float | None:
    """A figure's median over the rounds (the lower of two middle ones)."""
    known = sorted(value for level in levels if (value := level.as_dict()[key]) is not None)
    return float(known[(len(known) - 1) // 2]) if known else None
