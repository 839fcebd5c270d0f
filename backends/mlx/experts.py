"""Mixtures of experts over MLX: each token's rows multiplied with the matrices its router picks, nothing read back.

A layer's matrices lie in one array, an expert after the other, and MLX's gathered products take from it what a row asks
for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .library import Array, mx, on_metal
from .linear import Packing

#: Rows from which on they are put in the order of their experts, so that MLX reads each expert's weights once.
SORTED = 64


def route(logits: Array, top_k: int, normalise: bool) -> tuple[Array, Array]:
    """Shares float32 [T, k] and experts [T, k] of ``logits`` [T, E], the largest first; see ``Ops.moe``."""
    wide = logits.astype(mx.float32)
    chosen = mx.argsort(-wide, axis=-1)[:, :top_k]
    shares = mx.take_along_axis(mx.softmax(wide, axis=-1), chosen, axis=-1)
    return shares / mx.sum(shares, axis=-1, keepdims=True) if normalise else shares, chosen


def dense_dtype(dtype: Array) -> Array:
    """What dense matrices of experts are held in where the arithmetic is in ``dtype``: on a CPU MLX's gathered product
    of dense matrices has float32 alone."""
    return dtype if on_metal() else mx.float32


@dataclass(frozen=True, slots=True)
class DenseStack:
    """Matrices [E, N, K], in what ``dense_dtype`` says."""

    weight: Array

    def __call__(self, x: Array, chosen: Array, in_order: bool) -> Array:
        """``x`` [R, 1, K] times the matrices ``chosen`` [R], which may be ``in_order``: [R, 1, N] in the dtype of x."""
        held = self.weight.dtype
        by = self.weight.swapaxes(-1, -2)
        return mx.gather_mm(x.astype(held), by, rhs_indices=chosen, sorted_indices=in_order).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class QuantizedStack:
    """Matrices as ``linear.QuantizedLinear`` has one, and orders, with a dimension of E before its own."""

    words: Array
    scales: Array
    biases: Array | None
    packing: Packing
    order: Array | None = None

    def __call__(self, x: Array, chosen: Array, in_order: bool) -> Array:
        """As ``DenseStack``."""
        how = self.packing
        if self.order is not None:
            x = mx.take_along_axis(x, self.order[chosen][:, None], axis=-1)
        return mx.gather_qmm(
            x, self.words, self.scales, self.biases, rhs_indices=chosen, transpose=True,
            group_size=how.group_size, bits=how.bits, mode=how.mode, sorted_indices=in_order,
        )  # fmt: skip


Stack = DenseStack | QuantizedStack


@dataclass(frozen=True, slots=True)
class Experts:
    """``gate_up``: stacks whose results lie side by side, gate first; one where gate and up are held alike."""

    gate_up: Sequence[Stack]
    down: Stack

    def __call__(self, x: Array, shares: Array, chosen: Array, activate: Callable[[Array], Array]) -> Array:
        """``x`` [T, D] through the experts ``chosen`` [T, k], weighed by ``shares`` float32 [T, k]: [T, D]."""
        picks, top_k, places = chosen.flatten(), chosen.shape[1], None
        token = mx.arange(picks.size) // top_k
        if picks.size >= SORTED:
            order = mx.argsort(picks)
            picks, token, places = picks[order], token[order], mx.argsort(order)
        rows = x[token][:, None]
        both = [stack(rows, picks, places is not None) for stack in self.gate_up]
        inner = activate(both[0] if len(both) == 1 else mx.concatenate(both, axis=-1))
        products = self.down(inner, picks, places is not None)[:, 0]
        products = (products if places is None else products[places]).reshape(*chosen.shape, -1)
        total = products[:, 0].astype(mx.float32) * shares[:, :1]
        for rank in range(1, top_k):
            total = total + products[:, rank].astype(mx.float32) * shares[:, rank : rank + 1]
        return total.astype(x.dtype)
