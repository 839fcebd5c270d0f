"""One sequence of a request: the tokens known, the blocks held, where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .account import Account
from .constraint import Constraint
from .prefix import Node
from .request import FinishReason, Request, TokenLogprob

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def derive_seed(seed: int, index: int) -> int:
    """64 bits for sequence ``index`` of a request seeded ``seed``: SplitMix64 of the seed, then of the index."""
    return _mix((_mix(seed & _MASK) + index * _GOLDEN) & _MASK)


def _mix(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@dataclass(slots=True, eq=False)
class Group:
    """What the sequences of one request share. The prompt is computed by the leader and counted once."""

    request: Request
    account: Account
    seqs: list[Sequence] = field(default_factory=list)
    held: list[Sequence] = field(default_factory=list)  # siblings that wait for the leader's prompt
    num_unfinished: int = 0
    num_prompt_counted: int = 0  # prompt tokens accounted as cached or computed, each once
    cached_tokens: int | None = None  # of the prompt, from the prefix cache, at the first admission
    arrived: float = 0.0  # seconds, the engine's clock
    late_after: float = float("inf")  # begun later, it can't have its first token in time


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens known on the host, and blocks. While it has a row, ``Rows`` holds its counters."""

    group: Group
    request_id: str
    index: int
    order: int  # of arrival, over the engine's life
    seed: int
    limit: int  # prompt and output tokens in all: it ends with LENGTH there
    stop_ids: frozenset[int]
    tokens: list[int]  # prompt, then outputs
    account: Account
    priority: int
    prompt_len: int
    row: int = -1  # -1: waiting (or ended)
    blocks: list[int] = field(default_factory=list)
    node: Node | None = None  # of the last block published or shared
    num_pending: int = 0  # tokens in flight of a preempted sequence
    num_preemptions: int = 0
    num_admissions: int = 0  # times it entered a row: what a step tells of it belongs to one of them
    gave_way: float = 0.0  # seconds, the engine's clock: when it last lost its row
    settled: bool = False  # a step with it was submitted since it entered its row: what it shares is, or will be, there
    reported: bool = False  # its first output was handed out
    finish_reason: FinishReason | None = None
    entry: NDArray[np.int32] | None = None  # the tokens it had when it entered its row
    constraint: Constraint | None = None  # its grammar
    waits_for_mask: bool = False  # its grammar has not said yet what may come next, or nobody has taken the answer
    scores: list[TokenLogprob] = field(default_factory=list)  # of the prompt from its second token on
    pooled: NDArray[np.float64] | None = None  # [D], the sum so far of the hidden states that count
    blocked: tuple[int, int] | None = None  # (unreferenced blocks, running) when it last failed to fit

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def leader(self) -> Sequence:
        return self.group.seqs[0]
