"""The 8-bit float e4m3 (OCP 8-bit Floating Point Specification, revision 1.0) by its bits.

Processors before sm_89 have no instruction for it. What is here is exact, and the same on all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(codes, TYPE: tl.constexpr):
    """Codes as TYPE: whole numbers and e4m3 by the processor's own conversion, e4m3 as uint8 by its bits.

    Float16 has one exponent bit more and the same layout otherwise: its bias differs by 8, subnormals included.
    """
    if codes.dtype == tl.uint8:
        bits = codes.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        return (half * 256.0).to(TYPE)
    return codes.to(TYPE)


@triton.jit
def narrow(x):
    """Float32 of magnitude up to 448, with a rounding's excess, as e4m3 in uint8: to nearest, ties to even."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    rounded = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20  # three bits of the fraction are left
    small = magnitude.to(tl.float32, bitcast=True) * 512.0 + 12582912.0 - 12582912.0  # a subnormal's unit is 2^-9
    code = tl.where(
        magnitude < 0x3C800000, small.to(tl.uint32), rounded - 120 * 8
    )  # below 2^-6; the biases' difference
    return (tl.minimum(code, 126) | ((bits >> 24) & 0x80)).to(tl.uint8)
