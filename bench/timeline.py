"""The steps of a simulated run as a picture: who read a prompt, who decoded, which blocks each held."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .html import document
from .timed_backend import StepRecord

_WIDTH, _ROW, _LEFT = 1080, 9, 60


def timeline(title: str, records: Sequence[StepRecord]) -> str:
    """A page: one line per row of the engine, time to the right; a step's tooltip has its numbers."""
    if not records:
        return document(title, f"<h1>{escape(title)}</h1><p>No step was recorded.</p>")
    end = records[-1].start + records[-1].seconds
    scale = (_WIDTH - _LEFT) / max(end - records[0].start, 1e-9)
    used = sorted({row for record in records for row in record.rows})
    place = {row: index for index, row in enumerate(used)}
    parts = [_label(row, index) for row, index in place.items()]
    for number, record in enumerate(records):
        x = round(_LEFT + (record.start - records[0].start) * scale, 2)
        width = max(0.4, round(record.seconds * scale * 0.92, 2))
        for row, count, blocks in zip(record.rows, record.counts, record.blocks, strict=True):
            kind = "read" if count > 1 else "decode"
            what = f"reads {count} tokens" if count > 1 else "decodes"
            text = f"step {number}, {record.seconds * 1e3:.1f} ms, row {row} {what}; blocks {ranges(blocks)}"
            parts.append(
                f'<rect class="{kind}" x="{x}" y="{place[row] * _ROW + 1}" width="{width}" height="{_ROW - 2}">'
                f"<title>{escape(text)}</title></rect>"
            )
    style = "<style>.read{fill:#d6622a}.decode{fill:#2a78d6}</style>"
    key = (
        "<p>Orange: a prompt is read. Blue: a token is decoded. One line per running sequence; each step's tooltip "
        "names the row's blocks.</p>"
    )
    height = len(used) * _ROW + 20
    svg = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    about = f"<p>{len(records)} steps, {end - records[0].start:.2f} s of device time.</p>"
    return document(title, f"<h1>{escape(title)}</h1>{key}{about}{style}{svg}")


def ranges(blocks: Sequence[int]) -> str:
    """``3, 4, 5, 9`` as ``3-5, 9``: in their order."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _label(row: int, index: int) -> str:
    return f'<text x="{_LEFT - 6}" y="{index * _ROW + 8}" text-anchor="end" style="font-size:8px">row {row}</text>'
