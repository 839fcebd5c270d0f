"""Quantised weights in one plain form for kernels: a byte per code, and a scale and minimum per group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .blocks import UNPACKERS, unpack
from .dequant import row_chunks
from .ggml_types import BY_NAME, CODEBOOK
from .mlx_affine import unpack_codes
from .weight import Weight


@dataclass(frozen=True, slots=True)
class PlanarWeight:
    """value[r, k] = scale[r, k // group_size] * codes[r, k] + minimum[r, k // group_size], within float32 rounding."""

    codes: NDArray[np.uint8]  # [rows, K]
    scale: NDArray[np.float32]  # [rows, K / group_size]; may be negative or 0
    minimum: NDArray[np.float32]  # [rows, K / group_size]
    group_size: int  # 16 (Q2_K, Q3_K, Q6_K; MLX groups of 16) or 32
    levels: int  # codes are below it: 4, 8, 16, 32, 64 or 256

    def dequantize(self) -> NDArray[np.float32]:
        """The float32 values [rows, K]."""
        rows, groups = self.scale.shape
        values = self.codes.astype(np.float32).reshape(rows, groups, -1)
        values *= self.scale[:, :, None]
        values += self.minimum[:, :, None]
        return values.reshape(rows, -1)


_LEVELS = {"Q4_0": 16, "Q4_1": 16, "Q5_0": 32, "Q5_1": 32, "Q8_0": 256}
_LEVELS |= {"Q2_K": 4, "Q3_K": 8, "Q4_K": 16, "Q5_K": 32, "Q6_K": 64}
_GROUP = {"Q2_K": 16, "Q3_K": 16, "Q6_K": 16}


def planar(weight: Weight, start: int = 0, stop: int | None = None) -> PlanarWeight | None:
    """Rows ``start`` to ``stop`` (all, unless given) in planar form; None for dense and codebook (IQ4, MXFP4) types.

    MLX groups of 64 and 128 come as groups of 32 of equal scale. Temporaries stay at a few chunks of rows.
    """
    if weight.ordered or weight.kind != "MLX" and (weight.kind not in UNPACKERS or weight.kind in CODEBOOK):
        return None
    stop = weight.shape[0] if stop is None else min(stop, weight.shape[0])
    rows, columns = max(stop - start, 0), weight.shape[1]
    group = min(weight.group_size, 32) if weight.kind == "MLX" else _GROUP.get(weight.kind, 32)
    codes = np.empty((rows, columns), np.uint8)
    scale = np.empty((rows, columns // group), np.float32)
    minimum = np.empty_like(scale)
    fill = _fill_mlx if weight.kind == "MLX" else _fill_blocks
    for first, last in row_chunks(weight.shape, start, stop):
        to = slice(first - start, last - start)
        fill(weight, slice(first, last), codes[to], scale[to], minimum[to])
    levels = 1 << weight.bits if weight.kind == "MLX" else _LEVELS[weight.kind]
    return PlanarWeight(codes, scale, minimum, group, levels)


def _fill_blocks(
    weight: Weight,
    rows: slice,
    codes: NDArray[np.uint8],
    scale: NDArray[np.float32],
    minimum: NDArray[np.float32],
) -> None:
    """One chunk of a GGML type."""
    blocks = unpack(weight.kind, weight.data[rows].reshape(-1, BY_NAME[weight.kind].size))
    codes[:] = blocks.codes.reshape(codes.shape)
    scale[:] = blocks.scale.reshape(scale.shape)
    if blocks.minimum is None:
        np.multiply(scale, np.float32(-blocks.zero), out=minimum)
    else:
        minimum[:] = blocks.minimum.reshape(minimum.shape)


def _fill_mlx(
    weight: Weight,
    rows: slice,
    codes: NDArray[np.uint8],
    scale: NDArray[np.float32],
    minimum: NDArray[np.float32],
) -> None:
    """One chunk of an MLX weight."""
    assert weight.scales is not None and weight.biases is not None
    codes[:] = unpack_codes(weight.data[rows], weight.bits)
    repeat = scale.shape[1] // weight.scales.shape[1]
    scale[:] = np.repeat(weight.scales[rows], repeat, axis=1)
    minimum[:] = np.repeat(weight.biases[rows], repeat, axis=1)
