"""Picks the next tokens, for all rows of a step at once.

Order: repetition, presence and frequency penalties; logit bias; the masks of end tokens before ``min_tokens`` and of
what a grammar forbids; temperature; top-k; top-p over what top-k left; min-p. Tokens that tie with the last one kept
are kept too.

The draw inverts the cumulative distribution in the order of token ids, in integers: a token's weight is
``floor(exp(x - max) * 2^30)`` with ``x = logits / temperature`` in float32, the row's word is a 32-bit Philox word
keyed by seed and position (``backends/philox.py``), and the token is the first whose cumulative weight exceeds
``floor(total * word / 2^32)``. Integer sums are exact in any order, so every backend that follows this picks the same
token from the same logits, whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.step import RowInit, StepMasks
from ..philox import token_words
from ..rows import FRACTION_BITS, WEIGHT_BITS, RowTable, token_notes, unpack_masks

#: Most likely tokens looked at first for top-k and top-p on a CPU, where sorting a vocabulary costs milliseconds.
FIRST_RANKS = 256


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of the ``asked`` rows (indices into the step's N samples): chosen [M], top_ids and top_logprobs [M, K]."""

    asked: NDArray[np.int64]
    chosen: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """On the device: tokens int64 [N], nan bool [N]."""

    tokens: torch.Tensor
    nan: torch.Tensor
    logprobs: Logprobs | None


class Sampler:
    """Holds the rows' parameters (on the host) and, for rows with penalties, their token counts (on the device)."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.table = RowTable(rows, vocab_size)
        self.device = device
        self._in_prompt: torch.Tensor | None = None  # bool [rows, V], made when the first row with penalties comes
        self._made: torch.Tensor | None = None  # int32 [rows, V], how often each token was put out

    def begin(self, init: RowInit) -> None:
        """Begin a sequence in its row."""
        self.table.set(init)
        if not self.table.penalised[init.row]:
            return
        vocab = self.table.vocab_size
        if self._in_prompt is None or self._made is None:
            self._in_prompt = torch.zeros((self.table.rows, vocab), dtype=torch.bool, device=self.device)
            self._made = torch.zeros((self.table.rows, vocab), dtype=torch.int32, device=self.device)
        in_prompt, made = token_notes(init, vocab)
        self._in_prompt[init.row] = torch.from_numpy(in_prompt).to(self.device)
        self._made[init.row] = torch.from_numpy(made).to(self.device)

    def sample(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int32],
        positions: NDArray[np.int64],
        masks: StepMasks | None = None,
    ) -> Sampled:
        """Draw a token per row.

        Args:
            logits: [N, V]; used up.
            rows: [N], each at most once.
            positions: [N], the place in its sequence that each new token takes.
            masks: of the rows that follow a grammar; forbidden tokens count as -inf.
        """
        table = self.table
        tokens = argmax(logits)
        best = logits.gather(1, tokens[:, None])[:, 0]
        nan = ~torch.isfinite(best)  # a NaN counts as the largest; an overflow or a row of -inf is found as well
        if masks is None and table.plain(rows):
            table.made[rows] += 1
            return Sampled(tokens.masked_fill(nan, 0), nan, None)
        logits = logits.float()
        asked = np.flatnonzero(table.logprobs[rows] >= 0)
        raw = logits[self._put(asked)].log_softmax(-1) if len(asked) else None
        adjusted = self._adjust(logits, rows)
        if masks is not None:
            self.apply(masks, logits)
        if adjusted or masks is not None:
            tokens = argmax(logits)
        drawn = np.flatnonzero(~table.greedy[rows])
        if len(drawn):
            tokens[self._put(drawn)] = self._draw(logits[self._put(drawn)], rows[drawn], positions[drawn])
        tokens = tokens.masked_fill(nan, 0)
        self._note(tokens, rows)
        logprobs = None if raw is None else self._logprobs(raw, tokens, asked, int(table.logprobs[rows].max()))
        return Sampled(tokens, nan, logprobs)

    def _put(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    def _adjust(self, logits: torch.Tensor, rows: NDArray[np.int32]) -> bool:
        """Penalties, bias and masks, in place; whether there were any."""
        table = self.table
        penalised = np.flatnonzero(table.penalised[rows])
        if len(penalised):
            index = self._put(penalised)
            logits[index] = self._penalise(logits[index], rows[penalised])
        biased = np.flatnonzero(table.biases.count[rows])
        if len(biased):
            row, ids, values = table.biases.pairs(rows[biased])
            logits.index_put_((self._put(biased[row]), self._put(ids)), self._put(values), accumulate=True)
        short = np.flatnonzero(table.made[rows] < table.min_tokens[rows])
        if len(short):
            row, ids, _ = table.ends.pairs(rows[short])
            logits[self._put(short[row]), self._put(ids)] = float("-inf")
        return bool(len(penalised) or len(biased) or len(short))

    def apply(self, masks: StepMasks, logits: torch.Tensor) -> None:
        """Make what ``masks`` forbid impossible, in place."""
        index = self._put(masks.index)
        logits[index] = logits[index].masked_fill(~self._allowed(masks.bits), float("-inf"))

    def _allowed(self, bits: NDArray[np.int32]) -> torch.Tensor:
        """Packed masks as bool [M, V]."""
        vocab = self.table.vocab_size
        if self.device.type == "cpu":
            return torch.from_numpy(unpack_masks(bits, vocab))
        shifts = torch.arange(32, dtype=torch.int32, device=self.device)
        return ((self._put(bits)[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab].bool()

    def _penalise(self, logits: torch.Tensor, rows: NDArray[np.int32]) -> torch.Tensor:
        assert self._in_prompt is not None and self._made is not None
        table, index = self.table, self._put(rows.astype(np.int64))
        made = self._made[index]
        repetition = self._put(table.repetition[rows])[:, None]
        seen = self._in_prompt[index] | (made > 0)
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, repeated, logits)
        logits = logits - self._put(table.frequency[rows])[:, None] * made
        return logits - self._put(table.presence[rows])[:, None] * (made > 0)

    def _draw(self, logits: torch.Tensor, rows: NDArray[np.int32], positions: NDArray[np.int64]) -> torch.Tensor:
        table = self.table
        scaled = logits / self._put(table.temperature[rows])[:, None]
        weights = torch.exp(scaled - scaled.amax(-1, keepdim=True))
        weights = (weights * float(1 << WEIGHT_BITS)).to(torch.int64)
        floor = self._put(table.min_weight[rows])
        top_k, top_p = table.top_k[rows], table.top_p[rows]
        if (top_k < table.vocab_size).any() or (top_p < 1 << FRACTION_BITS).any():
            ranks = FIRST_RANKS if self.device.type == "cpu" else table.vocab_size
            floor = torch.maximum(floor, smallest_kept(weights, self._put(top_k), self._put(top_p), ranks))
        weights = weights.masked_fill(weights < floor[:, None], 0)
        cumulative = weights.cumsum(-1)
        words = self._put(token_words(table.seed[rows], positions))
        wanted = fraction(cumulative[:, -1], words)
        return torch.searchsorted(cumulative, wanted[:, None], right=True)[:, 0].clamp_(max=logits.shape[1] - 1)

    def _note(self, tokens: torch.Tensor, rows: NDArray[np.int32]) -> None:
        """Count the drawn tokens."""
        self.table.made[rows] += 1
        penalised = np.flatnonzero(self.table.penalised[rows])
        if len(penalised):
            assert self._made is not None
            where = (self._put(rows[penalised].astype(np.int64)), tokens[self._put(penalised)])
            self._made.index_put_(where, torch.ones((), dtype=torch.int32, device=self.device), accumulate=True)

    def _logprobs(self, raw: torch.Tensor, tokens: torch.Tensor, asked: NDArray[np.int64], most: int) -> Logprobs:
        chosen = raw.gather(1, tokens[self._put(asked)][:, None])[:, 0]
        top = raw.topk(min(most, raw.shape[1]), dim=-1)
        return Logprobs(asked, chosen, top.indices, top.values)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """The largest element's index in each row, the first of equals; the first NaN where there is one: int64 [N]."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(-1))  # six times as fast as torch's
    return logits.argmax(-1)


def heaviest(weights: torch.Tensor, ranks: int) -> torch.Tensor:
    """The ``ranks`` largest of each row, in falling order."""
    if weights.device.type != "cpu":
        return weights.sort(dim=-1, descending=True).values[:, :ranks]
    values = weights.numpy().astype(np.int32)  # WEIGHT_BITS fit; NumPy sorts them eight times as fast as torch
    if ranks < values.shape[1]:
        values = np.partition(values, -ranks, axis=-1)[:, -ranks:]
    return torch.from_numpy(np.sort(values, axis=-1)[:, ::-1].astype(np.int64))


def fraction(total: torch.Tensor, numerator: torch.Tensor) -> torch.Tensor:
    """``floor(total * numerator / 2^32)`` for int64 ``total`` below 2^48 and ``numerator`` up to 2^32, exactly."""
    high, low = total >> 24, total & ((1 << 24) - 1)
    return (high * numerator + ((low * numerator) >> 24)) >> 8


def smallest_kept(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, ranks: int) -> torch.Tensor:
    """The weight of the last token that top-k, then top-p over the rest, keep in each row: int64 [N].

    Looks at the ``ranks`` heaviest tokens first, and at all in the rows where those don't settle it.
    """
    vocab = weights.shape[1]
    ranks = min(ranks, vocab)
    ranked = heaviest(weights, ranks)
    inside = torch.arange(ranks, device=weights.device) < top_k[:, None]
    ranked = ranked.masked_fill(~inside, 0)
    cumulative = ranked.cumsum(-1)
    mass = torch.where(top_k < vocab, cumulative[:, -1], weights.sum(-1))
    needed = fraction(mass, top_p)
    kept = inside & (cumulative - ranked < needed[:, None])
    kept[:, 0] = True
    result = ranked.masked_fill(~kept, 1 << (WEIGHT_BITS + 1)).amin(-1)
    if ranks == vocab:
        return result
    open_rows = (top_k > ranks) & ((top_k < vocab) | (cumulative[:, -1] < needed))
    rest = torch.nonzero(open_rows)[:, 0]
    if len(rest):
        result[rest] = smallest_kept(weights[rest], top_k[rest], top_p[rest], vocab)
    return result
