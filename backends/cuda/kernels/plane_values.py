"""The values of planes, read in a kernel: the one place where codes, scales and minima meet.

For GGML's types a value is exactly gguf-py's: a code times its scale is exact in float32 for every one of them, so that
each value is rounded once however a compiler fuses it. So it is for float16 scales and codes of groups.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from ....models.blocks import IQ4_CODEBOOK, MXFP4_CODEBOOK

#: Codebooks, four signed bytes a word. E2M1's hold twice its numbers.
IQ4_A, IQ4_B, IQ4_C, IQ4_D = (tl.constexpr(int(word)) for word in IQ4_CODEBOOK.astype(np.int8).view(np.int32))
FP4_A, FP4_B, FP4_C, FP4_D = (tl.constexpr(int(word)) for word in MXFP4_CODEBOOK.astype(np.int8).view(np.int32))


@triton.jit
def _half(word):
    """The float16 in a word's lower half, as float32."""
    return (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _signed(word, SHIFT: tl.constexpr):
    """The signed byte of an int32 that begins at bit SHIFT, as float32."""
    return ((word << (24 - SHIFT)) >> 24).to(tl.float32)


@triton.jit
def _fields(plane, at, lane, inside, BITS: tl.constexpr):
    """BITS of the codes of columns 0 to 31, and of 32 to 63: two int32 [R, 32]."""
    if BITS == 8:
        a = tl.load(plane + at[:, None] * 64 + lane, mask=inside, other=0).to(tl.int32)
        b = tl.load(plane + at[:, None] * 64 + 32 + lane, mask=inside, other=0).to(tl.int32)
    elif BITS == 4:
        byte = tl.load(plane + at[:, None] * 32 + lane, mask=inside, other=0).to(tl.int32)
        a, b = byte & 15, byte >> 4
    else:
        WIDTH: tl.constexpr = 8 * BITS
        MASK: tl.constexpr = (1 << BITS) - 1
        byte = tl.load(plane + at[:, None] * WIDTH + lane % WIDTH, mask=inside, other=0).to(tl.int32)
        shift = lane // WIDTH * BITS
        a, b = (byte >> shift) & MASK, (byte >> (shift + 4)) & MASK
    return a, b


@triton.jit
def _codebook(code, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Entry ``code`` of 16 signed bytes, four to a word A, B, C, D: no memory is read for it."""
    word = tl.where(code < 8, tl.where(code < 4, A, B), tl.where(code < 12, C, D))
    return ((word << (24 - (code & 3) * 8)) >> 24).to(tl.float32)


@triton.jit
def _number(code, ZERO: tl.constexpr, MEANING: tl.constexpr):
    """What a code stands for, as float32; of "e2m1" twice that, of "e4m3" a 256th."""
    if MEANING == "iq4":
        value = _codebook(code, IQ4_A, IQ4_B, IQ4_C, IQ4_D)
    elif MEANING == "e2m1":
        value = _codebook(code, FP4_A, FP4_B, FP4_C, FP4_D)
    elif MEANING == "e4m3":  # exponent and mantissa as float16's, whose bias is 8 larger
        half = ((code & 127) << 7) | ((code & 128) << 8)
        value = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        value = (code - ZERO).to(tl.float32)
    return value


@triton.jit
def _power(exponent):
    """2^(exponent - 128) as float32, for exponents from 0 to 255; the first two are below the normal numbers."""
    bits = tl.where(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _super_scales(word, lane, valid, scale, minimum, group, SCALES: tl.constexpr):
    """Scale and minimum, each for columns 0 to 31 and 32 to 63, of K-quants: float32 [R, 1] or [R, 32]."""
    d, word = tl.load(scale + group, mask=valid, other=0.0).to(tl.float32)[:, None], word[:, None]
    left = lane < 16
    least_a, least_b = 0.0, 0.0
    if SCALES == "super, minimum":
        dmin = tl.load(minimum + group, mask=valid, other=0.0).to(tl.float32)[:, None]
        a, b = d * (word & 255).to(tl.float32), d * ((word >> 16) & 255).to(tl.float32)
        least_a, least_b = dmin * ((word >> 8) & 255).to(tl.float32), dmin * ((word >> 24) & 255).to(tl.float32)
    elif SCALES == "super, 16, minimum":
        dmin = tl.load(minimum + group, mask=valid, other=0.0).to(tl.float32)[:, None]
        part_a, part_b = tl.where(left, word, word >> 8), tl.where(left, word >> 16, word >> 24)
        a, b = d * (part_a & 15).to(tl.float32), d * (part_b & 15).to(tl.float32)
        least_a, least_b = dmin * ((part_a >> 4) & 15).to(tl.float32), dmin * ((part_b >> 4) & 15).to(tl.float32)
    elif SCALES == "super, 16":
        a = d * tl.where(left, _signed(word, 0), _signed(word, 8))
        b = d * tl.where(left, _signed(word, 16), _signed(word, 24))
    else:
        a, b = d * _signed(word, 0), d * _signed(word, 8)
    return a, b, least_a, least_b


@triton.jit
def decode_tile(
    low, high, words, scale, minimum, tile, row, valid, rows,
    LOW: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, MEANING: tl.constexpr, SCALES: tl.constexpr,
    GROUP: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Columns 0 to 31 and 32 to 63 of ``tile`` (one, or [R]) of ``row`` [R]: two float32 [R, 32].

    Rows that are not ``valid`` are zero.
    """
    lane = tl.arange(0, 32)[None, :]
    tile = tile.to(tl.int64)
    at = tile * rows + row
    code_a, code_b = _fields(low, at, lane, valid[:, None], LOW)
    if HIGH > 0:
        high_a, high_b = _fields(high, at, lane, valid[:, None], HIGH)
        code_a, code_b = code_a | (high_a << LOW), code_b | (high_b << LOW)
    a, b = _number(code_a, ZERO, MEANING), _number(code_b, ZERO, MEANING)
    if SCALES == "half" or SCALES == "half, minimum":
        PARTS: tl.constexpr = 2 if SCALES == "half, minimum" else 1
        place = words + tile * PARTS * rows + row
        word = tl.load(place, mask=valid, other=0)
        a, b = a * _half(word)[:, None], b * _half(word >> 16)[:, None]
        if PARTS == 2:
            word = tl.load(place + rows, mask=valid, other=0)
            a, b = a + _half(word)[:, None], b + _half(word >> 16)[:, None]
    elif SCALES == "power":
        word = tl.load(words + at, mask=valid, other=0).to(tl.int32)
        s_a, s_b = _power(word & 255), _power((word >> 8) & 255)
        if MEANING == "e4m3":
            s_a, s_b = s_a * 512, s_b * 512
        a, b = a * s_a[:, None], b * s_b[:, None]
    elif SCALES == "group" or SCALES == "group, minimum":
        wide = (rows + SHARED - 1) // SHARED
        first, second = tile * 0, tile * 0
        if GROUP > 0:
            first, second = tile * 64 // GROUP, (tile * 64 + 32) // GROUP
        first, second = first * wide + row // SHARED, second * wide + row // SHARED
        s_a = tl.load(scale + first, mask=valid, other=0.0).to(tl.float32)
        s_b = tl.load(scale + second, mask=valid, other=0.0).to(tl.float32)
        if MEANING == "e4m3":
            s_a, s_b = s_a * 256, s_b * 256
        if SCALES == "group, minimum":
            m_a = tl.load(minimum + first, mask=valid, other=0).to(tl.float32)[:, None]
            m_b = tl.load(minimum + second, mask=valid, other=0).to(tl.float32)[:, None]
            if minimum.dtype.element_ty == tl.uint8:
                a, b = (a - m_a) * s_a[:, None], (b - m_b) * s_b[:, None]
            else:
                a, b = a * s_a[:, None] + m_a, b * s_b[:, None] + m_b
        else:
            a, b = a * s_a[:, None], b * s_b[:, None]
    else:
        word = tl.load(words + at, mask=valid, other=0).to(tl.int32)
        s_a, s_b, least_a, least_b = _super_scales(word, lane, valid, scale, minimum, tile // 4 * rows + row, SCALES)
        a, b = a * s_a - least_a, b * s_b - least_b
    return a, b
