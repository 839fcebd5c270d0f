"""Random weights of every kind, and the arithmetic of the integer kernels in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from bireme.models.weight import Weight

EXACT_GGML = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)
DENSE = ("F32", "F16", "BF16")
KINDS = (*EXACT_GGML, *DENSE, "MLX")

# Byte offsets of the float16 fields of each block.
_HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
_HALVES |= {"Q4_1": (0, 2), "Q5_1": (0, 2)}


def ggml_weight(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    """Blocks of random bits, with scales that make values of ordinary size."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    if kind == "MXFP4":
        data[:, :, 0] = rng.integers(116, 122, data.shape[:2])
    for offset in _HALVES.get(kind, () if kind == "MXFP4" else (0,)):
        halves = rng.normal(0, 0.01, (rows, columns // elements, 1)).astype(np.float16)
        data[:, :, offset : offset + 2] = halves.view(np.uint8)
    return Weight("w", (rows, columns), kind, data.reshape(rows, -1))


def dense_weight(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    values = rng.normal(0, 0.05, (rows, columns)).astype(np.float32)
    if kind == "BF16":
        return Weight("w", values.shape, kind, (values.view(np.uint32) >> 16).astype(np.uint16))
    return Weight("w", values.shape, kind, values.astype(np.float16 if kind == "F16" else np.float32))


def mlx_weight(bits: int, group: int, rows: int, columns: int, rng: np.random.Generator, half: bool = True) -> Weight:
    words = rng.integers(0, 1 << 32, (rows, columns * bits // 32), dtype=np.uint32)
    kind = np.float16 if half else np.float32
    scales = rng.normal(0, 0.01, (rows, columns // group)).astype(kind)
    biases = rng.normal(0, 0.05, (rows, columns // group)).astype(kind)
    return Weight("w", (rows, columns), "MLX", words, scales, biases, bits, group)


def random_weight(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Weight:
    if kind == "MLX":
        return mlx_weight(4, 32, rows, columns, rng)
    return (dense_weight if kind in DENSE else ggml_weight)(kind, rows, columns, rng)


def rounded(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Activations [T, K] to 8 bits per row and 32 values, and back."""
    width = x.shape[1]
    groups = np.pad(x, ((0, 0), (0, -width % 32))).reshape(len(x), -1, 32)
    top = np.abs(groups).max(axis=2, keepdims=True)
    codes = np.rint(groups * np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0))
    scales: Any = (top / np.float32(127)).astype(np.float64)
    return (codes * scales).reshape(len(x), -1)[:, :width]


def expected(x: NDArray[np.float32], weights: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The product in float64, and the size of its terms, which rounding errors are measured by."""
    acts, wide = rounded(x), weights.astype(np.float64)
    return acts @ wide.T, np.abs(acts) @ np.abs(wide).T
