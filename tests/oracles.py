"""What the simulated model tells of a prompt: one token after another, without blocks or batches."""

from __future__ import annotations

import numpy as np

from bireme.backends.sim.contents import entry, hidden, score, weight
from bireme.core.pooling import Pooling

_MASK = (1 << 64) - 1


def entries_of(prompt: list[int]) -> np.ndarray:
    context, entries = 0, []
    for position, token in enumerate(prompt):
        entries.append(entry(context, token, position))
        context = (context + weight(position) * entries[-1]) & _MASK
    return np.array(entries, np.uint64)


def scores_of(prompt: list[int]) -> list[float]:
    return score(entries_of(prompt)[:-1], np.array(prompt[1:], np.int32)).tolist()


def pooled_alone(prompt: list[int], pooling: Pooling) -> np.ndarray:
    states = hidden(entries_of(prompt)).astype(np.float64)
    return (states.mean(0) if pooling == "mean" else states[-1]).astype(np.float32)
