"""Steps made up for benchmarks that run a backend, or its operations, without an engine."""

from __future__ import annotations

import numpy as np

from ..core.step import StepBatch


def make_batch(sequences: int, new: int, context: int, block: int) -> StepBatch:
    """Sequences of ``new`` tokens each at the end of ``context``, their blocks scattered over the pool."""
    blocks = -(-context // block)
    tables = np.random.default_rng(0).permutation(sequences * blocks).reshape(sequences, blocks).astype(np.int32)
    positions = np.arange(context - new, context)
    return StepBatch(
        step_id=0,
        token_ids=np.zeros(sequences * new, np.int32),
        positions=np.tile(positions, sequences).astype(np.int32),
        slots=(tables[:, positions // block].astype(np.int64) * block + positions % block).reshape(-1),
        query_start=np.arange(sequences + 1, dtype=np.int32) * new,
        context_lens=np.full(sequences, context, np.int32),
        block_tables=tables,
        rows=np.arange(sequences, dtype=np.int32),
        samples=np.ones(sequences, np.bool_),
        copies=np.empty((0, 2), np.int32),
    )
