"""One layer of experts by itself: its weights as a checkpoint has them, and what it makes of tokens, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tiny import tiny_config

from bireme.models.config import MoeConfig
from bireme.models.moe import load_moe
from bireme.models.source import StoredTensor
from bireme.models.weight import Weight

PREFIX = "model.layers.0."
Floats = NDArray[np.floating[Any]]


@dataclass
class MoeLayer:
    """A checkpoint of nothing but one layer's experts, every matrix quantised by gguf-py as ``kinds`` says."""

    moe: MoeConfig
    hidden: int
    kinds: dict[str, str]  # of "gate_proj", "up_proj", "down_proj"; others F32
    seed: int = 0
    name: str = "one layer"

    def __post_init__(self) -> None:
        self.config = tiny_config("qwen3_moe", hidden_size=self.hidden, moe=self.moe)
        rng = np.random.default_rng(self.seed)
        into, back = (self.moe.intermediate_size, self.hidden), (self.hidden, self.moe.intermediate_size)
        self._weights: dict[str, Weight] = {}
        self._put("mlp.gate", rng.standard_normal((self.moe.num_experts, self.hidden)) * 2)
        for expert in range(self.moe.num_experts):
            for part, shape in (("gate", into), ("up", into), ("down", back)):
                self._put(f"mlp.experts.{expert}.{part}_proj", rng.standard_normal(shape) * 1.5)
        self.weight_bytes = sum(weight.data.nbytes for weight in self._weights.values())

    def _put(self, module: str, values: Floats) -> None:
        scaled = np.ascontiguousarray(values * values.shape[1] ** -0.5, np.float32)
        kind = self.kinds.get(module.rpartition(".")[2], "F32")
        data = gguf.quants.quantize(scaled, gguf.GGMLQuantizationType[kind])
        name = f"{PREFIX}{module}.weight"
        self._weights[name] = Weight(name, scaled.shape, kind, data)

    def replace(self, name: str, kind: str, data: NDArray[Any]) -> None:
        """Have the tensor ``name`` stored in another way."""
        self._weights[name] = Weight(name, self._weights[name].shape, kind, data)

    def names(self) -> Iterator[str]:
        return iter(self._weights)

    def weight(self, name: str) -> Weight:
        return self._weights[name]

    def stored(self, name: str) -> StoredTensor:
        weight = self._weights[name]
        return StoredTensor(name, weight.shape, weight.kind, weight.data.nbytes)

    def load(self, loader: Any) -> Any:
        """The layer's ``MoeMlp``, of a loader over this checkpoint."""
        return load_moe(self.moe, PREFIX, loader)

    def values(self, module: str) -> Floats:
        return self._weights[f"{PREFIX}{module}.weight"].dequantize().astype(np.float64)

    def wanted(self, x: Floats) -> Floats:
        """What ``Ops.moe`` must give for ``x`` [T, D], a token and an expert at a time."""
        out = np.zeros((len(x), self.hidden))
        router = self.values("mlp.gate")
        for token, row in enumerate(x.astype(np.float64)):
            logits = router @ row
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            chosen = np.argsort(-logits, kind="stable")[: self.moe.top_k]
            if self.moe.normalise:
                shares = shares / shares[chosen].sum()
            for expert in chosen:
                gate, up, down = (self.values(f"mlp.experts.{expert}.{part}_proj") for part in ("gate", "up", "down"))
                inner = gate @ row
                out[token] += shares[expert] * (down @ (inner / (1 + np.exp(-inner)) * (up @ row)))
        return out


def tokens(count: int, hidden: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, hidden)).astype(np.float32)
