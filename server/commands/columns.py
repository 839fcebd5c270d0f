"""Rows as text in columns: each as wide as what is in it, so that no cell is broken, in a pipe either."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
    """``rows`` below ``head``; the columns numbered in ``right`` are set to the right."""
    lines = (head, *rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
