"""What a plan needs to know of a model, wherever it came from: files, config.json, or numbers typed in."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.memory import LayerCache, buffer_bytes
from ..models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors. Of a mixture of experts all are held and few are read per token."""

    total_bytes: int
    active_bytes: int  # read for one token; the embedding, of which a token reads one row, left out
    parameters: int | None = None  # None: not known
    active_parameters: int | None = None
    expert_bytes: int = 0  # of all routed experts
    num_experts: int = 0  # routed, per layer
    experts_used: int = 0  # by one token, per layer
    source: str = "typed in"  # where the sizes come from, for people

    def read_bytes(self, num_tokens: int) -> float:
        """Expected bytes a step of ``num_tokens`` reads, its experts drawn evenly and independently."""
        if not self.num_experts:
            return float(self.active_bytes)
        touched = 1 - (1 - self.experts_used / self.num_experts) ** num_tokens
        always = self.active_bytes - self.expert_bytes * self.experts_used / self.num_experts
        return always + self.expert_bytes * touched


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model. ``config`` sizes the work buffers; it is None where only the cache's shape is known."""

    name: str
    layers: tuple[LayerCache, ...]
    weights: Weights
    config: ModelConfig | None = None
    quantization: str = "not known"
    max_position: int | None = None
    notes: tuple[str, ...] = ()

    def buffers(self, num_tokens: int, num_seqs: int) -> int:
        """Work memory of one step; 0 where the shape of the layers is not known."""
        return 0 if self.config is None else buffer_bytes(self.config, num_tokens, num_seqs)
