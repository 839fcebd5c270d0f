"""MLX's affine quantisation: codes of 2 to 8 bits in uint32 words, value = scale * code + bias per group of a row.

A row's codes form one little-endian bit stream, lowest bits first, for every width (mlx's ``quantize``).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (16, 32, 64, 128)


def unpack_codes(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Words [rows, w] as codes [rows, 32 w / bits]."""
    rows = words.shape[0]
    raw = np.ascontiguousarray(words, dtype="<u4").view(np.uint8).reshape(rows, -1)
    if bits == 8:
        return raw
    span = math.lcm(bits, 8) // 8  # bytes after which codes and bytes are in step again
    count = span * 8 // bits
    groups = raw.reshape(rows, -1, span)
    codes = np.empty((rows, groups.shape[1], count), np.uint8)
    mask = np.uint8((1 << bits) - 1)
    for index in range(count):
        byte, shift = divmod(index * bits, 8)
        code = groups[:, :, byte] >> np.uint8(shift)
        if shift + bits > 8:
            code = code | (groups[:, :, byte + 1] << np.uint8(8 - shift))
        codes[:, :, index] = code & mask
    return codes.reshape(rows, -1)


def pack_codes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Codes [rows, K] as one little-endian bit stream per row, lowest bits first: uint32 [rows, K * bits / 32]."""
    rows = codes.shape[0]
    if bits == 8:
        return np.ascontiguousarray(codes).view("<u4")
    if bits == 4:
        return np.ascontiguousarray(codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))).view("<u4")
    eights = codes.reshape(rows, -1, 8)  # 8 codes are a whole number of bytes at any width
    packed = np.zeros(eights.shape[:2], np.uint64)
    for index in range(8):
        packed |= eights[:, :, index].astype(np.uint64) << np.uint64(index * bits)
    stream = packed.astype("<u8").view(np.uint8).reshape(rows, -1, 8)[:, :, :bits]
    return np.ascontiguousarray(stream).reshape(rows, -1).view("<u4")
