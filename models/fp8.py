"""8-bit floating-point weights: E4M3 without infinities (arXiv:2209.05433), a scale for each part of a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .mlx_float import E4M3

KIND = "F8_E4M3"  # of ``Weight``; also safetensors' name of the type


def decode(data: NDArray[np.uint8], scales: NDArray[np.float32], group_size: int) -> NDArray[np.float32]:
    """Float32 [rows, columns] of codes [rows, columns] and scales [rows, groups]."""
    values: NDArray[np.float32] = E4M3[data]
    values *= np.repeat(scales, group_size, axis=1)[:, : data.shape[1]]
    return values
