"""Plots as inline SVG: lines and dots, nothing to load, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

#: A line's dashes, so that lines which lie on each other are all seen.
_DASHES = ("", "9 3", "5 4", "2 4")
COLOURS = ("#2a78d6", "#d6622a", "#2aa876", "#8a4fd0", "#c0392b", "#7f8c8d")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 520, 300, 62, 46, 30, 14


@dataclass(frozen=True, slots=True)
class Series:
    """One line, with a mark at each point unless ``marks`` is off, or with ``dots`` a cloud of points."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    dots: bool = False
    marks: bool = True


def plot(title: str, x_title: str, y_title: str, series: Sequence[Series]) -> str:
    """A figure. Both axes begin at 0; points without a value are left out."""
    points = [(x, y) for s in series for x, y in zip(s.xs, s.ys, strict=True) if y is not None]
    if not points:
        return f"<figure><figcaption>{escape(title)}: no data</figcaption></figure>"
    x_step, x_most = axis(max(x for x, _ in points))
    y_step, y_most = axis(max(y for _, y in points))
    inner = [_grid(x_step, x_most, y_step, y_most)]
    for index, one in enumerate(series):
        inner.append(_draw(one, index, x_most, y_most))
    inner.append(_legend(series))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    inner.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    inner.append(f'<text x="{_LEFT}" y="14">{escape(y_title)}</text>')
    body = "".join(inner)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{body}</svg></figure>'
    )


def axis(most: float) -> tuple[float, float]:
    """(step, end) of about five round steps that reach ``most``."""
    if most <= 0:
        return 1.0, 1.0
    raw = most / 5
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return step, step * -(-most // step)


def _x(value: float, most: float) -> float:
    return round(_LEFT + value / most * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(value: float, most: float) -> float:
    return round(_HEIGHT - _BOTTOM - value / most * (_HEIGHT - _BOTTOM - _TOP), 1)


def _grid(x_step: float, x_most: float, y_step: float, y_most: float) -> str:
    parts = []
    for i in range(round(y_most / y_step) + 1):
        y = _y(i * y_step, y_most)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{i * y_step:g}</text>')
    for i in range(round(x_most / x_step) + 1):
        x = _x(i * x_step, x_most)
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{i * x_step:g}</text>')
    return "".join(parts)


def _draw(one: Series, index: int, x_most: float, y_most: float) -> str:
    colour, dashes = COLOURS[index % len(COLOURS)], _DASHES[index % len(_DASHES)]
    points = [(_x(x, x_most), _y(y, y_most)) for x, y in zip(one.xs, one.ys, strict=True) if y is not None]
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="3"/>' for x, y in points) if one.dots or one.marks else ""
    corners = " ".join(f"{x},{y}" for x, y in points)
    line = "" if one.dots else f'<polyline stroke-dasharray="{dashes}" points="{corners}"/>'
    return f'<g fill="{colour}" stroke="{colour}" class="series">{line}{dots}</g>'


def _legend(series: Sequence[Series]) -> str:
    parts, x = [], _LEFT + 90
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<rect x="{x}" y="6" width="9" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{x + 13}" y="14">{escape(one.name)}</text>')
        x += 26 + 7 * len(one.name)
    return "".join(parts)
