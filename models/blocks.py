"""GGML's block formats taken apart: unsigned codes, and per group a scale with a minimum, a zero point or a codebook.

The layouts are those of ggml-common.h, and MXFP4's numbers those of OCP Microscaling Formats v1.0. Nothing is
multiplied here that the format's own decoding doesn't multiply first, so that ``Blocks.values`` rounds exactly as the
reference decoders do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

IQ4_CODEBOOK = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)  # fmt: skip
#: E2M1 numbers times two; the file's scale is halved to match, and the code of minus zero stands for zero.
MXFP4_CODEBOOK = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.float32)
_NIBBLES = np.array((0, 4), np.uint8)
_PAIRS = np.array((0, 2, 4, 6), np.uint8)
_BITS = np.arange(8, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Blocks:
    """n blocks of one type. A group is block / groups consecutive elements."""

    codes: Bytes  # [n, elements per block]
    scale: Floats  # [n, groups]
    minimum: Floats | None = None  # [n, groups]: value = scale * code + minimum
    zero: int = 0  # value = scale * (code - zero)
    codebook: Floats | None = None  # [16]: value = scale * codebook[code]

    def values(self) -> Floats:
        """The float32 values [n, elements per block]."""
        n, groups = self.scale.shape
        if self.codebook is not None:
            levels = self.codebook[self.codes]
        else:
            levels = self.codes.astype(np.float32)
            if self.zero:
                levels -= np.float32(self.zero)
        grouped = levels.reshape(n, groups, -1)
        with np.errstate(invalid="ignore", over="ignore"):  # a broken file's infinities are the model's trouble
            grouped *= self.scale[:, :, None]
            if self.minimum is not None:
                grouped += self.minimum[:, :, None]
        return grouped.reshape(n, -1)


def unpack(kind: str, blocks: Bytes) -> Blocks:
    """Take ``blocks`` (uint8 [n, bytes per block]) of type ``kind`` apart. KeyError for a type without a decoder."""
    return UNPACKERS[kind](blocks)


def _half(part: Bytes) -> Floats:
    """Little-endian float16 bytes [n, 2 k] as float32 [n, k]."""
    return np.ascontiguousarray(part).view("<f2").astype(np.float32)


def _low_high(part: Bytes, run: int) -> Bytes:
    """Nibbles of bytes [n, b]: of each run of ``run`` bytes the low ones, then the high ones: [n, 2 b]."""
    n = part.shape[0]
    return ((part.reshape(n, -1, 1, run) >> _NIBBLES[:, None]) & np.uint8(15)).reshape(n, -1)


def _quarters(part: Bytes) -> Bytes:
    """2-bit fields of bytes [n, b]: of each 32 bytes the lowest fields, and so on up: [n, 4 b]."""
    n = part.shape[0]
    return ((part.reshape(n, -1, 1, 32) >> _PAIRS[:, None]) & np.uint8(3)).reshape(n, -1)


def _bit_planes(part: Bytes) -> Bytes:
    """Bits of 32 bytes [n, 32]: all lowest bits first: [n, 256]."""
    n = part.shape[0]
    return ((part.reshape(n, 1, 32) >> _BITS[:, None]) & np.uint8(1)).reshape(n, -1)


def _stream_bits(part: Bytes) -> Bytes:
    """Bits of bytes [n, b] in order, lowest first: [n, 8 b]."""
    return np.unpackbits(part, axis=1, bitorder="little")


def _q4_0(b: Bytes) -> Blocks:
    return Blocks(_low_high(b[:, 2:], 16), _half(b[:, :2]), zero=8)


def _q4_1(b: Bytes) -> Blocks:
    return Blocks(_low_high(b[:, 4:], 16), _half(b[:, :2]), _half(b[:, 2:4]))


def _q5_0(b: Bytes) -> Blocks:
    codes = _low_high(b[:, 6:], 16) | (_stream_bits(b[:, 2:6]) << np.uint8(4))
    return Blocks(codes, _half(b[:, :2]), zero=16)


def _q5_1(b: Bytes) -> Blocks:
    codes = _low_high(b[:, 8:], 16) | (_stream_bits(b[:, 4:8]) << np.uint8(4))
    return Blocks(codes, _half(b[:, :2]), _half(b[:, 2:4]))


def _q8_0(b: Bytes) -> Blocks:
    return Blocks(b[:, 2:] ^ np.uint8(128), _half(b[:, :2]), zero=128)  # int8 + 128


def _q2_k(b: Bytes) -> Blocks:
    scales = b[:, :16]
    scale = _half(b[:, 80:82]) * (scales & np.uint8(15)).astype(np.float32)
    minimum = _half(b[:, 82:84]) * (scales >> np.uint8(4)).astype(np.float32)
    return Blocks(_quarters(b[:, 16:80]), scale, -minimum)


def _q3_k(b: Bytes) -> Blocks:
    codes = _quarters(b[:, 32:96]) | (_bit_planes(b[:, :32]) << np.uint8(2))
    low = _low_high(b[:, 96:104], 8)
    high = (b[:, 104:108].reshape(-1, 1, 4) >> _PAIRS[:, None]) & np.uint8(3)
    scales = (low | (high.reshape(-1, 16) << np.uint8(4))).astype(np.float32) - np.float32(32)
    return Blocks(codes, _half(b[:, 108:110]) * scales, zero=4)


def _k_scales(b: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of the eight groups of Q4_K and Q5_K blocks, 6 bits each in bytes 4 to 15: [n, 8] twice."""
    first, second, rest = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    six, four, two = np.uint8(63), np.uint8(4), np.uint8(0x30)
    scales = np.concatenate((first & six, (rest & np.uint8(15)) | ((first >> np.uint8(2)) & two)), axis=1)
    minima = np.concatenate((second & six, (rest >> four) | ((second >> np.uint8(2)) & two)), axis=1)
    return _half(b[:, :2]) * scales.astype(np.float32), -(_half(b[:, 2:4]) * minima.astype(np.float32))


def _q4_k(b: Bytes) -> Blocks:
    return Blocks(_low_high(b[:, 16:], 32), *_k_scales(b))


def _q5_k(b: Bytes) -> Blocks:
    codes = _low_high(b[:, 48:], 32) | (_bit_planes(b[:, 16:48]) << np.uint8(4))
    return Blocks(codes, *_k_scales(b))


def _q6_k(b: Bytes) -> Blocks:
    codes = _low_high(b[:, :128], 64) | (_quarters(b[:, 128:192]) << np.uint8(4))
    scales = b[:, 192:208].view(np.int8).astype(np.float32)
    return Blocks(codes, _half(b[:, 208:210]) * scales, zero=32)


def _iq4_nl(b: Bytes) -> Blocks:
    return Blocks(_low_high(b[:, 2:], 16), _half(b[:, :2]), codebook=IQ4_CODEBOOK)


def _iq4_xs(b: Bytes) -> Blocks:
    low = ((b[:, 4:8, None] >> _NIBBLES) & np.uint8(15)).reshape(-1, 8)
    high: NDArray[Any] = np.ascontiguousarray(b[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    scales = (low | ((high & np.uint16(3)) << np.uint16(4)).astype(np.uint8)).astype(np.float32) - np.float32(32)
    return Blocks(_low_high(b[:, 8:], 16), _half(b[:, :2]) * scales, codebook=IQ4_CODEBOOK)


def _mxfp4(b: Bytes) -> Blocks:
    scale = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128)
    return Blocks(_low_high(b[:, 1:], 16), scale, codebook=MXFP4_CODEBOOK)


UNPACKERS: dict[str, Callable[[Bytes], Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
