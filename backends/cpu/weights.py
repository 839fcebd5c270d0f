"""Weights for the CPU's integer kernels: matrices stay as the file has them, norms and biases are float32."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...models.dequant import take_rows
from ...models.ggml_types import DENSE
from ...models.weight import Checkpoint, Progress, Weight
from ..cuda.weights import DenseLoader, Embedding, Linear
from .qembedding import QuantizedEmbedding
from .qexperts import QuantizedExperts, Rooms
from .qlinear import QuantizedLinear

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MappedEmbedding:
    """A table left in the mapped file, in whatever encoding."""

    weight: Weight

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Float32 [T, D] for int64 ``token_ids`` [T]."""
        return torch.from_numpy(take_rows(self.weight, token_ids.numpy()))


@dataclass(frozen=True, slots=True)
class ReorderedLinear:
    """A layer whose matrix has its columns in another order than ``x``, as GPTQ's may."""

    layer: QuantizedLinear
    order: torch.Tensor  # int64 [K]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.index_select(1, self.order))


class QuantizedLoader(DenseLoader):
    """A ``WeightLoader`` whose matrices are ``QuantizedLinear``; one tensor at a time is packed. Where a layer's
    matrices have their columns in one order that is not the input's, the input is put in it.

    A tied embedding is looked up in the head's own storage and adds nothing to ``nbytes``. An embedding of its own, or
    one that the head's 8 bits would round, stays in the mapped file. ``decoded`` are the names of quantised matrices
    that don't keep their codes, since their columns are in an order that the input can't be put in.
    """

    def __init__(self, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
        super().__init__(checkpoint, torch.float32, torch.device("cpu"), progress)
        self._heads: dict[str, QuantizedLinear] = {}
        self._rooms = Rooms()
        self.decoded: list[str] = []

    def linear(self, *names: str) -> Linear:
        if names[0] in self._heads:
            return self._heads[names[0]]
        weights = self.weights(names)
        bias = self.bias(names, [weight.shape[0] for weight in weights])
        order = _shared_order(weights)
        layer = self._layer(weights if order is None else [replace(w, order=None) for w in weights], bias)
        self.nbytes += layer.nbytes - (0 if bias is None else bias.nbytes)  # the bias is counted already
        return layer if order is None else ReorderedLinear(layer, torch.from_numpy(order))

    def experts(self, names: Sequence[str]) -> QuantizedExperts:
        gate_up = [self._expert(name + "gate_proj", name + "up_proj") for name in names]
        experts = QuantizedExperts(gate_up, [self._expert(name + "down_proj") for name in names], self._rooms)
        self.nbytes += experts.nbytes
        return experts

    def _expert(self, *names: str) -> QuantizedLinear:
        """One matrix of an expert. Columns in an order of their own are put back in the input's, in 8 bits."""
        return self._layer(self.weights(names))

    def _layer(self, weights: Sequence[Weight], bias: torch.Tensor | None = None) -> QuantizedLinear:
        layer = QuantizedLinear(weights, bias)
        for weight in weights:
            self.count(weight)
        self.decoded += [weight.name for weight in weights if weight.ordered]
        return layer

    def report(self) -> None:
        """Say what takes more memory here than in the file, and is rounded."""
        if self.decoded:
            logger.warning(
                "weights: %d matrices have their columns in an order of their own (GPTQ's desc_act), %s for one; "
                "they are held in 8 bits in groups of 32, 9 bits a weight, whatever the file has",
                len(self.decoded),
                self.decoded[0],
            )

    def embedding(self, name: str) -> Embedding:
        weight = self.checkpoint.weight(name + ".weight")
        if self.checkpoint.config.tie_embeddings:
            self._heads[name] = head = QuantizedLinear([weight])
            self.count(weight)
            self.nbytes += head.nbytes
            if weight.kind not in DENSE:
                return QuantizedEmbedding(head)
        self.nbytes += weight.data.nbytes
        return MappedEmbedding(weight)


def _shared_order(weights: Sequence[Weight]) -> NDArray[np.integer[Any]] | None:
    """The one order that all columns of ``weights`` are in; None where that is the input's, or there are several."""
    orders = [weight.order for weight in weights if weight.order is not None]
    alike = len(orders) == len(weights) and all(np.array_equal(order, orders[0]) for order in orders)
    return orders[0] if alike else None
