"""What `make bench-peers` measured, as Markdown tables and as ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .compare import Pair, middle, pair_text
from .level import Level
from .machine import line

_HEAD = "| at once | server | tok/s out | ours / its | TTFT p50 | TTFT p95 | its / ours p50, p95 | TPOT p50 |"


@dataclass(frozen=True, slots=True)
class Measured:
    """What one server gave in one phase."""

    phase: str
    concurrency: int
    round: int
    server: str
    level: Level


def markdown(
    machine: dict[str, Any], measured: Sequence[Measured], titles: dict[str, str], memory: dict[str, int], ours: str
) -> str:
    """The tables, with what they were measured on. ``titles``: of each phase; ``ours``: whom others are held to."""
    rounds = len({row.round for row in measured})
    parts = [line(machine), ""]
    for phase, title in titles.items():
        rows = [row for row in measured if row.phase == phase]
        if rows:
            parts += [
                f"**{title}** (closed loop; rounds: {rounds}, the middle of each figure)",
                "",
                _table(rows, ours),
                "",
            ]
    used = ", ".join(f"{label} {size / 2**20:.0f} MiB" for label, size in memory.items())
    return "\n".join([*parts, f"Resident memory at the end: {used}."])


def paired(measured: Sequence[Measured], ours: str) -> str:
    """Ours over each peer, phase by phase: the middle of the rounds' ratios and their spread."""
    texts = []
    for label in dict.fromkeys(row.server for row in measured if row.server != ours):
        pairs = []
        for phase, users in dict.fromkeys((row.phase, row.concurrency) for row in measured):
            of = [row for row in measured if (row.phase, row.concurrency) == (phase, users)]
            levels = [tuple(row.level for row in of if row.server == one) for one in (ours, label)]
            pairs.append(Pair(f"{phase} prompts, {users} at once", *levels))
        texts.append(pair_text(pairs, (ours, label)))
    return "\n\n".join(texts)


def duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "n/a"
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"


def _table(rows: Sequence[Measured], ours: str) -> str:
    lines = [_HEAD + " failed | prompt tokens cached |", "|" + "---|" * 10]
    for concurrency in sorted({row.concurrency for row in rows}):
        group = [row for row in rows if row.concurrency == concurrency]
        own = [row.level for row in group if row.server == ours]
        for label in dict.fromkeys(row.server for row in sorted(group, key=lambda row: row.server)):
            levels = [row.level for row in group if row.server == label]
            lines.append(_row(concurrency, label, levels, own if label != ours else None))
    return "\n".join(lines)


def _row(concurrency: int, label: str, levels: Sequence[Level], own: Sequence[Level] | None) -> str:
    """``own``: our levels, to hold a peer's to; None where these are ours."""
    p50, p95 = (middle(levels, f"p{p}_ttft_ms") for p in (50, 95))
    rate, tpot = middle(levels, "output_throughput"), middle(levels, "p50_tpot_ms")
    faster = sooner = ""
    if own is not None:
        faster = _ratio(middle(own, "output_throughput"), rate)
        sooner = f"{_ratio(p50, middle(own, 'p50_ttft_ms'))}, {_ratio(p95, middle(own, 'p95_ttft_ms'))}"
    cells = [str(concurrency), label, f"{rate or 0:.1f}", faster, duration(p50), duration(p95), sooner]
    cells += ["n/a" if tpot is None else f"{tpot:.0f} ms", str(sum(level.failed for level in levels))]
    return "| " + " | ".join([*cells, _cached(levels)]) + " |"


def _cached(levels: Sequence[Level]) -> str:
    """The share of the prompts' tokens that came out of a cache, of levels whose server tells."""
    known = [
        (one.input_tokens, one.cached_tokens) for one in levels if one.input_tokens and one.cached_tokens is not None
    ]
    return f"{sum(cached for _, cached in known) / sum(tokens for tokens, _ in known):.0%}" if known else "n/a"


def _ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.2f}" if a and b else "n/a"
