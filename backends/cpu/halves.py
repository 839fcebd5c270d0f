"""Float16 in kernels: read as float32, written from it. By instructions where the processor has them, else bit by bit.

Left to itself LLVM would call a library that may not be there.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

from . import jit
from .simd import F16, I16, I32, Emitter

#: Whether the processor converts by itself: ARM always, x86 with F16C.
NATIVE = "f16c" in jit.target()[1] or platform.machine().lower() in ("aarch64", "arm64")

_INFINITY = 0x7F800000
_LEAST_NORMAL = 0x38800000  # 2^-14
_OVERFLOW = 0x477FF000  # 65520: from here on the nearest is infinity


def load_halves(e: Emitter, pointer: Any, native: bool = NATIVE) -> Any:
    """A vector of float16, as float32."""
    if native:
        return e.builder.fpext(e.builder.load(pointer, typ=e.of(F16), align=2), e.vector)
    b, every = e.builder, _everywhere(e)
    bits = b.zext(b.load(pointer, typ=e.of(I16), align=2), e.ints)
    sign = b.shl(b.and_(bits, every(0x8000)), every(16))
    size = b.shl(b.and_(bits, every(0x7FFF)), every(13))  # with float16's exponents, 112 too small
    scaled = b.bitcast(b.fmul(b.bitcast(size, e.vector), e.splat(2.0**112)), e.ints)  # subnormals too
    endless = b.icmp_unsigned(">=", size, every(0x7C00 << 13))
    return b.bitcast(b.or_(sign, b.select(endless, b.or_(scaled, every(_INFINITY)), scaled)), e.vector)


def store_halves(e: Emitter, value: Any, pointer: Any, native: bool = NATIVE) -> None:
    """Float32 rounded to float16, ties to even; infinity where it is too large."""
    if native:
        e.builder.store(e.builder.fptrunc(value, e.of(F16)), pointer, align=2)
        return
    b, every = e.builder, _everywhere(e)
    bits = b.bitcast(value, e.ints)
    sign, size = b.lshr(b.and_(bits, every(0x80000000)), every(16)), b.and_(bits, every(0x7FFFFFFF))
    odd = b.and_(b.lshr(size, every(13)), every(1))
    normal = b.lshr(b.sub(b.add(size, b.add(odd, every(0xFFF))), every(112 << 23)), every(13))
    # the last bit of 0.5 is float16's smallest step: the addition rounds
    small = b.sub(b.bitcast(b.fadd(b.bitcast(size, e.vector), e.splat(0.5)), e.ints), every(0x3F000000))
    half = b.select(b.icmp_unsigned("<", size, every(_LEAST_NORMAL)), small, normal)
    half = b.select(b.icmp_unsigned(">=", size, every(_OVERFLOW)), every(0x7C00), half)
    half = b.select(b.icmp_unsigned(">", size, every(_INFINITY)), every(0x7E00), half)
    b.store(b.trunc(b.or_(half, sign), e.of(I16)), pointer, align=2)


def _everywhere(e: Emitter) -> Any:
    return lambda number: ir.Constant(e.ints, [ir.Constant(I32, number)] * e.width)
