"""Weights that stay quantised on the GPU: linear layers and embeddings over planes, whatever types a layer mixes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from ...models.dequant import stack_rows
from ...models.weight import Checkpoint, Progress, Weight
from .grouped_experts import GroupedExperts
from .kernels import quantized
from .kernels.experts import Matrices
from .plane_form import Planes
from .planes import has_planes, planes
from .weights import DenseLoader, Embedding, Linear

#: Elements decoded at a time on that way: the scratch memory, and large enough for full-speed products.
SCRATCH_ELEMENTS = 1 << 26


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """Matrices [N_i, K] of one input, stacked along their rows, with a bias [sum N_i]."""

    parts: Sequence[Planes]
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [T, K] to [T, N]."""
        x = x.contiguous()
        out = torch.empty((len(x), sum(part.rows for part in self.parts)), dtype=x.dtype, device=x.device)
        product, start = product_for(len(x)), 0
        order, given = None, x
        for part in self.parts if len(x) else ():
            if part.order is not order:  # parts of one order share its tensor
                order, given = part.order, x if part.order is None else x.index_select(1, part.order)
            stop = start + part.rows
            bias = None if self.bias is None else self.bias[start:stop]
            product(given, part, bias, out[:, start:stop])
            start = stop
        return out


def many(x: torch.Tensor, weight: Planes, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """As ``quantized.few``, for many rows: the weight is decoded, some rows at a time, and multiplied by torch."""
    step = max(SCRATCH_ELEMENTS // weight.columns, 1)
    for start in range(0, weight.rows, step):
        stop = min(start + step, weight.rows)
        decoded = quantized.dequantize(weight, x.dtype, rows=(start, stop))
        out[:, start:stop] = F.linear(x, decoded, None if bias is None else bias[start:stop])


Product = Callable[[torch.Tensor, Planes, torch.Tensor | None, torch.Tensor], None]
#: The products and up to how many rows of x each is used; estimates until they are measured.
PRODUCTS: tuple[tuple[float, Product], ...] = ((quantized.FEW, quantized.few), (127, quantized.some), (math.inf, many))


def product_for(rows: int) -> Product:
    """The product for ``rows`` rows of x."""
    return next(product for most, product in PRODUCTS if rows <= most)


@dataclass(frozen=True, slots=True)
class QuantizedEmbedding:
    """A table [V, D] of planes."""

    table: Planes
    dtype: torch.dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return quantized.dequantize(self.table, self.dtype, picks=token_ids)


class PlanarLoader(DenseLoader):
    """A ``WeightLoader`` that keeps what has planes quantised and decodes the rest; norms and biases are dense.

    A layer with a part that has no planes is dense as a whole. A tied head shares the embedding's planes.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, progress: Progress | None = None
    ) -> None:
        super().__init__(checkpoint, dtype, device, progress)
        self._planes: dict[str, Planes] = {}
        self._order: torch.Tensor | None = None

    def linear(self, *names: str) -> Linear:
        if len(names) == 1 and names[0] in self._planes:
            return QuantizedLinear([self._planes[names[0]]])
        weights = self.weights(names)
        if not all(has_planes(weight) for weight in weights):
            return super().linear(*names)
        bias = self.bias(names, [weight.shape[0] for weight in weights])
        return QuantizedLinear([self._take(name) for name in names], bias)

    def experts(self, names: Sequence[str]) -> GroupedExperts:
        gate, up, down = ([name + part for name in names] for part in ("gate_proj", "up_proj", "down_proj"))
        if _alike([self._weight(gate[0]), self._weight(up[0])]):
            both = [name for pair in zip(gate, up, strict=True) for name in pair]
            return GroupedExperts([self._matrices(both, len(names))], self._matrices(down, len(names)))
        apart = [self._matrices(part, len(names)) for part in (gate, up)]
        return GroupedExperts(apart, self._matrices(down, len(names)))

    def _matrices(self, names: Sequence[str], count: int) -> Matrices:
        """The matrices ``names`` stacked along their rows, those of each of ``count`` experts together."""
        weights = [self._weight(name) for name in names]
        if _alike(weights):
            made = planes(stack_rows(weights), self.device)
            self.nbytes += made.nbytes
            for weight in weights:
                self.count(weight)
            return Matrices(made, count)
        dense = self._empty(sum(weight.shape[0] for weight in weights), weights[0].shape[1])
        start = 0
        for weight in weights:
            dense[start : start + weight.shape[0]] = self._decode(weight)
            start += weight.shape[0]
        return Matrices(dense, count)

    def _weight(self, name: str) -> Weight:
        return self.checkpoint.weight(name + ".weight")

    def embedding(self, name: str) -> Embedding:
        weight = self.checkpoint.weight(name + ".weight")
        if not has_planes(weight) or weight.order is not None:
            return super().embedding(name)
        self._planes[name] = self._take(name)
        return QuantizedEmbedding(self._planes[name], self.dtype)

    def _take(self, name: str) -> Planes:
        weight = self.checkpoint.weight(name + ".weight")
        made = self._shared_order(planes(weight, self.device))
        self.count(weight)
        self.nbytes += made.nbytes
        return made

    def _shared_order(self, made: Planes) -> Planes:
        """The same, its order the last one's own tensor where the two are equal: q, k and v work on one input."""
        if made.order is None:
            return made
        if self._order is None or not torch.equal(self._order, made.order):
            self._order = made.order
        return replace(made, order=self._order)


def _alike(weights: Sequence[Weight]) -> bool:
    """Whether ``weights`` can be planes of one form, one after the other."""
    forms = {(weight.kind, weight.bits, weight.group_size, weight.shape[1]) for weight in weights}
    return len(forms) == 1 and all(has_planes(weight) and not weight.ordered for weight in weights)
