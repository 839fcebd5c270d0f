"""Steps over a scattered, dirty KV pool, and attention over them in float64, one query at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bireme.core.step import StepBatch


@dataclass(frozen=True)
class Paged:
    """Sequences of (new, context) tokens; what none of them owns in ``keys`` and ``values`` is NaN."""

    batch: StepBatch
    q: NDArray[np.float32]  # [T, H, hd]
    keys: NDArray[np.floating]  # [num_blocks, block_size, kv_heads, hd]
    values: NDArray[np.floating]

    def slots(self, sequence: int) -> NDArray[np.int64]:
        """Where the sequence's context lies, in order."""
        size = self.keys.shape[1]
        at = np.arange(self.batch.context_lens[sequence])
        return self.batch.block_tables[sequence][at // size].astype(np.int64) * size + at % size

    def context(self, sequence: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Keys and values [L, kv_heads, hd]."""
        at = self.slots(sequence)
        return tuple(pool.reshape(-1, *pool.shape[2:])[at].astype(np.float64) for pool in (self.keys, self.values))

    def alone(self, sequence: int) -> Paged:
        """The same pool with only one of the sequences in the step."""
        b, s = self.batch, sequence
        tokens = slice(b.query_start[s], b.query_start[s + 1])
        used = -(-b.context_lens[s] // self.keys.shape[1])
        start = np.array([0, tokens.stop - tokens.start], np.int32)
        part = step(b.positions[tokens], start, b.context_lens[s : s + 1], b.block_tables[s : s + 1, :used])
        return Paged(part, self.q[tokens], self.keys, self.values)

    def expected(self, scale: float, window: int | None) -> NDArray[np.float64]:
        """[T, H * hd]."""
        out = np.empty(self.q.shape)
        for s in range(self.batch.num_seqs):
            keys, values = self.context(s)
            for t in range(self.batch.query_start[s], self.batch.query_start[s + 1]):
                seen = slice(max(0, self.batch.positions[t] + 1 - (window or 1 << 30)), self.batch.positions[t] + 1)
                out[t] = _attend(self.q[t].astype(np.float64), keys[seen], values[seen], scale)
        return out.reshape(len(out), -1)


def _attend(q, keys, values, scale):
    grouped = q.reshape(keys.shape[1], -1, q.shape[-1])  # [KV, G, hd]
    scores = np.einsum("kgd,lkd->kgl", grouped, keys) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (np.einsum("kgl,lkd->kgd", weights, values) / weights.sum(-1, keepdims=True)).reshape(q.shape)


def step(positions, query_start, context_lens, block_tables, slots=None) -> StepBatch:
    tokens, sequences = len(positions), len(context_lens)
    return StepBatch(
        step_id=0,
        token_ids=np.zeros(tokens, np.int32),
        positions=np.asarray(positions, np.int32),
        slots=np.zeros(tokens, np.int64) if slots is None else slots,
        query_start=np.asarray(query_start, np.int32),
        context_lens=np.asarray(context_lens, np.int32),
        block_tables=np.asarray(block_tables, np.int32),
        rows=np.arange(sequences, dtype=np.int32),
        samples=np.ones(sequences, np.bool_),
        copies=np.empty((0, 2), np.int32),
    )


def paged(
    work: Sequence[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    size: int,
    seed: int = 0,
    kept: type[np.floating] = np.float32,
) -> Paged:
    """``work``: (new tokens, tokens of context with them) per sequence. ``kept``: of the pool's elements."""
    random = np.random.default_rng(seed)
    used = [-(-context // size) for _, context in work]
    blocks = random.permutation(sum(used) + 3).astype(np.int32)
    tables = np.full((len(work), max(used)), -1, np.int32)
    for line, count, end in zip(tables, used, np.cumsum(used), strict=True):
        line[:count] = blocks[end - count : end]
    positions = np.concatenate([np.arange(context - new, context) for new, context in work])
    start = np.cumsum([0] + [new for new, _ in work])
    batch = step(positions, start, [context for _, context in work], tables)
    pools = [np.full((len(blocks), size, kv_heads, dim), np.nan, kept) for _ in range(2)]
    made = Paged(batch, random.standard_normal((len(positions), heads, dim), np.float32), *pools)
    for sequence in range(len(work)):
        at = made.slots(sequence)
        for pool in pools:
            pool.reshape(-1, kv_heads, dim)[at] = random.standard_normal((len(at), kv_heads, dim), np.float32)
    return made
