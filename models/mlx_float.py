"""MLX's floating-point quantisation modes: mxfp4 and mxfp8 (OCP Microscaling Formats v1.0), and nvfp4.

Codes of 4 bits (E2M1) or 8 (E4M3) lie in uint32 words as the affine ones do; a group of a row shares one scale byte,
an E8M0 power of two or, in nvfp4, an E4M3 number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .mlx_affine import unpack_codes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FloatMode:
    """One mode: MLX has each at one width and group size only."""

    bits: int
    group_size: int


MODES = {"mxfp4": FloatMode(4, 32), "mxfp8": FloatMode(8, 32), "nvfp4": FloatMode(4, 16)}
#: ``Weight.kind`` of a mode's weights, and back.
KIND_OF = {mode: f"MLX_{mode.upper()}" for mode in MODES}
MODE_OF = {kind: mode for mode, kind in KIND_OF.items()}


def _minifloats(exponent_bits: int, mantissa_bits: int) -> Floats:
    """The value of each code, sign first; all codes are numbers (the table of E4M3 is patched below)."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    normal = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    subnormal = mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    values: Floats = (sign * np.where(exponent, normal, subnormal)).astype(np.float32)
    return values


E2M1 = _minifloats(2, 1)
E4M3 = _minifloats(4, 3)
E4M3[[127, 255]] = np.nan


def decode(kind: str, words: NDArray[np.uint32], scales: Bytes) -> Floats:
    """Rows as float32: ``words`` [rows, w], ``scales`` [rows, groups]."""
    mode = MODE_OF[kind]
    shape = MODES[mode]
    values = (E2M1 if shape.bits == 4 else E4M3)[unpack_codes(words, shape.bits)]
    scale = E4M3[scales] if mode == "nvfp4" else np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    grouped: Floats = values.reshape(len(values), -1, shape.group_size)
    grouped *= scale[:, :, None]
    return grouped.reshape(len(values), -1)
