"""Dense weights: whatever the file holds, decoded once at load, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from ...models.config import ModelConfig
from ...models.decoder import WeightLoader
from ...models.weight import Checkpoint, CheckpointError, Progress, Weight
from .experts import DenseExperts, Experts


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A matrix [N, K] and its bias [N]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class DenseEmbedding:
    """A table [V, D]."""

    table: torch.Tensor

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self.table)


def norm_dtype(config: ModelConfig, dtype: torch.dtype) -> torch.dtype:
    """What norms' weights are kept in beside matrices in ``dtype``."""
    return torch.float32 if config.wide_norms else dtype


#: What an operation does with its handle: it calls it. How a weight is stored is the handle's own affair.
Linear = Callable[[torch.Tensor], torch.Tensor]
Embedding = Callable[[torch.Tensor], torch.Tensor]


class Loader(WeightLoader, Protocol):
    """A ``WeightLoader`` of this backend. ``nbytes`` counts what it has put on ``device``."""

    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int: ...


class DenseLoader:
    """A ``WeightLoader`` that decodes each tensor straight into its place in the fused matrix.

    Never more than one decoded tensor lives beside the model. ``nbytes`` counts what is held; a tied head adds nothing.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, progress: Progress | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self.present = frozenset(checkpoint.names())
        self.nbytes = 0
        self._tables: dict[str, torch.Tensor] = {}
        self._report: Callable[[int, int], None] = progress or (lambda done, total: None)
        self._read = 0

    def linear(self, *names: str) -> Linear:
        if len(names) == 1 and names[0] in self._tables:
            return DenseLinear(self._tables[names[0]])
        weights = self.weights(names)
        out = self._empty(sum(weight.shape[0] for weight in weights), weights[0].shape[1])
        start = 0
        for weight in weights:
            out[start : start + weight.shape[0]] = self._decode(weight)
            start += weight.shape[0]
        return DenseLinear(out, self.bias(names, [weight.shape[0] for weight in weights]))

    def embedding(self, name: str) -> Embedding:
        self._tables[name] = self._whole(name, self.dtype)
        return DenseEmbedding(self._tables[name])

    def norm(self, name: str) -> torch.Tensor:
        return self._whole(name, norm_dtype(self.checkpoint.config, self.dtype))

    def _whole(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        weight = self.checkpoint.weight(name + ".weight")
        out = self._empty(*weight.shape, dtype=dtype)
        out.copy_(self._decode(weight))
        return out

    def router(self, name: str) -> Linear:
        return DenseLinear(self._whole(name, self.dtype))

    def experts(self, names: Sequence[str]) -> Experts:
        first = self.checkpoint.stored(names[0] + "gate_proj.weight")
        inner, hidden = first.shape
        gate_up = self._empty(len(names), 2 * inner, hidden)
        down = self._empty(len(names), hidden, inner)
        for name, both, back in zip(names, gate_up, down, strict=True):
            both[:inner] = self._decode(self.checkpoint.weight(name + "gate_proj.weight"))
            both[inner:] = self._decode(self.checkpoint.weight(name + "up_proj.weight"))
            back.copy_(self._decode(self.checkpoint.weight(name + "down_proj.weight")))
        return DenseExperts(gate_up, down)

    def weights(self, names: tuple[str, ...]) -> list[Weight]:
        """The matrices ``names``, which must agree in width."""
        weights = [self.checkpoint.weight(name + ".weight") for name in names]
        if len({weight.shape[1] for weight in weights}) > 1:
            shapes = ", ".join(f"{weight.name} {weight.shape}" for weight in weights)
            raise CheckpointError(f"matrices that work on one input differ in width: {shapes}")
        return weights

    def bias(self, names: tuple[str, ...], sizes: list[int]) -> torch.Tensor | None:
        """The biases of ``names`` end to end, zero for one that has none; None where none has."""
        if not any(name + ".bias" in self.present for name in names):
            return None
        out = self._empty(sum(sizes)).zero_()
        start = 0
        for name, size in zip(names, sizes, strict=True):
            if name + ".bias" in self.present:
                out[start : start + size] = self._decode(self.checkpoint.weight(name + ".bias"))
            start += size
        return out

    def count(self, weight: Weight) -> None:
        """Note that ``weight`` was read."""
        self._read += weight.data.nbytes
        self._report(min(self._read, self.checkpoint.weight_bytes), self.checkpoint.weight_bytes)

    def _decode(self, weight: Weight) -> torch.Tensor:
        self.count(weight)
        return torch.from_numpy(weight.dequantize())

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        out = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        self.nbytes += out.nbytes
        return out
