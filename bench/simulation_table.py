"""Simulated levels side by side, as Markdown tables: policies, and users within them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .level import Level
from .simulation import Outcome


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """The policies side by side, as a Markdown table."""
    rows = []
    for one in outcomes:
        row = {"policy": one.policy, "load": one.level.load.name} | _figures(one.level)
        row |= {"KV mean": f"{one.kv_mean:.0%}", "KV peak": f"{one.kv_peak:.0%}", "preempted": str(one.preemptions)}
        rows.append(row | {"cached": f"{one.hit_rate:.0%}", "failed": str(one.level.failed)})
    return _table(rows)


def user_table(outcomes: Sequence[Outcome], weights: Mapping[str, float]) -> str:
    """What each user had under each policy, as a Markdown table."""
    rows = []
    for one in outcomes:
        for user, level in one.by_user.items():
            row = {"policy": one.policy, "load": one.level.load.name, "user": user, "weight": f"{weights[user]:g}"}
            rows.append(row | {"requests": str(level.completed)} | _figures(level) | {"failed": str(level.failed)})
    return _table(rows)


def _figures(level: Level) -> dict[str, str]:
    found = {"tok/s out": f"{level.output_throughput:.0f}", "req/s": f"{level.request_throughput:.2f}"}
    if level.goodput is not None:
        found["good req/s"] = f"{level.goodput:.2f}"
    for name in ("ttft", "tpot"):
        found |= {f"{name.upper()} p{p}": _ms(level.spreads[name].percentiles[p]) for p in (50, 95)}
    return found


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    head = list(rows[0]) if rows else []
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *(row.values() for row in rows))]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _ms(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value / 1e3:.1f} s" if value >= 10_000 else f"{value:.0f} ms"
