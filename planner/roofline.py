"""The least time a step can take: reading what it must read, computing what it must compute, whichever is longer
(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009). An upper bound on speed, never a promise."""

from __future__ import annotations

from dataclasses import dataclass

from .chips import Chip
from .shape import ModelShape

#: What a sum over devices takes however little it sums: an estimate, some microseconds with NVLink.
SUM_SECONDS = 10e-6


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step times of one model on one chip, or on several that share it. ``efficiency`` is the share of the published
    figures that is reached.

    Raises:
        ValueError: several of a chip that has no link to others.
    """

    chip: Chip
    model: ModelShape
    kv_bytes_per_token: float
    efficiency: float = 1.0
    overhead: float = 0.0  # seconds per step: launches, the host
    devices: int = 1  # that share the model; ``model`` is then what one of them holds

    def __post_init__(self) -> None:
        if self.devices > 1 and self.chip.link_gbs is None:
            raise ValueError(f"tensor_parallel is {self.devices}, and {self.chip.name} can't share a model with others")

    def seconds(self, num_tokens: int, pairs: int, context_tokens: int) -> float:
        """A step of ``num_tokens`` that attends over ``pairs`` of query and key, reading ``context_tokens``."""
        bandwidth, rate = self.chip.bandwidth_gbs * 1e9, self.chip.tflops * 1e12
        read = self.model.weights.read_bytes(num_tokens) + context_tokens * self.kv_bytes_per_token
        step = max(read / bandwidth, self._operations(num_tokens, pairs) / rate) + self._sums(num_tokens)
        return step / self.efficiency + self.overhead

    def decode_tokens_per_second(self, concurrency: int, context: int) -> float:
        """Tokens a second over all of ``concurrency`` sequences that hold ``context`` tokens each."""
        held = concurrency * context
        return concurrency / self.seconds(concurrency, held, held)

    def _sums(self, num_tokens: int) -> float:
        """Two sums over the devices in each layer, of 16-bit hidden states, each a ring's: what all must send, and the
        wait for it to begin."""
        if self.devices == 1 or self.model.config is None:
            return 0.0
        assert self.chip.link_gbs is not None
        config = self.model.config
        sent = 2 * (self.devices - 1) / self.devices * 2 * num_tokens * config.hidden_size
        return 2 * config.num_layers * (SUM_SECONDS + sent / (self.chip.link_gbs * 1e9))

    def _operations(self, num_tokens: int, pairs: int) -> float:
        weights = self.model.weights
        parameters = weights.active_parameters or weights.active_bytes / 2
        attention = 0.0
        if self.model.config is not None:
            config = self.model.config
            attention = 4.0 * config.num_heads * config.head_dim * config.num_layers * pairs
        return 2.0 * parameters * num_tokens + attention
