"""Picks the next tokens, for all rows of a step at once: the definition is that of ``backends/cuda/sampler.py``.

Same seed, same logits: the same token as there. Random words come from the host (``backends/philox.py``), a token's
weight is the same 30-bit integer, sums are exact. All of it stays lazy: nothing here waits for the device.

Top-k and top-p look for the least weight that is kept by bisecting its 30 bits, which needs no sort of the vocabulary:
the k-th largest weight is the largest w with k or more weights of at least w, and top-p keeps down to the largest w
whose tokens of at least w hold the mass that is wanted.

Over a large vocabulary the rows are drawn in slices, one after the other, so that what they work in stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...core.step import RowInit, StepMasks
from ..philox import token_words
from ..rows import FRACTION_BITS, WEIGHT_BITS, RowTable, token_notes
from .library import Array, mx
from .sampled import Logprobs, Sampled, joined
from .work import sampled_at_once


class Sampler:
    """Holds the rows' parameters (on the host) and, for rows with penalties, their token counts (in MLX)."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self.table = RowTable(rows, vocab_size)
        self._in_prompt: Array | None = None  # bool [rows, V], made when the first row with penalties comes
        self._made: Array | None = None  # int32 [rows, V], how often each token was put out

    @property
    def arrays(self) -> list[Array]:
        """State to be evaluated with each step."""
        return [each for each in (self._in_prompt, self._made) if each is not None]

    def begin(self, init: RowInit) -> None:
        """Begin a sequence in its row."""
        self.table.set(init)
        if not self.table.penalised[init.row]:
            return
        vocab = self.table.vocab_size
        if self._in_prompt is None or self._made is None:
            self._in_prompt = mx.zeros((self.table.rows, vocab), mx.bool_)
            self._made = mx.zeros((self.table.rows, vocab), mx.int32)
        in_prompt, made = token_notes(init, vocab)
        self._in_prompt[init.row] = mx.array(in_prompt)
        self._made[init.row] = mx.array(made)

    def sample(
        self, logits: Array, rows: NDArray[np.int32], positions: NDArray[np.int64], masks: StepMasks | None = None
    ) -> Sampled:
        """Draw a token per row.

        Args:
            logits: [N, V].
            rows: [N], each at most once.
            positions: [N], the place in its sequence that each new token takes.
            masks: of the rows that follow a grammar; forbidden tokens count as -inf.
        """
        if masks is None and self.table.plain(rows):
            nan = _is_bad(logits)
            sampled = Sampled(_token(mx.argmax(logits, axis=-1), nan), nan, None)
        else:
            sampled = self._in_slices(logits, rows, positions, masks)
        self._note(sampled.tokens, rows)
        return sampled

    def _in_slices(
        self, logits: Array, rows: NDArray[np.int32], positions: NDArray[np.int64], masks: StepMasks | None
    ) -> Sampled:
        """As ``_pick``, over so many rows at a time that what they work in stays bounded."""
        size, most = sampled_at_once(self.table.vocab_size), int(self.table.logprobs[rows].max())
        parts: list[Sampled] = []
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            some = logits if size >= len(rows) else logits[part]
            if parts:  # one slice after the other: together they would take the memory of all
                some = mx.depends(some, parts[-1].arrays)
            few = None if masks is None else _masks_of(masks, start, start + size)
            parts.append(self._pick(some, rows[part], positions[part], few, most))
        return joined(parts)

    def _pick(
        self,
        logits: Array,
        rows: NDArray[np.int32],
        positions: NDArray[np.int64],
        masks: StepMasks | None,
        most: int,
    ) -> Sampled:
        """As ``sample``, all rows at once and not counted; ``most`` alternatives go with each log-probability."""
        table = self.table
        logits = logits.astype(mx.float32)
        nan = _is_bad(logits)
        asked = np.flatnonzero(table.logprobs[rows] >= 0)
        raw = _log_softmax(logits[_put(asked)]) if len(asked) else None
        logits = self._adjust(logits, rows)
        if masks is not None and len(masks.index):
            index = _put(masks.index)
            logits[index] = mx.where(_allowed(masks.bits, table.vocab_size), logits[index], -float("inf"))
        tokens = mx.argmax(logits, axis=-1)
        drawn = np.flatnonzero(~table.greedy[rows])
        if len(drawn):
            tokens[_put(drawn)] = self._draw(logits[_put(drawn)], rows[drawn], positions[drawn]).astype(tokens.dtype)
        tokens = _token(tokens, nan)
        return Sampled(tokens, nan, None if raw is None else _logprobs(raw, tokens, asked, most))

    def _adjust(self, logits: Array, rows: NDArray[np.int32]) -> Array:
        """Penalties, bias and masks."""
        table = self.table
        penalised = np.flatnonzero(table.penalised[rows])
        if len(penalised):
            index = _put(penalised)
            logits[index] = self._penalise(logits[index], rows[penalised])
        biased = np.flatnonzero(table.biases.count[rows])
        if len(biased):
            row, ids, values = table.biases.pairs(rows[biased])
            logits = logits.at[_put(biased[row]), _put(ids)].add(mx.array(values))
        short = np.flatnonzero(table.made[rows] < table.min_tokens[rows])
        if len(short):
            row, ids, _ = table.ends.pairs(rows[short])
            logits[_put(short[row]), _put(ids)] = float("-inf")
        return logits

    def _penalise(self, logits: Array, rows: NDArray[np.int32]) -> Array:
        assert self._in_prompt is not None and self._made is not None
        table, index = self.table, _put(rows)
        made = self._made[index]
        repetition = mx.array(table.repetition[rows])[:, None]
        seen = self._in_prompt[index] | (made > 0)
        repeated = mx.where(logits > 0, logits / repetition, logits * repetition)
        logits = mx.where(seen, repeated, logits)
        logits = logits - mx.array(table.frequency[rows])[:, None] * made.astype(mx.float32)
        return logits - mx.array(table.presence[rows])[:, None] * (made > 0).astype(mx.float32)

    def _draw(self, logits: Array, rows: NDArray[np.int32], positions: NDArray[np.int64]) -> Array:
        table = self.table
        scaled = logits / mx.array(table.temperature[rows])[:, None]
        weights = mx.exp(scaled - mx.max(scaled, axis=-1, keepdims=True))
        weights = (weights * float(1 << WEIGHT_BITS)).astype(mx.int64)
        floor = mx.array(table.min_weight[rows])
        top_k, top_p = table.top_k[rows], table.top_p[rows]
        if (top_k < table.vocab_size).any() or (top_p < 1 << FRACTION_BITS).any():
            floor = mx.maximum(floor, smallest_kept(weights, top_k, top_p))
        weights = mx.where(weights < floor[:, None], 0, weights)
        cumulative = mx.cumsum(weights, axis=-1)
        words = mx.array(token_words(table.seed[rows], positions))
        wanted = fraction(cumulative[:, -1], words)
        token = mx.sum(cumulative <= wanted[:, None], axis=-1)  # the first whose cumulative weight is beyond
        return mx.minimum(token, logits.shape[1] - 1)

    def _note(self, tokens: Array, rows: NDArray[np.int32]) -> None:
        """Count the drawn tokens."""
        self.table.made[rows] += 1
        penalised = np.flatnonzero(self.table.penalised[rows])
        if len(penalised):
            assert self._made is not None
            self._made = self._made.at[_put(rows[penalised]), tokens[_put(penalised)]].add(1)


def fraction(total: Array, numerator: Array) -> Array:
    """``floor(total * numerator / 2^32)`` for int64 ``total`` below 2^48 and ``numerator`` up to 2^32, exactly."""
    high, low = total >> 24, total & ((1 << 24) - 1)
    return (high * numerator + ((low * numerator) >> 24)) >> 8


def smallest_kept(weights: Array, top_k: NDArray[np.int64], top_p: NDArray[np.int64]) -> Array:
    """The weight of the last token that top-k, then top-p over the rest, keep in each row: int64 [N].

    ``weights`` int64 [N, V], the largest of a row being 2^30.
    """
    vocab = weights.shape[1]
    least, mass = mx.zeros((len(top_k),), mx.int64), mx.sum(weights, axis=-1)
    if (top_k < vocab).any():
        wanted = mx.array(top_k)
        least = _bisect(lambda bound: mx.sum(weights >= bound[:, None], axis=-1) >= wanted, len(top_k))
        above = weights > least[:, None]
        beside = wanted - mx.sum(above, axis=-1)  # of those that tie at the k-th place, so many are among the k
        inside = mx.sum(mx.where(above, weights, 0), axis=-1) + beside * least
        mass = mx.where(wanted < vocab, inside, mass)
    if (top_p < 1 << FRACTION_BITS).any():
        needed = fraction(mass, mx.array(top_p))

        def holds(bound: Array) -> Array:
            return mx.sum(mx.where(weights >= bound[:, None], weights, 0), axis=-1) >= needed

        least = mx.maximum(least, _bisect(holds, len(top_k)))
    return mx.minimum(least, mx.max(weights, axis=-1))


def _bisect(holds: Callable[[Array], Array], rows: int) -> Array:
    """The largest weight for which ``holds`` (int64 [rows] -> bool [rows], true up to some weight): int64 [rows]."""
    found = mx.zeros((rows,), mx.int64)
    for bit in range(WEIGHT_BITS, -1, -1):
        tried = found + (1 << bit)
        found = mx.where(holds(tried), tried, found)
    return found


def _allowed(bits: NDArray[np.int32], vocab: int) -> Array:
    """Packed masks as bool [M, V]."""
    shifts = mx.arange(32, dtype=mx.int32)
    return ((mx.array(bits)[:, :, None] >> shifts) & 1).reshape(len(bits), -1)[:, :vocab].astype(mx.bool_)


def _logprobs(raw: Array, tokens: Array, asked: NDArray[np.int64], most: int) -> Logprobs:
    chosen = mx.take_along_axis(raw, tokens[_put(asked)][:, None], axis=1)[:, 0]
    most = min(most, raw.shape[1])
    if not most:
        empty = mx.zeros((len(asked), 0))
        return Logprobs(asked, chosen, empty.astype(mx.int32), empty)
    ids = mx.argpartition(-raw, most - 1, axis=-1)[:, :most]
    values = mx.take_along_axis(raw, ids, axis=1)
    order = mx.argsort(-values, axis=-1)
    ids, values = mx.take_along_axis(ids, order, axis=1), mx.take_along_axis(values, order, axis=1)
    return Logprobs(asked, chosen, ids.astype(mx.int32), values)


def _masks_of(masks: StepMasks, start: int, stop: int) -> StepMasks:
    """Those of the samples from ``start`` up to ``stop``."""
    inside = (masks.index >= start) & (masks.index < stop)
    return StepMasks(masks.index[inside] - start, masks.bits[inside])


def _is_bad(logits: Array) -> Array:
    """bool [N]: rows with NaN, or without any finite logit that is the largest."""
    return ~mx.isfinite(mx.max(logits, axis=-1)) | mx.any(mx.isnan(logits), axis=-1)


def _token(tokens: Array, nan: Array) -> Array:
    return mx.where(nan, 0, tokens).astype(mx.int32)


def _log_softmax(logits: Array) -> Array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _put(array: NDArray[np.generic]) -> Array:
    return mx.array(array.astype(np.int32))
