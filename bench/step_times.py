"""Where a step's time goes: whole steps of a backend, timed by operation, and the table of them."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, MutableMapping
from typing import Any

from .batches import make_batch

WARM_UP = 2  # steps that meet new shapes
WHOLE = {"seen": "all of it, one by one", "step": "a whole step"}

Column = dict[str, float]  # milliseconds by operation, of the "step", and of one "seen" operation by operation


def parser(about: str | None, sequences: list[int], context: int, chunks: list[int], steps: int) -> Any:
    """The options that all backends share, with these defaults. ``about``: the module's own words."""
    found = argparse.ArgumentParser(description=about.splitlines()[0] if about else None)
    found.add_argument("--model", default="demo")
    found.add_argument("--sequences", type=int, nargs="*", default=sequences)
    found.add_argument("--context", type=int, default=context, help="tokens of each decoding sequence")
    found.add_argument("--chunks", type=int, nargs="*", default=chunks, help="tokens of prompt chunks")
    found.add_argument("--steps", type=int, default=steps)
    return found


def profile(
    backend: Any,
    spent: MutableMapping[str, float],
    asked: argparse.Namespace,
    look: Callable[[bool], None] | None = None,
) -> dict[str, Column]:
    """A column for each kind of step that ``asked`` names: medians over its steps.

    ``spent`` is where the backend's operations note their seconds. ``look`` switches that on and off where it changes
    what a step takes: then plain steps are timed as well as those that are looked at.
    """
    kinds = {f"{count} decoding": (count, 1, asked.context) for count in asked.sequences}
    kinds |= {f"a prompt chunk of {count}": (1, count, count) for count in asked.chunks}
    return {name: _column(backend, spent, kind, asked.steps, look) for name, kind in kinds.items()}


def _column(
    backend: Any,
    spent: MutableMapping[str, float],
    kind: tuple[int, int, int],
    steps: int,
    look: Callable[[bool], None] | None,
) -> Column:
    batch = make_batch(*kind, backend.info.block_size)
    found: dict[str, list[float]] = defaultdict(list)
    for looking in (True,) if look is None else (False, True):
        if look is not None:
            look(looking)
        for turn in range(steps + WARM_UP):
            spent.clear()
            start = time.perf_counter()
            backend.submit(batch).wait()
            whole = time.perf_counter() - start
            times = {"step": whole} if not looking else {**spent, "step" if look is None else "seen": whole}
            for name, seconds in times.items() if turn >= WARM_UP else ():
                found[name].append(seconds * 1000)
    if look is not None:
        look(False)
    return {name: statistics.median(values) for name, values in found.items()}


def table(columns: dict[str, Column]) -> str:
    """Markdown: an operation a row, a kind of step a column; milliseconds, and shares of the step seen by operation."""
    names = sorted({name for column in columns.values() for name in column} - set(WHOLE))
    lines = ["| ms | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    wholes = [column.get("seen", column["step"]) for column in columns.values()]
    rows = {name: [column.get(name, 0.0) for column in columns.values()] for name in names}
    rest = [whole - sum(row[i] for row in rows.values()) for i, whole in enumerate(wholes)]
    for name, row in {**rows, "sampling, building the step, Python": rest}.items():
        cells = (f"{value:.2f} ({value / whole:.0%})" for value, whole in zip(row, wholes, strict=True))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name, title in WHOLE.items():
        if all(name in column for column in columns.values()):
            lines.append(f"| {title} | " + " | ".join(f"{column[name]:.2f}" for column in columns.values()) + " |")
    return "\n".join(lines)
