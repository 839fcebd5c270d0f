"""A cost model out of a measured run, so that what was not measured can be simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..planner.work import StepWork
from .level import Level
from .timed_backend import LinearCost

_BEYOND = 1.25  # times what was measured: random lengths, and requests that overlap, go somewhat further
_TERMS = ([0, 1, 2], [0, 1], [1, 2], [1], [0, 2])


def fit_run(run: dict[str, Any]) -> LinearCost:
    """Fit base, per token and per pair to the closed-loop levels of a result of `bireme bench serve`.

    A level's time is its steps times the base, its tokens, and the pairs its attention covered; errors count relative
    to the level's time, no term is negative. Steps are reckoned as output tokens over users: exact where every user
    always has a request running, which a closed loop of many requests nearly is.

    Raises:
        ValueError: fewer than two closed-loop levels, or none that knows how long its prompts were.
    """
    rows, times = [], []
    for level in run["levels"]:
        if level["loop"] == "closed" and level["completed"] and not level["failed"]:
            if level["total_input_tokens"] is None:
                raise ValueError(
                    "the server sent no usage, so nobody knows how long the prompts were; there is no fit without"
                )
            rows.append(_row(level))
            times.append(float(level["duration"]))
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} closed-loop levels without failures; a fit needs two or more concurrencies")
    scaled = np.array(rows) / np.array(times)[:, None]
    best, found = float("inf"), [0.0, 0.0, 0.0]
    for columns in _TERMS:
        if len(columns) > len(rows):
            continue
        terms = np.linalg.lstsq(scaled[:, columns], np.ones(len(rows)), rcond=1e-12)[0]
        error = float(((scaled[:, columns] @ terms - 1) ** 2).sum())
        if (terms >= 0).all() and error < best * (1 - 1e-6):
            best, found = error, [0.0, 0.0, 0.0]
            for column, value in zip(columns, terms, strict=True):
                found[column] = float(value)
    if best == float("inf"):
        raise ValueError("no cost model fits these levels: their times do not grow with their work")
    return LinearCost(*found)


def fit_front(run: dict[str, Any], cost: LinearCost) -> float:
    """Seconds that the server's HTTP side takes for a request: what the median first token at the lowest concurrency
    waited for beyond the step that read its prompt. At least 0."""
    closed = [level for level in run["levels"] if level["loop"] == "closed" and level["completed"]]
    level = min(closed, key=lambda one: float(one["max_concurrency"]))
    prompt = float(np.mean(level["series"]["input_tokens"])) - (level["total_cached_tokens"] or 0) / level["completed"]
    return max(0.0, float(level["median_ttft_ms"]) / 1e3 - cost(StepWork.prompt(round(prompt))))


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a fit's levels go; beyond that it is a guess."""

    prompt_tokens: int
    users: int

    @classmethod
    def of(cls, run: dict[str, Any]) -> Reach:
        closed = [level for level in run["levels"] if level["loop"] == "closed" and level["completed"]]
        longest = max(max(level["series"]["input_tokens"], default=0) for level in closed)
        return cls(int(longest), max(int(level["max_concurrency"]) for level in closed))

    def notes(self, level: Level) -> list[str]:
        """Where ``level`` is well beyond."""
        longest = max(level.series["input_tokens"], default=0)
        found = []
        if longest > _BEYOND * self.prompt_tokens:
            found.append(
                f"prompts of {longest:,.0f} tokens are simulated, and {self.prompt_tokens:,} were the most measured"
            )
        if level.max_concurrent > _BEYOND * self.users:
            found.append(
                f"{level.max_concurrent} requests at once are simulated, and {self.users} were the most measured"
            )
        return [f"{text}: step times are guessed from those" for text in found]


def _row(level: dict[str, Any]) -> tuple[float, float, float]:
    """(steps, tokens computed, pairs) of a level."""
    series = level["series"]
    inputs, outputs = np.array(series["input_tokens"]), np.array(series["output_tokens"])
    cached = (level["total_cached_tokens"] or 0) / max(1.0, float(inputs.sum()))
    fresh = inputs * (1 - cached)
    pairs = fresh * (inputs - fresh / 2) + outputs * (inputs + outputs / 2)
    steps = float(outputs.sum()) / float(level["max_concurrency"])
    return steps, float(fresh.sum() + outputs.sum()), float(pairs.sum())
