"""Sampling parameters by row, kept on the host as flat arrays so that a step picks its rows by one index each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.step import RowInit

#: A token's weight is its probability relative to the row's most likely token, as an integer of so many bits.
WEIGHT_BITS = 30
#: Probabilities that come from parameters (top_p) and from the generator are integers of so many bits.
FRACTION_BITS = 32


class RowTable:
    """What each of ``rows`` rows asks of the sampler. A row keeps its values until it is initialised again."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self.rows = rows
        self.vocab_size = vocab_size
        self.greedy = np.ones(rows, bool)
        self.temperature = np.ones(rows, np.float32)
        self.top_k = np.full(rows, vocab_size, np.int64)  # vocab_size: off
        self.top_p = np.full(rows, 1 << FRACTION_BITS, np.int64)  # fixed point; 1.0: off
        self.min_weight = np.zeros(rows, np.int64)  # min_p as a weight; 0: off
        self.repetition = np.ones(rows, np.float32)
        self.presence = np.zeros(rows, np.float32)
        self.frequency = np.zeros(rows, np.float32)
        self.penalised = np.zeros(rows, bool)
        self.seed = np.zeros(rows, np.uint64)
        self.logprobs = np.full(rows, -1, np.int32)  # -1: none
        self.min_tokens = np.zeros(rows, np.int64)
        self.made = np.zeros(rows, np.int64)  # output tokens so far
        self.biases = _Ragged(rows)
        self.ends = _Ragged(rows)

    def set(self, init: RowInit) -> None:
        """Begin a sequence in ``init.row``."""
        row, params = init.row, init.params
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} is outside the backend's {self.rows} rows")
        self.greedy[row] = params.temperature == 0 or params.top_k == 1 or params.top_p == 0
        self.temperature[row] = params.temperature or 1.0
        self.top_k[row] = min(params.top_k, self.vocab_size) if params.top_k > 0 else self.vocab_size
        self.top_p[row] = round(params.top_p * (1 << FRACTION_BITS))
        self.min_weight[row] = math.ceil(params.min_p * (1 << WEIGHT_BITS))
        self.repetition[row] = params.repetition_penalty
        self.presence[row] = params.presence_penalty
        self.frequency[row] = params.frequency_penalty
        self.penalised[row] = params.repetition_penalty != 1 or bool(
            params.presence_penalty or params.frequency_penalty
        )
        self.seed[row] = init.seed & (2**64 - 1)
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.min_tokens[row] = params.min_tokens if init.end_ids else 0
        self.made[row] = len(init.output_ids)
        self.biases.set(row, {i: v for i, v in params.logit_bias.items() if 0 <= i < self.vocab_size})
        self.ends.set(row, dict.fromkeys((i for i in init.end_ids if 0 <= i < self.vocab_size), 0.0))

    def plain(self, rows: NDArray[np.int32]) -> bool:
        """Whether all ``rows`` want the argmax and nothing else."""
        return not (
            self.penalised[rows].any()
            or (self.biases.count[rows] > 0).any()
            or (self.made[rows] < self.min_tokens[rows]).any()
            or (self.logprobs[rows] >= 0).any()
            or not self.greedy[rows].all()
        )


def token_notes(init: RowInit, vocab_size: int) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """For penalties: whether each token is in the prompt, and how often it was put out; both [V]."""
    in_prompt = np.zeros(vocab_size, bool)
    in_prompt[np.array(init.prompt_ids, np.int64)] = True
    return in_prompt, np.bincount(np.array(init.output_ids, np.int64), minlength=vocab_size).astype(np.int32)


def unpack_masks(bits: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """``StepMasks.bits`` [M, W] as bool [M, V]."""
    words = bits.astype("<i4", copy=False).view(np.uint8)
    return np.unpackbits(words, axis=1, count=vocab_size, bitorder="little").view(np.bool_)


class _Ragged:
    """A few (token id, value) pairs per row."""

    def __init__(self, rows: int) -> None:
        self.count = np.zeros(rows, np.int64)
        self._ids: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * rows
        self._values: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * rows

    def set(self, row: int, pairs: dict[int, float]) -> None:
        self.count[row] = len(pairs)
        self._ids[row] = np.fromiter(pairs, np.int64, len(pairs))
        self._values[row] = np.fromiter(pairs.values(), np.float32, len(pairs))

    def pairs(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """(index into ``rows``, token id, value), end to end."""
        index = np.repeat(np.arange(len(rows)), self.count[rows])
        ids = [self._ids[row] for row in rows]
        values = [self._values[row] for row in rows]
        return index, np.concatenate(ids), np.concatenate(values)
