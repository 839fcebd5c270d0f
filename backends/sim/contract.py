"""Every rule of ``StepBatch``, checked on a real one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.step import PLACEHOLDER, StepBatch


class ContractError(AssertionError):
    """A batch no backend should have to accept."""


def check_batch(batch: StepBatch, info_blocks: int, block_size: int, max_len: int) -> None:
    """Raise ``ContractError`` unless the arrays agree with each other and with the pool."""
    tokens, seqs = batch.num_tokens, batch.num_seqs
    _require(seqs > 0 and tokens >= seqs, "a step without a sequence, or a sequence without a token")
    _require(batch.token_ids.dtype == batch.positions.dtype == np.int32, "token_ids and positions are int32")
    _require(batch.slots.dtype == np.int64 and batch.block_tables.dtype == np.int32, "slots int64, tables int32")
    _require(len(batch.positions) == len(batch.slots) == tokens, "token arrays of different lengths")
    _require(len(batch.context_lens) == len(batch.samples) == len(batch.block_tables) == seqs, "sequence arrays")
    counts = np.diff(batch.query_start)
    _require(batch.query_start[0] == 0 and batch.query_start[-1] == tokens, "query_start spans the tokens")
    _require(bool((counts > 0).all()), "query_start rises")
    _require(len(set(batch.rows.tolist())) == seqs, "a row twice in a step")
    _require(int(batch.token_ids.min()) >= PLACEHOLDER, "negative token ids")
    last = batch.query_start[1:] - 1
    starts = batch.context_lens - counts
    expected = np.repeat(starts - batch.query_start[:-1], counts) + np.arange(tokens)
    _require(bool((batch.positions == expected).all()), "positions follow each other up to the context's end")
    _require(
        int(batch.context_lens.max()) <= max_len and int(starts.min()) >= 0, "positions inside the model's context"
    )
    _require(bool((batch.positions[last] + 1 == batch.context_lens).all()), "context_lens is the last position + 1")
    _check_blocks(batch, info_blocks, block_size, counts)
    _check_copies(batch, info_blocks)
    _check_masks(batch)
    _check_reading(batch, counts)


def _check_blocks(batch: StepBatch, num_blocks: int, size: int, counts: NDArray[np.int32]) -> None:
    tables = batch.block_tables
    used = tables >= 0
    _require(bool((tables < num_blocks).all() and (tables >= -1).all()), "block ids inside the pool")
    _require(bool((used[:, :-1] >= used[:, 1:]).all()), "-1 only past a sequence's last block")
    _require(bool((used.sum(1) * size >= batch.context_lens).all()), "blocks for the whole context")
    owners = np.repeat(np.arange(batch.num_seqs), counts)
    blocks = tables[owners, batch.positions // size]
    _require(
        bool((batch.slots == blocks.astype(np.int64) * size + batch.positions % size).all()), "slots as the tables"
    )
    _require(len(np.unique(batch.slots)) == batch.num_tokens, "a slot written twice in a step")
    sharing = np.bincount(tables[used], minlength=num_blocks)
    _require(bool((sharing[blocks] == 1).all()), "a block written that another table names")


def _check_copies(batch: StepBatch, num_blocks: int) -> None:
    if not len(batch.copies):
        return
    sources, targets = set(batch.copies[:, 0].tolist()), batch.copies[:, 1].tolist()
    _require(len(set(targets)) == len(targets) and not sources & set(targets), "copies that depend on their order")
    _require(0 <= int(batch.copies.min()) and int(batch.copies.max()) < num_blocks, "copies inside the pool")


def _check_reading(batch: StepBatch, counts: NDArray[np.int32]) -> None:
    pools, targets = batch.pools, batch.targets
    if pools is not None:
        _require(pools.dtype == np.int32 and len(pools) == batch.num_seqs, "a number to pool per sequence")
        _require(bool((pools >= 0).all() and (pools <= counts).all()), "tokens of the step are pooled")
        _require(bool(pools.any()), "pools where something is pooled only")
    if targets is not None:
        _require(targets.dtype == np.int32 and len(targets) == batch.num_tokens, "a target per token")
        _require(int(targets.max()) >= 0 and int(targets.min()) >= -1, "targets where one is wanted only")
        within = np.diff(np.repeat(batch.rows, counts)) == 0
        known = (targets[:-1] == batch.token_ids[1:]) | (targets[:-1] < 0)
        _require(bool(known[within].all()), "a target is the token that follows")


def _check_masks(batch: StepBatch) -> None:
    if batch.masks is None:
        return
    index, bits = batch.masks.index, batch.masks.bits
    _require(index.dtype == np.int64 and bits.dtype == np.int32 and len(index) == len(bits) > 0, "a mask per index")
    _require(bool((np.diff(index) > 0).all()) and int(index[0]) >= 0, "masks in the order of the batch")
    _require(int(index[-1]) < int(batch.samples.sum()), "masks for sampled sequences only")
    _require(bool(bits.any(1).all()), "every mask allows some token")


def _require(good: bool, rule: str) -> None:
    if not good:
        raise ContractError(f"the step breaks the contract: {rule}")
