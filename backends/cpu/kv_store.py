"""Queries, keys and values out of one matrix: normed, rotated, and K and V stored in the pool as what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from .elementwise import floats, grain, normalise
from .halves import store_halves
from .native import int_pointer, link
from .simd import F16, F32, I8, I32, WIDTH, Emitter, cgutils, kernel, parallel_for

#: The largest code of an int8 head; symmetric, so -128 never occurs.
LARGEST = 127.0
#: The smallest scale, float32's smallest normal number.
TINY = 2.0**-126


@kernel()
def rope_and_store(
    qkv: int,
    positions: int,
    slots: int,
    cos: int,
    sin: int,
    q_norm: int,
    k_norm: int,
    q: int,
    keys: int,
    values: int,
    key_scales: int,
    value_scales: int,
    nbytes: int,
    rows: int,
    heads: int,
    kv_heads: int,
    dim: int,
    half: int,
    eps: float,
) -> None:
    """Split ``qkv`` [rows, (heads + 2 kv_heads) * dim]; norm q and k by ``q_norm``, ``k_norm`` [dim] (0: not); rotate
    their first ``2 * half`` dims by ``cos``, ``sin`` [positions, half] at ``positions`` int64 [rows]; write ``q``
    [rows, heads, dim], and ``keys``, ``values`` [slots, kv_heads, dim] at ``slots`` int64 [rows]. ``nbytes`` of an
    element says what these are: float32 or, dim being a multiple of eight, float16 (rounded once) or int8 with
    ``key_scales``, ``value_scales`` [slots, kv_heads]."""
    shape = (heads, kv_heads, dim, half, np.float32(eps))
    places = (positions, slots, cos, sin, q_norm, k_norm)
    pool = (keys, values, key_scales, value_scales, nbytes)
    parallel_for(_rope_rows, rows, grain((heads + 2 * kv_heads) * dim), (qkv, q, pool, places, shape))


@kernel()
def _rope_rows(start: int, end: int, qkv: int, q: int, pool: Any, places: Any, shape: Any) -> None:
    positions, slots, cos, sin, q_norm, k_norm = places
    keys, values, key_scales, value_scales, nbytes = pool
    heads, kv_heads, dim, half, eps = shape
    turned = np.empty(dim, np.float32)
    position = carray(int_pointer(positions), (end,))
    slot = carray(int_pointer(slots), (end,))
    size = dim * 4
    for row in range(start, end):
        source = qkv + row * (heads + 2 * kv_heads) * size
        turn = position[row] * half * 4
        c, s = floats(cos + turn, half), floats(sin + turn, half)
        for head in range(heads):
            target = floats(q + (row * heads + head) * size, dim)
            _turn(floats(source + head * size, dim), target, c, s, q_norm, eps)
        source += heads * size
        for head in range(kv_heads):
            place = slot[row] * kv_heads + head
            key, value = source + head * size, source + (kv_heads + head) * size
            own = place * dim * nbytes
            if nbytes == 4:
                _turn(floats(key, dim), floats(keys + own, dim), c, s, k_norm, eps)
                old, new = floats(value, dim), floats(values + own, dim)
                for i in range(dim):
                    new[i] = old[i]
                continue
            _turn(floats(key, dim), turned, c, s, k_norm, eps)
            if nbytes == 2:
                round_halves(turned.ctypes.data, dim, keys + own)
                round_halves(value, dim, values + own)
            else:
                quantise(turned.ctypes.data, dim, keys + own, key_scales + place * 4)
                quantise(value, dim, values + own, value_scales + place * 4)


@kernel()
def _turn(x: Any, out: Any, cos: Any, sin: Any, norm: int, eps: float) -> None:
    """Norm and rotate one head."""
    half = len(cos)
    if norm != 0:
        normalise(x, floats(norm, len(x)), out, eps)
        x = out
    for i in range(half):
        a, b = x[i], x[i + half]
        out[i] = a * cos[i] - b * sin[i]
        out[i + half] = b * cos[i] + a * sin[i]
    for i in range(2 * half, len(x)):
        out[i] = x[i]


def _quantise(e: Emitter, x: Any, n: Any, codes: Any, scale: Any) -> None:
    """``codes`` int8 [n] and their ``scale``, as ``backends.cuda.kv.quantise`` makes them of ``x``; n in eights.

    The bits of floats without their sign are in the floats' order, infinity and NaN the largest. Adding 1.5 * 2^23 to a
    float rounds it to even and leaves the integer in the low bits.
    """
    b = e.builder
    x, codes, scale = (e.pointer(address) for address in (x, codes, scale))
    top = cgutils.alloca_once_value(b, e.splat(0, e.ints))
    with e.loop(n, WIDTH) as i:
        bits = b.and_(e.load(e.offset(x, i), e.ints), e.splat(0x7FFFFFFF, e.ints))
        before = b.load(top, typ=e.ints)
        b.store(b.select(b.icmp_signed(">", bits, before), bits, before), top)
    highest = e.fold(b.load(top, typ=e.ints), lambda one, two: b.select(b.icmp_signed(">", one, two), one, two))
    step = b.fdiv(b.bitcast(highest, F32), F32(LARGEST))
    step = b.select(b.fcmp_ordered("<", step, F32(TINY)), F32(TINY), step)
    step = b.select(b.icmp_signed(">=", highest, I32(0x7F800000)), F32(float("nan")), step)
    e.store(step, scale)
    steps = e.splat(step)
    with e.loop(n, WIDTH) as i:
        rounded = b.fadd(b.fdiv(e.load(e.offset(x, i)), steps), e.splat(12582912.0))
        b.store(b.trunc(b.bitcast(rounded, e.ints), e.of(I8)), e.offset(codes, i, kind=I8), align=1)


def _round_halves(e: Emitter, x: Any, n: Any, out: Any) -> None:
    """``out`` float16 [n], the nearest to float32 ``x``, ties to even; n in eights."""
    x, out = e.pointer(x), e.pointer(out)
    with e.loop(n, WIDTH) as i:
        store_halves(e, e.load(e.offset(x, i)), e.offset(out, i, kind=F16))


_stores = link({"quantise": (4, _quantise), "round_halves": (3, _round_halves)})
quantise, round_halves = _stores["quantise"], _stores["round_halves"]
