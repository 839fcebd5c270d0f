"""Products with quantised matrices on Metal, where MLX has none or reads the weights once for every row."""

from __future__ import annotations

import functools
import re

import numpy as np
from numpy.typing import NDArray

from ....models.weight import Weight
from .kernel import Constant, Kernel, Launch

#: GGUF types that are kept in the file's own bytes, and the helpers that decode them.
BLOCK_TYPES = {
    "Q6_K": ("block", "q6_k"),
    "Q3_K": ("block", "q3_k"),
    "Q2_K": ("block", "q2_k"),
    "IQ4_NL": ("block", "iq4", "iq4_nl"),
    "IQ4_XS": ("block", "iq4", "iq4_xs"),
}
#: Rows of input that a kernel is compiled for; the least that holds all is taken.
TOKEN_TILES = (1, 2, 3, 4, 6, 8, 12, 16)
SIMDS = 2
#: Affine products of more rows than this are MLX's own.
MOST_AFFINE = 16
#: Block products of more rows are cheaper decoded first: written and read, a weight moves 4 bytes and its code, while
#: in tiles of 16 rows only the code is read, once for each tile.
MOST_BLOCK = 64
#: Elements of a block matrix decoded at a time for a large product.
DENSE_ELEMENTS = 1 << 24
#: From this generation of Apple's GPUs on, MLX's own small affine products read the weights once.
WIDE_GENERATION = 15


def token_tile(tokens: int) -> int:
    """Rows of input in a threadgroup."""
    return next((tile for tile in TOKEN_TILES if tile >= tokens), TOKEN_TILES[-1])


def weight_rows(tile: int) -> int:
    """Weight rows of a simdgroup: its sums, its weights and an input must stay in registers."""
    return 4 if tile <= 8 else 2


def affine_launch(tokens: int, rows: int, bits: int, group: int, dtype: str) -> Launch:
    """The launch of ``affine_matmul``: its inputs are x, words, scales, biases."""
    kernel = affine_kernel(token_tile(tokens), bits, group, dtype)
    return _product(kernel, tokens, rows, dtype)


def block_launch(tokens: int, rows: int, kind: str, dtype: str) -> Launch:
    """The launch of ``block_matmul``: its inputs are x, blocks."""
    return _product(block_kernel(token_tile(tokens), kind, dtype), tokens, rows, dtype)


def dequantize_launch(chosen: int, columns: int, kind: str, dtype: str) -> Launch:
    """The launch of ``block_dequantize``: its inputs are blocks, index, columns."""
    grid = (32, -(-columns // 256), chosen)
    return Launch(dequantize_kernel(kind, dtype), grid, (32, 1, 1), (((chosen, columns), dtype),))


@functools.cache
def affine_kernel(tile: int, bits: int, group: int, dtype: str) -> Kernel:
    constants = (*_tiles(tile, dtype), ("BITS", bits), ("GROUP", group))
    return Kernel(("affine_matmul",), ("x", "words", "scales", "biases"), ("out",), constants)


@functools.cache
def block_kernel(tile: int, kind: str, dtype: str) -> Kernel:
    return Kernel((*BLOCK_TYPES[kind], "block_matmul"), ("x", "blocks"), ("out",), _tiles(tile, dtype))


@functools.cache
def dequantize_kernel(kind: str, dtype: str) -> Kernel:
    files = (*BLOCK_TYPES[kind], "block_dequantize")
    return Kernel(files, ("blocks", "index", "columns"), ("out",), (("T", dtype),))


def _tiles(tile: int, dtype: str) -> tuple[tuple[str, Constant], ...]:
    return (("T", dtype), ("TOKENS", tile), ("ROWS", weight_rows(tile)), ("SIMDS", SIMDS))


def _product(kernel: Kernel, tokens: int, rows: int, dtype: str) -> Launch:
    tile = token_tile(tokens)
    grid = (SIMDS * 32, -(-rows // (SIMDS * weight_rows(tile))), -(-tokens // tile))
    return Launch(kernel, grid, (SIMDS * 32, 1, 1), (((tokens, rows), dtype),))


def block_words(weight: Weight, start: int = 0, stop: int | None = None) -> NDArray[np.uint16]:
    """Rows of a tensor of one of the ``BLOCK_TYPES`` as the kernels read them: the file's bytes, two to a word."""
    return np.ascontiguousarray(weight.data[start:stop]).view("<u2")


def generation(architecture: str) -> int:
    """Of an Apple GPU, from what Metal calls it: "applegpu_g14s" is 14. 0 if it says nothing of the kind."""
    found = re.search(r"_g(\d+)", architecture)
    return int(found[1]) if found else 0
