"""A checkpoint's tensors as MLX weight handles: dense, or quantised as the file has them where MLX can hold that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.dequant import dequantize
from ...models.ggml_types import DENSE
from ...models.mlx_float import MODE_OF
from ...models.moe import ROUTER
from ...models.names import expert_of
from ...models.source import StoredTensor
from ...models.weight import Checkpoint, CheckpointError, Progress, Weight
from .experts import DenseStack, Experts, QuantizedStack, Stack, dense_dtype
from .library import Array, mx
from .linear import (
    DenseEmbedding,
    DenseLinear,
    Embedding,
    Linear,
    QuantizedEmbedding,
    QuantizedLinear,
    StackedLinear,
)
from .metal.linear import BlockEmbedding, BlockLinear
from .metal.matmul import BLOCK_TYPES, block_words
from .packing import REQUANTISED, expert_packing, keeps_codes, order_of, packing_of, runs, same_order
from .repack import REPACKED, repack

#: Elements decoded or repacked at a time.
CHUNK = 1 << 24
#: Bytes of a column's place, where the columns come in an order of their own.
ORDER_BYTES = 4


class MlxLoader:
    """A ``WeightLoader`` that evaluates each matrix as it is made: never more than one is in work beside the model.

    Args:
        dtype: of dense matrices and of the activations.
        quantized: keep quantised matrices quantised; else decode them to ``dtype``.

    ``nbytes`` counts what is held; a tied head adds nothing. ``requantised`` counts the matrices, by their type in the
    file, that were quantised anew because MLX has no exact form of it.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: Array, quantized: bool, progress: Progress | None = None) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.quantized = quantized
        self.nbytes = 0
        self.requantised: dict[str, int] = {}
        self._scale_dtype = {mx.float16: np.float16}.get(dtype, np.float32)
        self._present = frozenset(checkpoint.names())
        self._tables: dict[str, Linear] = {}
        self._report: Callable[[int, int], None] = progress or (lambda done, total: None)
        self._read = 0

    def linear(self, *names: str) -> Linear:
        if len(names) == 1 and names[0] in self._tables:
            return self._tables[names[0]]
        weights = [self.checkpoint.weight(name + ".weight") for name in names]
        if len({weight.shape[1] for weight in weights}) > 1:
            shapes = ", ".join(f"{weight.name} {weight.shape}" for weight in weights)
            raise CheckpointError(f"matrices that work on one input differ in width: {shapes}")
        bias = self._bias(names, [weight.shape[0] for weight in weights])
        parts = [self._stack(run) for run in runs(weights, self.quantized)]
        if len(parts) == 1:
            return replace(parts[0], bias=bias)
        return StackedLinear(parts, bias)

    def experts(self, names: Sequence[str]) -> Experts:
        gate, up, down = ([name + part for name in names] for part in ("gate_proj", "up_proj", "down_proj"))
        first, second = (self.checkpoint.stored(names[0] + ".weight") for names in (gate, up))
        alike = expert_packing(first, self.quantized) == expert_packing(second, self.quantized)
        together = alike and not first.ordered and not second.ordered  # orders may differ
        gate_up = [self._experts(gate, up)] if together else [self._experts(gate), self._experts(up)]
        return Experts(gate_up, self._experts(down))

    def _experts(self, *columns: Sequence[str]) -> Stack:
        """The matrices of each expert in one array; several of one expert are stacked along their rows."""
        first = self.checkpoint.stored(columns[0][0] + ".weight")
        packing = expert_packing(first, self.quantized)
        found = ([self._weight(name) for name in names] for names in zip(*columns, strict=True))
        if packing is None:
            dtype = dense_dtype(self.dtype)
            dense = [_join([self._dense(weight, dtype) for weight in weights]) for weights in found]
            return DenseStack(self._keep(mx.stack(dense)))
        words: list[Array] = []
        scales: list[Array] = []
        biases: list[Array | None] = []
        orders: list[NDArray[np.int32] | None] = []
        for weights in found:
            parts = [self._quantized(weight) for weight in weights]
            for stack, values in zip((words, scales, biases), zip(*parts, strict=True), strict=True):
                stack.append(_join(list(values)))
            if not all(same_order(weights[0], weight) for weight in weights):
                raise CheckpointError(
                    f"the columns of {' and '.join(weight.name for weight in weights)} are in different orders, which "
                    "config.json denies: set its quantization_config's desc_act to true"
                )
            orders.append(order_of(weights[0]))
        return QuantizedStack(
            self._keep(mx.stack(words)),
            self._keep(mx.stack(scales)),
            None if biases[0] is None else self._keep(mx.stack(biases)),
            packing,
            self._orders(orders, first.shape[1]),
        )

    def _orders(self, orders: Sequence[NDArray[np.int32] | None], columns: int) -> Array | None:
        """Of each expert; None where all have their columns in the input's order."""
        if all(order is None for order in orders):
            return None
        plain = np.arange(columns, dtype=np.int32)
        return self._keep(mx.array(np.stack([plain if order is None else order for order in orders])))

    def _weight(self, name: str) -> Weight:
        return self.checkpoint.weight(name + ".weight")

    def embedding(self, name: str) -> Embedding:
        table = self.linear(name)
        self._tables[name] = table
        if isinstance(table, BlockLinear):
            return BlockEmbedding(table, self.dtype)
        return QuantizedEmbedding(table) if isinstance(table, QuantizedLinear) else DenseEmbedding(_matrix(table))

    def router(self, name: str) -> Linear:
        return DenseLinear(self._keep(self._dense(self.checkpoint.weight(name + ".weight"), self.dtype)))

    def norm(self, name: str) -> Array:
        return self._keep(self._dense(self.checkpoint.weight(name + ".weight"), self._norm_dtype))

    @property
    def _norm_dtype(self) -> Array:
        return mx.float32 if self.dtype == mx.float16 or self.checkpoint.config.wide_norms else self.dtype

    def planned_bytes(self) -> int:
        """What ``nbytes`` will be once all is loaded, from the files' headers alone."""
        return sum(self._planned(name, self.checkpoint.stored(name)) for name in self.checkpoint.names())

    def _planned(self, name: str, stored: StoredTensor) -> int:
        elements = int(np.prod(stored.shape, dtype=np.int64))
        if len(stored.shape) == 1:
            return elements * int((self.dtype if name.endswith(".bias") else self._norm_dtype).size)
        if name.endswith(ROUTER + ".weight"):
            return elements * int(self.dtype.size)
        of_expert = expert_of(name) is not None
        packing = expert_packing(stored, self.quantized) if of_expert else packing_of(stored, self.quantized)
        if packing is None:
            return elements * int((dense_dtype(self.dtype) if of_expert else self.dtype).size)
        if packing.mode != "affine":
            return stored.nbytes
        order = ORDER_BYTES * stored.shape[1] if stored.ordered else 0
        return elements * packing.bits // 8 + 2 * elements // packing.group_size * int(self.dtype.size) + order

    def _stack(self, weights: list[Weight]) -> DenseLinear | QuantizedLinear | BlockLinear:
        packing = packing_of(weights[0], self.quantized)
        if packing is not None and packing.mode in BLOCK_TYPES:
            return self._blocks(weights)
        if packing is None:
            return DenseLinear(self._keep(_join([self._dense(weight, self.dtype) for weight in weights])))
        parts = [self._quantized(weight) for weight in weights]
        words, scales, biases = (_join([part[i] for part in parts]) for i in range(3))
        order = order_of(weights[0])
        return QuantizedLinear(
            self._keep(words),
            self._keep(scales),
            None if biases is None else self._keep(biases),
            packing,
            order=None if order is None else self._keep(mx.array(order)),
        )

    def _blocks(self, weights: list[Weight]) -> BlockLinear:
        for weight in weights:
            self._count(weight)
        words = self._keep(_join([mx.array(block_words(weight)) for weight in weights]))
        return BlockLinear(words, weights[0].kind, weights[0].shape[1])

    def _bias(self, names: tuple[str, ...], sizes: list[int]) -> Array | None:
        """The biases of ``names`` end to end, zero for one that has none; None where none has."""
        if not any(name + ".bias" in self._present for name in names):
            return None
        parts = [
            self._dense(self.checkpoint.weight(name + ".bias"), self.dtype)
            if name + ".bias" in self._present
            else mx.zeros((size,), self.dtype)
            for name, size in zip(names, sizes, strict=True)
        ]
        return self._keep(mx.concatenate(parts))

    def _dense(self, weight: Weight, dtype: Array) -> Array:
        self._count(weight)
        if weight.kind in DENSE:
            stored = mx.array(weight.data)
            return (stored.view(mx.bfloat16) if weight.kind == "BF16" else stored).astype(dtype)
        return _join([mx.array(dequantize(weight, *rows)).astype(dtype) for rows in _chunks(weight)])

    def _quantized(self, weight: Weight) -> tuple[Array, Array, Array | None]:
        """(words, scales, biases) of a matrix that stays quantised."""
        self._count(weight)
        if weight.kind in MODE_OF:
            return mx.array(weight.data), mx.array(weight.scales), None
        if keeps_codes(weight):
            return mx.array(weight.data), self._scale(weight.scales), self._scale(weight.biases)
        if weight.kind in REPACKED:
            return self._repack(weight)
        return self._requantise(weight)

    def _repack(self, weight: Weight) -> tuple[Array, Array, Array | None]:
        chunks = [repack(weight, *rows, self._scale_dtype) for rows in _chunks(weight)]
        words = _join([mx.array(chunk.words) for chunk in chunks])
        if REPACKED[weight.kind].mode != "affine":
            return words, _join([mx.array(chunk.scales) for chunk in chunks]), None
        scales = _join([self._scale(chunk.scales) for chunk in chunks])
        return words, scales, _join([self._scale(chunk.biases) for chunk in chunks])

    def _requantise(self, weight: Weight) -> tuple[Array, Array, Array]:
        self.requantised[weight.kind] = self.requantised.get(weight.kind, 0) + 1
        chunks: list[tuple[Array, Array, Array]] = []
        for rows in _chunks(weight):
            values = mx.array(dequantize(weight, *rows))
            done = mx.quantize(values, group_size=REQUANTISED.group_size, bits=REQUANTISED.bits)
            mx.eval(done)
            chunks.append(tuple(done))
        words, scales, biases = (_join([chunk[i] for chunk in chunks]) for i in range(3))
        return words, self._scale(scales), self._scale(biases)

    def _scale(self, values: Any) -> Array:
        """Scales have the activations' dtype: with another every product would cast them anew."""
        return mx.array(values).astype(self.dtype)

    def _keep(self, array: Array) -> Array:
        mx.eval(array)
        self.nbytes += array.nbytes
        return array

    def _count(self, weight: Weight) -> None:
        self._read += weight.data.nbytes
        for part in (weight.scales, weight.biases):
            self._read += 0 if part is None else part.nbytes
        self._report(min(self._read, self.checkpoint.weight_bytes), self.checkpoint.weight_bytes)


def _matrix(handle: Linear) -> Array:
    assert isinstance(handle, DenseLinear)
    return handle.weight


def _join(parts: list[Array]) -> Array:
    """Rows end to end; None where there are none."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    return mx.concatenate(parts)


def _chunks(weight: Weight) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about ``CHUNK`` elements."""
    rows = weight.shape[0]
    step = max(1, CHUNK // max(1, int(np.prod(weight.shape[1:], dtype=np.int64))))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
