"""A run as one HTML file that needs nothing else: tables and plots, to be kept beside the JSON or sent around."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .level import LATENCIES, PERCENTILES
from .results import load_of
from .svg import Series, plot

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; display: block;
  overflow-x: auto; margin: 1em 0; }
th, td { padding: .25em .5em; text-align: right; border-bottom: 1px solid #8885; white-space: nowrap; }
th { vertical-align: bottom; white-space: normal; }
table.facts { font-size: 14px; } table.facts td { text-align: left; white-space: normal; border: 0; }
table.facts td:first-child { white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
.plots { margin-top: 1em; display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 1em; }
figure { margin: 0; } figcaption { font-weight: 600; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
svg .grid { stroke: #8884; } svg .series polyline { fill: none; stroke-width: 2; }
svg .series circle { stroke: none; fill-opacity: .75; }
summary { cursor: pointer; }
.headline { font-size: 1.3em; } .failed { color: #c0392b; font-weight: 600; }
pre { white-space: pre-wrap; font-size: 12px; }
"""
_COLUMNS = (
    ("completed", "completed", 0),
    ("failed", "failed", 0),
    ("output_throughput", "tok/s out", 1),
    ("request_throughput", "req/s", 2),
    ("request_goodput", "good req/s", 2),
    ("slo_attainment", "met", 3),
    *((f"met_{name}", f"{title} met", 3) for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E"))),
    *(
        (f"p{p}_{name}_ms", f"{title} p{p}", 1)
        for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E"))
        for p in (50, 95, 99)
    ),
)
#: What was asked and given in all: folded away under the report's table.
_TOTALS = (
    ("num_prompts", "sent", 0),
    ("completed", "completed", 0),
    ("failed", "failed", 0),
    ("rejected", "of them rejected", 0),
    ("unasked", "turns not asked", 0),
    ("unfinished", "not ended (interrupted)", 0),
    ("total_input_tokens", "tokens in", 0),
    ("total_cached_tokens", "of them cached", 0),
    ("total_output_tokens", "tokens out", 0),
    ("duration", "seconds", 2),
    ("max_send_lag_ms", "sent late at most, ms", 1),
    ("generator_cpu", "generator's share of a core", 2),
    ("generator_late_ms", "generator late, ms (p95)", 1),
)


def page(run: dict[str, Any], headline: str = "", notes: Sequence[str] = ()) -> str:
    """The report of a run (as its JSON has it)."""
    title = f"Bireme bench: {run.get('label') or 'a run'}"
    levels = run["levels"]
    parts = [f"<h1>{escape(title)}</h1>"]
    if headline:
        parts.append(f'<p class="headline">{escape(headline)}</p>')
    parts += [f'<p class="failed">{escape(note)}</p>' for note in notes]
    ordered = sorted(levels, key=lambda level: level["x"] or float("inf"))
    parts += [table(ordered), "<p>Times are milliseconds, percentiles by nearest rank.</p>", _details(ordered)]
    parts += ['<div class="plots">', *_plots(ordered), "</div>"]
    about = {key: value for key, value in run.items() if key not in ("levels", "label", "best")}
    return document(title, "".join([*parts, measured(about)]))


def measured(about: dict[str, Any], facts: Mapping[str, str] | None = None) -> str:
    """What was measured where, as a section: the machine and the command first, all options folded away. ``facts``:
    further rows, by their names."""
    machine = about["machine"]
    rows = [("command", machine["command"]), ("date", machine["date"]), ("machine", _machine_line(machine))]
    rows += [("versions", ", ".join(f"{name} {version}" for name, version in machine["packages"].items()))]
    rows += [(name, about[key]) for key, name in (("model_id", "model"), ("url", "server")) if about.get(key)]
    rate = about.get("generator_chunks_per_second")
    rows += [("load generator", f"at most {rate:,} chunks a second on a core of this machine")] if rate else []
    rows += (facts or {}).items()
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(text))}</td></tr>" for name, text in rows)
    options = escape(json.dumps(about.get("options", {}), indent=1, default=str))
    fold = f"<details><summary>All options</summary><pre>{options}</pre></details>"
    return f'<h2>How it was measured</h2><table class="facts">{body}</table>{fold}'


def _machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['logical_cores']} logical cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}; commit {machine['commit']}; load average at the start "
        f"{machine['load_average']}"
    )


def document(title: str, body: str) -> str:
    """A whole page around ``body``."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def table(levels: Sequence[dict[str, Any]], wanted: Sequence[tuple[str, str, int]] = _COLUMNS) -> str:
    """One row per level; columns (key, title, digits) that no level has are left out."""
    levels = [level | _met(level) for level in levels]
    columns = [column for column in wanted if any(level.get(column[0]) is not None for level in levels)]
    head = "".join(f"<th>{escape(title)}</th>" for _, title, _ in columns)
    rows = []
    for level in levels:
        cells = "".join(f"<td>{_cell(level.get(key), digits)}</td>" for key, _, digits in columns)
        rows.append(f"<tr><td>{escape(load_of(level))}</td>{cells}</tr>")
    return f"<table><tr><th>load</th>{head}</tr>{''.join(rows)}</table>"


def _met(level: dict[str, Any]) -> dict[str, float]:
    """How often each bound of the objective was met; where there is but one, the whole says it."""
    shares = level.get("slo_attainment_by_metric") or {}
    return {f"met_{name}": share for name, share in shares.items()} if len(shares) > 1 else {}


def _details(levels: Sequence[dict[str, Any]]) -> str:
    """Every latency of every level with its mean and all its percentiles, and the tokens; folded away."""
    names = ("n", "mean", *(f"p{p}" for p in PERCENTILES))
    rows = []
    for level in levels:
        for name, title in (LATENCIES | {"client_queue_time": "sent later than due"}).items():
            values = [level.get(f"{kind}_{name}" if kind == "n" else f"{kind}_{name}_ms") for kind in names]
            cells = "".join(f"<td>{_cell(value, int(i > 0))}</td>" for i, value in enumerate(values))
            rows.append(f"<tr><td>{escape(str(level['level']))}, {title}</td>{cells}</tr>")
        lengths = [(level.get("output_lengths") or {}).get(kind) for kind in names]
        cells = "".join(f"<td>{_cell(value, 0)}</td>" for value in lengths)
        rows.append(f"<tr><td>{escape(str(level['level']))}, tokens out of a request</td>{cells}</tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    body = f"{table(levels, _TOTALS)}<table><tr><th>ms, or tokens</th>{head}</tr>{''.join(rows)}</table>"
    return f"<details><summary>All totals, latencies and lengths</summary>{body}</details>"


def _cell(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:,.{digits}f}"


def _plots(levels: Sequence[dict[str, Any]]) -> list[str]:
    if not levels:
        return []
    last = levels[-1].get("series") or {}
    starts, ttfts = last.get("start", []), last.get("ttft_ms", [])
    over_time = plot(
        f"TTFT over time, {levels[-1]['level']}", "seconds", "ms", [Series("TTFT", starts, ttfts, dots=True)]
    )
    ordered = [level for level in levels if level["x"] is not None]
    if not ordered:
        return [over_time]
    xs = [float(level["x"]) for level in ordered]
    x_title = "requests at once" if ordered[0]["loop"] == "closed" else "requests a second"

    def of(key: str) -> list[float | None]:
        return [level.get(key) for level in ordered]

    def percentiles(name: str) -> list[Series]:
        return [Series(f"p{p}", xs, of(f"p{p}_{name}_ms")) for p in (50, 90, 95, 99)]

    rates = [Series("completed", xs, of("request_throughput")), Series("good", xs, of("request_goodput"))]
    return [
        plot("Time to first token against load", x_title, "ms", percentiles("ttft")),
        plot("Time per output token against load", x_title, "ms", percentiles("tpot")),
        plot("Throughput against load", x_title, "tok/s out", [Series("tokens", xs, of("output_throughput"))]),
        plot("Goodput against load", x_title, "req/s", rates),
        over_time,
    ]
