"""The least time a step can take: reading what it must read, computing what it must compute, whichever is longer
(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009). An upper bound on speed, never a promise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.memory import LayerCache
from .chips import Chip
from .shape import ModelShape
from .work import StepWork

#: What a sum over devices takes however little it sums: an estimate, some microseconds with NVLink.
SUM_SECONDS = 10e-6


@dataclass(slots=True)
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
    _kinds: list[_Kind] = field(init=False, repr=False)
    _state_bytes: int = field(init=False, repr=False)  # of a sequence

    def __post_init__(self) -> None:
        if self.devices > 1 and self.chip.link_gbs is None:
            raise ValueError(f"tensor_parallel is {self.devices}, and {self.chip.name} can't share a model with others")
        self._kinds = _kinds(self.model.layers, self.kv_bytes_per_token)
        self._state_bytes = sum(layer.state_bytes for layer in self.model.layers)

    def seconds(self, work: StepWork) -> float:
        """A step that does ``work``."""
        bandwidth, rate = self.chip.bandwidth_gbs * 1e9, self.chip.tflops * 1e12
        read = self.model.weights.read_bytes(work.tokens) + self._cache_bytes(work)
        step = max(read / bandwidth, self._operations(work) / rate) + self._sums(work.tokens)
        return step / self.efficiency + self.overhead

    def decode_tokens_per_second(self, concurrency: int, context: int) -> float:
        """Tokens a second over all of ``concurrency`` sequences that hold ``context`` tokens each."""
        held = np.array([context], np.int64)
        return concurrency / self.seconds(StepWork(held, held, concurrency))

    def _cache_bytes(self, work: StepWork) -> float:
        """K and V of what each layer attends to, and recurrent layers' states, which are read and written."""
        kept = sum(kind.bytes_per_token * work.held(kind.window) for kind in self._kinds)
        return kept + 2.0 * self._state_bytes * work.sequences

    def _sums(self, num_tokens: int) -> float:
        """Two sums over the devices in each layer, of 16-bit hidden states, each a ring's: what all must send, and the
        wait for it to begin."""
        if self.devices == 1 or self.model.config is None:
            return 0.0
        assert self.chip.link_gbs is not None
        config = self.model.config
        sent = 2 * (self.devices - 1) / self.devices * 2 * num_tokens * config.hidden_size
        return 2 * config.num_layers * (SUM_SECONDS + sent / (self.chip.link_gbs * 1e9))

    def _operations(self, work: StepWork) -> float:
        weights = self.model.weights
        parameters = weights.active_parameters or weights.active_bytes / 2
        attention = 0.0
        if self.model.config is not None:
            pairs = sum(kind.layers * work.pairs(kind.window) for kind in self._kinds)
            attention = 4.0 * self.model.config.num_heads * self.model.config.head_dim * pairs
        return 2.0 * parameters * work.tokens + attention


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers that attend equally far."""

    window: int | None
    layers: int
    bytes_per_token: float


def _kinds(layers: Sequence[LayerCache], kv_bytes_per_token: float) -> list[_Kind]:
    whole = sum(layer.elements for layer in layers)
    found: defaultdict[int | None, list[int]] = defaultdict(list)
    for layer in layers:
        if layer.elements:
            found[layer.window or layer.sees].append(layer.elements)
    return [_Kind(window, len(own), kv_bytes_per_token * sum(own) / whole) for window, own in found.items()]
