"""The steps of a simulated run as a picture: who read a prompt, who decoded, which blocks each held."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .html import document
from .svg import Series, axis, plot
from .timed_backend import StepRecord

_WIDTH, _ROW, _LEFT, _TOP = 1080, 12, 60, 20
_STYLE = """<style>.read{fill:#d6622a}.decode{fill:#2a78d6}.key{display:inline-block;width:.8em;height:.8em;
margin:0 .4em 0 1em}.key.read{background:#d6622a}.key.decode{background:#2a78d6}</style>"""


def timeline(title: str, records: Sequence[StepRecord], num_blocks: int, basis: str = "") -> str:
    """A page: one line per row of the engine, time to the right; a step's tooltip has its numbers. ``num_blocks``: of
    the pool; ``basis``: what the figures stand on."""
    parts = [f"<h1>{escape(title)}</h1>", f"<p>Simulated, not measured: {escape(basis)}.</p>" if basis else ""]
    if not records:
        return document(title, "".join([*parts, "<p>No step was recorded.</p>"]))
    seconds = records[-1].start + records[-1].seconds - records[0].start
    parts.append(f"<p>The first {len(records)} steps, {seconds:.2f} s of device time.")
    parts.append('<span class="key read"></span>a prompt is read<span class="key decode"></span>a token is decoded</p>')
    parts.append("<p>One line per running sequence; each step's tooltip names the row's blocks.</p>")
    return document(title, "".join([_STYLE, *parts, _rows(title, records), _plots(records, num_blocks)]))


def _rows(title: str, records: Sequence[StepRecord]) -> str:
    start = records[0].start
    step, end = axis(records[-1].start + records[-1].seconds - start)
    scale = (_WIDTH - _LEFT - 20) / end
    place = {row: index for index, row in enumerate(sorted({row for record in records for row in record.rows}))}
    height = _TOP + len(place) * _ROW
    parts = [_tick(i * step, round(_LEFT + i * step * scale, 1), height) for i in range(round(end / step) + 1)]
    parts += [_label(row, index) for row, index in place.items()]
    for number, record in enumerate(records):
        x = round(_LEFT + (record.start - start) * scale, 2)
        width = max(0.4, round(record.seconds * scale - 0.4, 2))
        for row, count, blocks in zip(record.rows, record.counts, record.blocks, strict=True):
            kind = "read" if count > 1 else "decode"
            what = f"reads {count} tokens" if count > 1 else "decodes"
            text = f"step {number}, {record.seconds * 1e3:.1f} ms, row {row} {what}; blocks {ranges(blocks)}"
            parts.append(
                f'<rect class="{kind}" x="{x}" y="{_TOP + place[row] * _ROW + 1}" width="{width}" height="{_ROW - 2}">'
                f"<title>{escape(text)}</title></rect>"
            )
    box = f'viewBox="0 0 {_WIDTH} {height + 4}" role="img" aria-label="{escape(title)}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def _plots(records: Sequence[StepRecord], num_blocks: int) -> str:
    """What the steps held and did, over time."""
    start = records[0].start
    times = [record.start - start for record in records]
    held = [float(len({block for blocks in record.blocks for block in blocks})) for record in records]
    read = [float(sum(count for count in record.counts if count > 1)) for record in records]
    decoded = [float(sum(count == 1 for count in record.counts)) for record in records]
    title = f"KV blocks held, of {num_blocks:,}"
    return (
        '<div class="plots">'
        + plot(title, "seconds", "blocks", [Series("held", times, held, marks=False)])
        + plot(
            "Tokens in a step",
            "seconds",
            "tokens",
            [Series("decoded", times, decoded, dots=True), Series("of prompts", times, read, dots=True)],
        )
        + "</div>"
    )


def ranges(blocks: Sequence[int]) -> str:
    """``3, 4, 5, 9`` as ``3-5, 9``: in their order."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _tick(seconds: float, x: float, height: int) -> str:
    line = f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 4}" y2="{height}"/>'
    return f'{line}<text x="{x}" y="{_TOP - 8}" text-anchor="middle">{seconds:g} s</text>'


def _label(row: int, index: int) -> str:
    y = _TOP + index * _ROW + _ROW - 3
    return f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end" style="font-size:9px">row {row}</text>'
