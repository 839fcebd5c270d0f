"""Embeddings: the final hidden states of a prompt's tokens, pooled over the steps that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .sequence import Sequence

#: Of all the prompt's tokens the mean, or the last one's.
Pooling = Literal["mean", "last"]


def num_pooled(seq: Sequence, start: int, length: int) -> int:
    """How many of the last of the tokens ``start`` to ``start + length`` count."""
    pooling = seq.group.request.params.pooling
    if pooling == "mean":
        return length
    return int(pooling == "last" and start + length == seq.prompt_len)


def add(seq: Sequence, sums: NDArray[np.float32]) -> None:
    """A step's part of the sum, [D]."""
    part = sums.astype(np.float64)
    seq.pooled = part if seq.pooled is None else seq.pooled + part


def embedding(seq: Sequence) -> bytes | None:
    """The pooled state, not normalised: D float32, little-endian. None where nothing was asked for."""
    if seq.pooled is None:
        return None
    count = seq.prompt_len if seq.group.request.params.pooling == "mean" else 1
    return (seq.pooled / count).astype("<f4").tobytes()
