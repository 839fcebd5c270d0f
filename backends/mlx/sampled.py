"""What was drawn in a step, lazily: tokens, whether their logits were numbers, and log-probabilities where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .library import Array, mx


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of the ``asked`` rows (indices into the step's N samples): chosen [M], top_ids and top_logprobs [M, K]."""

    asked: NDArray[np.int64]
    chosen: Array
    top_ids: Array
    top_logprobs: Array


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens int32 [N], nan bool [N]."""

    tokens: Array
    nan: Array
    logprobs: Logprobs | None

    @property
    def arrays(self) -> list[Array]:
        found = self.logprobs
        return [self.tokens, self.nan, *(() if found is None else (found.chosen, found.top_ids, found.top_logprobs))]


def joined(parts: Sequence[Sampled]) -> Sampled:
    """``parts`` of one step end to end; their log-probabilities have the same K."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.tokens) for part in parts)])
    found = [(start, part.logprobs) for start, part in zip(starts, parts, strict=False) if part.logprobs is not None]
    logprobs = None
    if found:
        logprobs = Logprobs(
            np.concatenate([one.asked + start for start, one in found]),
            mx.concatenate([one.chosen for _, one in found]),
            mx.concatenate([one.top_ids for _, one in found]),
            mx.concatenate([one.top_logprobs for _, one in found]),
        )
    return Sampled(
        mx.concatenate([part.tokens for part in parts]), mx.concatenate([part.nan for part in parts]), logprobs
    )
