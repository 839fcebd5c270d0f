"""What one step of an engine has to do, as far as its time depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepWork:
    """The tokens computed and the sequences they belong to."""

    reaches: NDArray[np.integer[Any]]  # [T]: of each token, itself and those before it
    contexts: NDArray[np.integer[Any]]  # [S]: of each sequence, its tokens with those of the step
    times: int = 1  # so many alike

    @classmethod
    def prompt(cls, tokens: int) -> StepWork:
        """One that reads a prompt from its beginning to its end."""
        return cls(np.arange(1, tokens + 1), np.array([tokens]))

    @property
    def tokens(self) -> int:
        return self.times * len(self.reaches)

    @property
    def sequences(self) -> int:
        return self.times * len(self.contexts)

    def pairs(self, window: int | None = None) -> int:
        """Of query and key, where a token attends to ``window`` tokens at most."""
        return self.times * _sum(self.reaches, window)

    def held(self, window: int | None = None) -> int:
        """Tokens of context that are attended to."""
        return self.times * _sum(self.contexts, window)


def _sum(counts: NDArray[np.integer[Any]], most: int | None) -> int:
    return int((counts if most is None else np.minimum(counts, most)).sum(dtype=np.int64))
