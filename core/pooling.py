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


def unit_vector(pooled: bytes, dimensions: int | None = None) -> NDArray[np.float32]:
    """The first ``dimensions`` of a pooled state, all of them by default, as a vector of length one (Matryoshka,
    arXiv:2205.13147): float32, [dimensions]. A state of zeros stays one.

    Raises:
        ValueError: the model has fewer dimensions, or its states are not finite.
    """
    whole = np.frombuffer(pooled, "<f4")
    if dimensions is not None and not 1 <= dimensions <= len(whole):
        raise ValueError(f"dimensions is {dimensions}; it must be 1 to {len(whole)}, this model's number of dimensions")
    part = whole[:dimensions].astype(np.float64)
    length = float(np.sqrt((part * part).sum()))
    if not np.isfinite(length):
        raise ValueError("the model gave hidden states that are not finite for this text")
    return (part / length if length else part).astype("<f4")
