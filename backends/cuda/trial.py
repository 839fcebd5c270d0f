"""Steps that are run while a model is loaded: to compile what a step needs, and to measure what it takes."""

from __future__ import annotations

from ...core.step import StepBatch
from ..trial_steps import WIDEST, trial_step

#: Tokens of context that are enough: longer ones are cut into no more parts, and take no more memory.
TRIAL_CONTEXT = 8192


def small_step(block_size: int) -> StepBatch:
    """A chunk, where a block holds one, and a decode; greedy."""
    return trial_step([(min(2, block_size), min(2, block_size)), (1, 1)], block_size)


def largest_step(num_seqs: int, num_tokens: int, context: int, block_size: int) -> StepBatch:
    """``num_tokens`` tokens over ``num_seqs`` sequences, each with ``context`` tokens, all of which sample."""
    return trial_step([(min(max(num_tokens // num_seqs, 1), context), context)] * num_seqs, block_size, WIDEST)
