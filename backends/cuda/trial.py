"""Steps that are run while a model is loaded: to compile what a step needs, and to measure what it takes.

They write into block 0 alone, which no sequence holds yet, and leave nothing in rows that a sequence could see.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.request import SamplingParams
from ...core.step import RowInit, StepBatch

#: Tokens of context that are enough: longer ones are cut into no more parts, and take no more memory.
TRIAL_CONTEXT = 8192
#: Asks for everything that the sampler can do, so that what it holds is counted.
GREEDIEST = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.1, logprobs=20)


def small_step(block_size: int) -> StepBatch:
    """A chunk and a decode, greedy."""
    lengths = np.array([2, 1]) if block_size > 1 else np.array([1, 1])
    return _step(lengths, lengths, block_size)


def largest_step(num_seqs: int, num_tokens: int, context: int, block_size: int) -> StepBatch:
    """``num_tokens`` tokens over ``num_seqs`` sequences, each with ``context`` tokens, all of which sample."""
    lengths = np.full(num_seqs, min(max(num_tokens // num_seqs, 1), context))
    return _step(lengths, np.full(num_seqs, context), block_size, GREEDIEST)


def _step(
    lengths: NDArray[np.int64], contexts: NDArray[np.int64], block_size: int, params: SamplingParams | None = None
) -> StepBatch:
    count, start = len(lengths), np.concatenate(([0], np.cumsum(lengths)))
    positions = np.concatenate([np.arange(c - n, c) for c, n in zip(contexts, lengths, strict=True)])
    rows = range(count) if params else ()
    return StepBatch(
        step_id=-1,
        token_ids=np.zeros(start[-1], np.int32),
        positions=positions.astype(np.int32),
        slots=(positions % block_size).astype(np.int64),
        query_start=start.astype(np.int32),
        context_lens=contexts.astype(np.int32),
        block_tables=np.zeros((count, -(-int(contexts.max()) // block_size)), np.int32),
        rows=np.arange(count, dtype=np.int32),
        samples=np.ones(count, np.bool_),
        copies=np.zeros((0, 2), np.int32),
        new_rows=tuple(RowInit(row, params, 0, prompt_ids=(0,)) for row in rows) if params else (),
    )
