"""Two runs side by side, and two servers measured in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .level import Level
from .percentile import percentile
from .results import load_of, ms

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


def compare(first: dict[str, Any], second: dict[str, Any], paths: Sequence[str] = ("first", "second")) -> str:
    """Levels that both runs have, figure by figure, with the ratio of the second to the first. ``paths``: what the runs
    are called where their labels don't tell them apart.

    Raises:
        ValueError: they have no level in common.
    """
    names = [str(run.get("label") or path) for run, path in zip((first, second), paths, strict=True)]
    if names[0] == names[1]:
        names = list(paths)
    others = {load_of(level): level for level in second["levels"]}
    shared = [level for level in first["levels"] if load_of(level) in others]
    missing = sorted({load_of(level) for level in first["levels"]} ^ set(others))
    if not shared:
        raise ValueError(f"the two have no level in common; one or the other has: {', '.join(missing)}")
    lines, width = _differences(first, second), max(16, *(len(name) + 2 for name in names))
    for level in shared:
        other = others[load_of(level)]
        lines += [load_of(level), f"  {'':<14}{names[0]:>{width}}{names[1]:>{width}}{'ratio':>10}"]
        lines += [_row(title, level.get(key), other.get(key), more, width) for key, title, more in FIGURES]
        for name, one in zip(names, (level, other), strict=True):
            if one.get("unfinished"):
                lines.append(f"  {name} was interrupted: {one['unfinished']} of its requests are left out")
    if missing:
        lines.append(f"Only one of the two has: {', '.join(missing)}")
    return "\n".join(line for line in lines if line)


#: Options that a level's own name holds, or that change nothing in what is asked.
_UNSAID = frozenset(
    "concurrency request_rate burstiness max_concurrency ramp_up_strategy ramp_up_start_rps ramp_up_end_rps json_path "
    "html_path label url model rounds find_goodput".split()
)


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What else differs between the runs, so that nobody takes it for the servers' doing."""
    sides = [
        {key: value for key, value in run.get("options", {}).items() if key not in _UNSAID}
        | {"model": run.get("model_id"), "machine": run.get("machine", {}).get("cpu")}
        for run in (first, second)
    ]
    keys = [key for key in dict.fromkeys([*sides[0], *sides[1]]) if sides[0].get(key) != sides[1].get(key)]
    said = "; ".join(f"{key.replace('_', '-')} {sides[0].get(key)} and {sides[1].get(key)}" for key in keys)
    return [f"They differ in more than the load: {said}"] if said else []


def _row(title: str, a: float | None, b: float | None, more: bool, width: int) -> str:
    if a is None and b is None:
        return ""
    ratio = "n/a" if not a or b is None else f"{b / a:.2f}"
    word = "" if a is None or b is None or a == b else ("  better" if (b > a) == more else "  worse")
    return f"  {title:<14}{ms(a):>{width}}{ms(b):>{width}}{ratio:>10}{word}"


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
                median = percentile(found, 50)
                rounds = "1 round" if len(found) == 1 else f"{len(found)} rounds"
                word = "  says nothing: the spread crosses 1" if found[0] < 1 < found[-1] else ""
                lines.append(f"  {title:<14}{median:>8.2f}  ({found[0]:.2f} to {found[-1]:.2f}, {rounds}){word}")
        failed = [sum(level.failed for level in levels) for levels in (pair.ours, pair.theirs)]
        if any(failed):
            lines.append(f"  FAILED requests: {failed[0]} and {failed[1]}")
    return "\n".join(lines)


def middle(levels: Sequence[Level], key: str) -> float | None:
    """A figure's median over the rounds (the lower of two middle ones)."""
    return percentile([value for level in levels if (value := level.as_dict()[key]) is not None], 50)
