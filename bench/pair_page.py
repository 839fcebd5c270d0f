"""Two servers measured in turn, as one HTML file: ratios with their spread, tables of every round, plots."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from .compare import FIGURES, Pair, middle, pair_text
from .html import document, measured, table
from .svg import Series, plot

_PLOTTED = ("output_throughput", "request_goodput", "p50_ttft_ms", "p95_ttft_ms", "p50_tpot_ms", "p95_tpot_ms")


def pair_page(pairs: Sequence[Pair], labels: tuple[str, str], about: dict[str, Any], notes: Sequence[str]) -> str:
    """The report; ``labels`` are the servers' names."""
    title = f"Bireme bench: {labels[0]} beside {labels[1]}"
    parts = [f"<h1>{escape(title)}</h1>", *(f'<p class="failed">{escape(note)}</p>' for note in notes)]
    parts.append(f"<h2>Ratios</h2><pre>{escape(pair_text(pairs, labels))}</pre>")
    if len(pairs) > 1:
        parts += ['<div class="plots">', *_plots(pairs, labels), "</div>"]
    parts += ["<h2>Every round</h2>", table(_rows(pairs, labels))]
    parts.append("<p>Times are milliseconds, percentiles by nearest rank.</p>")
    return document(title, "".join([*parts, measured(about)]))


def _rows(pairs: Sequence[Pair], labels: tuple[str, str]) -> list[dict[str, Any]]:
    """A line per level, server and round, under a name that says which."""
    return [
        level.as_dict() | {"level": f"{label}, {pair.name}, round {number + 1}"}
        for pair in pairs
        for label, levels in zip(labels, (pair.ours, pair.theirs), strict=True)
        for number, level in enumerate(levels)
    ]


def _plots(pairs: Sequence[Pair], labels: tuple[str, str]) -> list[str]:
    """A plot per figure, a line per server: the middle of its rounds at each load."""
    known = [(x, pair) for pair in pairs if (x := pair.ours[0].load.x) is not None]
    placed = sorted(known, key=lambda place: place[0])
    titles = {key: title for key, title, _ in FIGURES}
    x_title = "requests at once" if pairs[0].ours[0].load.loop == "closed" else "requests a second"
    xs, found = [x for x, _ in placed], []
    for key in _PLOTTED:
        sides = ([middle(pair.ours, key) for _, pair in placed], [middle(pair.theirs, key) for _, pair in placed])
        if any(value is not None for side in sides for value in side):
            series = [Series(label, xs, side) for label, side in zip(labels, sides, strict=True)]
            found.append(plot(f"{titles[key]} against load", x_title, titles[key], series))
    return found
