"""Weight handles over matrices that stay in a GGUF file's own blocks, and the choice of affine products."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..library import Array, mx
from .kernel import DEVICE_ELEMENTS, available, dtype_name
from .matmul import (
    DENSE_ELEMENTS,
    MOST_AFFINE,
    MOST_BLOCK,
    WIDE_GENERATION,
    affine_launch,
    block_launch,
    dequantize_launch,
    generation,
)


def quantized_matmul(
    x: Array, words: Array, scales: Array, biases: Array | None, bits: int, group_size: int, mode: str
) -> Array:
    """``x`` [T, K] times a packed matrix transposed: by our kernel where MLX's own would read the weights T times."""
    small = mode == "affine" and 1 < x.shape[0] <= MOST_AFFINE and x.ndim == 2
    if small and x.dtype == scales.dtype and affine_pays():
        launch = affine_launch(x.shape[0], words.shape[0], bits, group_size, dtype_name(x.dtype))
        return launch.run(x, words, scales, biases)[0]
    return mx.quantized_matmul(x, words, scales, biases, transpose=True, group_size=group_size, bits=bits, mode=mode)


@functools.cache
def affine_pays() -> bool:
    """Whether this GPU is of a generation for which MLX has no affine kernel of its own for several rows."""
    return available() and generation(str(mx.device_info().get("architecture", ""))) < WIDE_GENERATION


@dataclass(frozen=True, slots=True)
class BlockLinear:
    """A matrix [N, K] in one of ``BLOCK_TYPES``: ``words`` uint16 [N, words of a row], and its bias [N]."""

    words: Array
    kind: str
    columns: int
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        product = self._few(x) if x.shape[0] <= MOST_BLOCK else self._many(x)
        return product if self.bias is None else product + self.bias

    def _few(self, x: Array) -> Array:
        launch = block_launch(x.shape[0], self.words.shape[0], self.kind, dtype_name(x.dtype))
        return launch.run(x, self.words)[0]

    def _many(self, x: Array) -> Array:
        """By way of dense pieces of the matrix."""
        rows, step = self.words.shape[0], max(1, DENSE_ELEMENTS // self.columns)
        pieces = [mx.arange(start, min(start + step, rows), dtype=mx.int32) for start in range(0, rows, step)]
        return mx.concatenate([x @ self.decode(piece, x.dtype).T for piece in pieces], axis=-1)

    def decode(self, index: Array, dtype: Array) -> Array:
        """The rows ``index`` int32 [n], dense: [n, K]."""
        count = index.shape[0]
        if count < DEVICE_ELEMENTS:
            index = mx.pad(index, (0, DEVICE_ELEMENTS - count))
        launch = dequantize_launch(index.shape[0], self.columns, self.kind, dtype_name(dtype))
        return launch.run(self.words, index, mx.array([self.columns], dtype=mx.int32))[0][:count]


@dataclass(frozen=True, slots=True)
class BlockEmbedding:
    """A table in blocks, of which only the rows asked for are decoded, to ``dtype``."""

    table: BlockLinear
    dtype: Array

    def __call__(self, token_ids: Array) -> Array:
        return self.table.decode(token_ids, self.dtype)
