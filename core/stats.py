"""What the engine has done and holds, as one frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .request import FinishReason


@dataclass(slots=True)
class Counters:
    """Sums since the start. Prompt tokens are counted once per request, however many sequences it has and however
    often it was preempted."""

    steps: int = 0
    tokens_generated: int = 0  # handed out, end tokens included
    prompt_tokens_cached: int = 0
    prompt_tokens_computed: int = 0
    preemptions: int = 0
    requests_added: int = 0
    requests_rejected: int = 0
    requests_unattainable: int = 0  # among them: refused because of the objective
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))


@dataclass(frozen=True, slots=True)
class UserCounts:
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Sequences, blocks and tokens are numbers, times are seconds on the engine's clock.

    Always: ``kv_blocks_live + kv_blocks_cached + kv_blocks_free == kv_blocks_total``, and
    ``prompt_tokens_cached + prompt_tokens_computed == prompt_tokens``.
    """

    running: int
    waiting: int  # siblings that wait for their leader included
    users: Mapping[str, UserCounts]  # who has anything running or waiting
    kv_blocks_total: int  # that can be handed out
    kv_blocks_live: int  # held by running sequences
    kv_blocks_cached: int  # held by nobody, contents known: taken when needed, never a leak
    kv_blocks_free: int
    kv_blocks_quarantined: int  # taken out of use by the checker
    block_size: int
    prompt_tokens: int  # accounted so far
    prompt_tokens_cached: int
    prompt_tokens_computed: int
    tokens_generated: int
    preemptions: int
    steps: int
    requests_added: int
    requests_rejected: int
    finished: Mapping[FinishReason, int]  # sequences
    in_flight: int  # steps
    last_step_time: float  # when a step was last submitted
    last_step_seconds: float  # how long the last finished step took on the device
    stalled: bool  # something waits, nothing runs, and no step came for longer than watchdog_s
    dead: bool
    requests_unattainable: int = 0  # among the rejected: they could not have had their first token in time

    @property
    def kv_usage(self) -> float:
        """Share of the blocks held by running sequences, 0 to 1."""
        return self.kv_blocks_live / self.kv_blocks_total if self.kv_blocks_total else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of prompt tokens that needed no computing, 0 to 1."""
        return self.prompt_tokens_cached / self.prompt_tokens if self.prompt_tokens else 0.0
