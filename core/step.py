"""All that ever crosses between the core and a backend.

There are no prefill and decode phases. Each sequence has ``num_computed`` chasing ``num_tokens``; a step is a flat list
of tokens. S sequences take part, T tokens in all. Arrays are NumPy and never changed once handed over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .request import SamplingParams

#: In ``StepBatch.token_ids``: the row's last sampled token, which only the device knows yet (two steps in flight).
PLACEHOLDER = -1


@dataclass(frozen=True, slots=True)
class RowInit:
    """Sampler state for a sequence that enters (or, preempted, re-enters) a row."""

    row: int
    params: SamplingParams
    seed: int  # 64 bits, always set: from params.seed and the sequence's index, or drawn by the engine
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...] = ()  # tokens already made, for penalties; only after a preemption
    end_ids: tuple[int, ...] = ()  # ids masked until params.min_tokens tokens were made


@dataclass(frozen=True, slots=True)
class StepMasks:
    """Which tokens may be drawn, for the sampled sequences that follow a grammar. Every mask allows some token."""

    index: NDArray[np.int64]  # [M], rising: places among the N sequences with ``samples`` set
    bits: NDArray[np.int32]  # [M, ceil(V / 32)], a set bit per allowed id, the lowest id in the lowest bit


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's work. A sequence's tokens are contiguous; sequences with one token (decodes) need not come first."""

    step_id: int
    token_ids: NDArray[np.int32]  # [T], PLACEHOLDER for a token not known on the host yet
    positions: NDArray[np.int32]  # [T]
    slots: NDArray[np.int64]  # [T], block * block_size + offset: where each token's K/V goes
    query_start: NDArray[np.int32]  # [S + 1], sequence s has tokens query_start[s] : query_start[s + 1]
    context_lens: NDArray[np.int32]  # [S], tokens with K/V after this step (cached ones included)
    block_tables: NDArray[np.int32]  # [S, B], -1 past a sequence's last block
    rows: NDArray[np.int32]  # [S], the sequence's fixed row in the backend
    samples: NDArray[np.bool_]  # [S], whether a next token is drawn after the sequence's last token
    copies: NDArray[np.int32]  # [C, 2] (from block, to block), done before the step writes anything
    new_rows: tuple[RowInit, ...] = ()
    masks: StepMasks | None = None  # None when no sampled sequence follows a grammar
    pools: NDArray[np.int32] | None = None  # [S], of how many last tokens hidden states are wanted; None: of none
    targets: NDArray[np.int32] | None = None  # [T], the next token where its log-probability is wanted, else -1
    num_top: int = 0  # with ``targets``: how many alternatives to each

    @property
    def tells_nothing(self) -> bool:
        """Whether nothing is wanted of the prompts it reads."""
        return self.pools is None and self.targets is None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """Log-probabilities (natural, before temperature, penalties and bias) for the sampled sequences that asked."""

    chosen: NDArray[np.float32]  # [N]
    top_ids: NDArray[np.int32]  # [N, K], most likely first; K is the largest k asked for in the step
    top_logprobs: NDArray[np.float32]  # [N, K]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave; N is the number of sequences with ``samples`` set, in batch order."""

    step_id: int
    tokens: NDArray[np.int32]  # [N]; unspecified where ``nan`` is set
    nan: NDArray[np.bool_]  # [N], the row's logits held NaN: that request fails, nobody else
    logprobs: StepLogprobs | None  # None when no row in the step asked
    elapsed: float  # seconds the device spent, for the scheduler's cost model
    sums: NDArray[np.float32] | None = None  # [P, D], sums of final normed hidden states, where ``pools`` is not 0
    scores: StepLogprobs | None = None  # of the M ``targets`` that are not -1, in the order of the tokens
