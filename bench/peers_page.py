"""What `make bench-peers` measured, as one HTML file: tables, plots, and each peer's ratios with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from .compare import middle
from .html import document
from .html import measured as how_measured
from .html import table as level_table
from .peers_text import Measured
from .svg import Series, plot

#: (key of a level, title, unit)
_PLOTS = (
    ("output_throughput", "Tokens out a second against load", "tok/s out"),
    ("p50_ttft_ms", "Time to first token, median, against load", "ms"),
    ("p95_ttft_ms", "Time to first token, p95, against load", "ms"),
    ("p50_tpot_ms", "Time per output token, median, against load", "ms"),
)


def peers_page(measured: Sequence[Measured], ours: str, ratios: str, about: dict[str, Any]) -> str:
    """The report. ``ratios``: of ``ours`` to each peer, as text; ``about``: as in the record that is written beside it.
    Of several rounds every one has its line."""
    title = "Bireme bench: beside others"
    parts = [f"<h1>{escape(title)}</h1>"]
    if about["interrupted"]:
        parts.append('<p class="failed">INTERRUPTED: only what every server has ended is shown</p>')
    parts += [f'<p class="failed">{escape(note)}</p>' for note in about.get("notes", ())]
    failed = [f"{row.server}, {row.phase}: {row.level.failed_line()}" for row in measured if row.level.failures]
    parts += [f'<p class="failed">{escape(text)}</p>' for text in failed]
    for phase in dict.fromkeys(row.phase for row in measured):
        rows = [row for row in measured if row.phase == phase]
        parts.append(f"<h2>{escape(phase)} prompts</h2>")
        if len({row.concurrency for row in rows}) > 1:
            parts += ['<div class="plots">', *_plots(rows), "</div>"]
        parts.append(level_table([_line(row) for row in rows]))
    parts.append(f"<h2>Ratios to {escape(ours)}</h2><pre>{escape(ratios)}</pre>")
    return document(title, "".join([*parts, how_measured(about, _facts(about))]))


def _facts(about: dict[str, Any]) -> dict[str, str]:
    """Of each server how it was started, and what it held at the end."""
    found = {f"{label}: command": command for label, command in about["commands"].items()}
    held = about["memory_bytes"].items()
    return found | {f"{label}: resident at the end": f"{size / 2**20:.0f} MiB" for label, size in held}


def _line(row: Measured) -> dict[str, Any]:
    """A level as the tables take it, under a name that says whose it is."""
    return row.level.as_dict() | {"level": f"{row.server}, {row.concurrency} at once, round {row.round + 1}"}


def _plots(rows: Sequence[Measured]) -> list[str]:
    """One plot per figure, one line per server: the middle of its rounds."""
    found = []
    for key, title, unit in _PLOTS:
        series = []
        for server in dict.fromkeys(row.server for row in rows):
            users = sorted({row.concurrency for row in rows})
            series.append(Series(server, users, [_middle(rows, server, count, key) for count in users]))
        found.append(plot(title, "requests at once", unit, series))
    return found


def _middle(rows: Sequence[Measured], server: str, users: int, key: str) -> float | None:
    return middle([row.level for row in rows if row.server == server and row.concurrency == users], key)
