"""The least time a step can take: reading what it must read, computing what it must compute, whichever is longer
(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009). An upper bound on speed, never a promise."""

from __future__ import annotations

from dataclasses import dataclass

from .chips import Chip
from .shape import ModelShape


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step times of one model on one chip. ``efficiency`` is the share of both published figures that is reached."""

    chip: Chip
    model: ModelShape
    kv_bytes_per_token: float
    efficiency: float = 1.0
    overhead: float = 0.0  # seconds per step: launches, the host

    def seconds(self, num_tokens: int, pairs: int, context_tokens: int) -> float:
        """A step of ``num_tokens`` that attends over ``pairs`` of query and key, reading ``context_tokens``."""
        bandwidth, rate = self.chip.bandwidth_gbs * 1e9, self.chip.tflops * 1e12
        read = self.model.weights.read_bytes(num_tokens) + context_tokens * self.kv_bytes_per_token
        return max(read / bandwidth, self._operations(num_tokens, pairs) / rate) / self.efficiency + self.overhead

    def decode_tokens_per_second(self, concurrency: int, context: int) -> float:
        """Tokens a second over all of ``concurrency`` sequences that hold ``context`` tokens each."""
        held = concurrency * context
        return concurrency / self.seconds(concurrency, held, held)

    def _operations(self, num_tokens: int, pairs: int) -> float:
        weights = self.model.weights
        parameters = weights.active_parameters or weights.active_bytes / 2
        attention = 0.0
        if self.model.config is not None:
            config = self.model.config
            attention = 4.0 * config.num_heads * config.head_dim * config.num_layers * pairs
        return 2.0 * parameters * num_tokens + attention
