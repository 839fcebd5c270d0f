"""Weight handles: matrices and tables that an operation calls, however they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .library import Array, mx
from .metal.linear import quantized_matmul

#: What an operation does with its handle: it calls it.
Linear = Callable[[Array], Array]
Embedding = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A matrix [N, K] and its bias [N]."""

    weight: Array
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        product = x @ self.weight.T
        return product if self.bias is None else product + self.bias


@dataclass(frozen=True, slots=True)
class DenseEmbedding:
    """A table [V, D]."""

    table: Array

    def __call__(self, token_ids: Array) -> Array:
        return mx.take(self.table, token_ids, axis=0)


@dataclass(frozen=True, slots=True)
class Packing:
    """How a quantised matrix is read; matrices of one packing can be stacked. ``mode`` is MLX's, or one of our kernels'
    ``BLOCK_TYPES``."""

    bits: int
    group_size: int
    mode: str = "affine"


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """A quantised matrix: words uint32 [N, K * bits / 32], scales and, in the affine mode, biases [N, K / group].
    Column j of it is the input's column ``order[j]``, int32 [K], or j itself."""

    words: Array
    scales: Array
    biases: Array | None
    packing: Packing
    bias: Array | None = None
    order: Array | None = None

    def __call__(self, x: Array) -> Array:
        how, x = self.packing, x if self.order is None else mx.take(x, self.order, axis=-1)
        product = quantized_matmul(x, self.words, self.scales, self.biases, how.bits, how.group_size, how.mode)
        return product if self.bias is None else product + self.bias


@dataclass(frozen=True, slots=True)
class QuantizedEmbedding:
    """A quantised table, of which only the rows asked for are decoded."""

    table: QuantizedLinear

    def __call__(self, token_ids: Array) -> Array:
        table, how = self.table, self.table.packing
        biases = None if table.biases is None else table.biases[token_ids]
        rows = mx.dequantize(
            table.words[token_ids],
            table.scales[token_ids],
            biases,
            group_size=how.group_size,
            bits=how.bits,
            mode=how.mode,
        )
        return rows if table.order is None else mx.take(rows, mx.argsort(table.order), axis=-1)


@dataclass(frozen=True, slots=True)
class StackedLinear:
    """Matrices in different storage that work on one input; their results lie side by side."""

    parts: Sequence[Linear]
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        product = mx.concatenate([part(x) for part in self.parts], axis=-1)
        return product if self.bias is None else product + self.bias
