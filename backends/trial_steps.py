"""Steps that a backend runs while it loads, to compile what serving needs and to measure what it takes.

They lie in block 0 alone, which no sequence holds yet and every table names again and again. What they compute is
noise; what they compile, and how much memory they take, depends on sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.request import MAX_LOGPROBS, SamplingParams
from ..core.step import PLACEHOLDER, RowInit, StepBatch

GREEDY = SamplingParams(temperature=0.0)
#: Everything that a sampler can be asked at once.
WIDEST = SamplingParams(
    min_tokens=1,
    top_k=50,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={0: 1.0},
    logprobs=MAX_LOGPROBS,
)


def trial_step(
    spans: Sequence[tuple[int, int]],
    block_size: int,
    params: SamplingParams = GREEDY,
    *,
    placeholders: bool = False,
    copies: Sequence[tuple[int, int]] = (),
) -> StepBatch:
    """A step of sequences with (new tokens, context with them), each of which begins and samples.

    ``placeholders``: a single token is the row's last, whatever that was.
    """
    counts, contexts = (np.array(each, np.int32) for each in zip(*spans, strict=True))
    positions = np.concatenate([np.arange(end - count, end) for count, end in spans]).astype(np.int32)
    token_ids = np.zeros(len(positions), np.int32)
    if placeholders:
        token_ids[np.repeat(counts == 1, counts)] = PLACEHOLDER
    rows = np.arange(len(spans), dtype=np.int32)
    return StepBatch(
        step_id=-1,
        token_ids=token_ids,
        positions=positions,
        slots=(positions % block_size).astype(np.int64),
        query_start=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        context_lens=contexts,
        block_tables=np.zeros((len(spans), -(-int(contexts.max()) // block_size)), np.int32),
        rows=rows,
        samples=np.ones(len(spans), np.bool_),
        copies=np.array(copies, np.int32).reshape(-1, 2),
        new_rows=tuple(RowInit(int(row), params, seed=0, prompt_ids=(0,), end_ids=(0,)) for row in rows),
    )
