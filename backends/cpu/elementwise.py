"""The small operations between the linear layers, float32, each one pass over its rows.

Arguments are addresses (``Tensor.data_ptr``) and counts; widths are multiples of eight where a kernel says so. Rows are
shared among threads once there is enough work; how they are shared never changes a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from .halves import store_halves
from .native import float_pointer, int_pointer, link
from .simd import F16, F32, I8, I32, WIDTH, Emitter, cgutils, kernel, parallel_for

#: The largest code of an int8 head; symmetric, so -128 never occurs.
LARGEST = 127.0
#: The smallest scale, float32's smallest normal number.
TINY = 2.0**-126

#: GELU by tanh (arXiv:1606.08415): x / 2 (1 + tanh(SLOPE (x + CUBE x^3))).
GELU_SLOPE, GELU_CUBE = math.sqrt(2 / math.pi), 0.044715

#: Elements worth handing to another thread.
GRAIN = 8192


@kernel(inline="always")
def _grain(width: int) -> int:
    return (GRAIN + width - 1) // width


@kernel()
def rms_norm(x: int, weight: int, out: int, rows: int, width: int, eps: float) -> None:
    """``out`` [rows, width] = x / sqrt(mean(x^2) + eps) * weight."""
    parallel_for(_norm_rows, rows, _grain(width), (x, weight, out, width, np.float32(eps)))


@kernel()
def _norm_rows(start: int, end: int, x: int, weight: int, out: int, width: int, eps: float) -> None:
    for row in range(start, end):
        place = row * width * 4
        normalise(_floats(x + place, width), _floats(weight, width), _floats(out + place, width), eps)


@kernel()
def add_rms_norm(x: int, residual: int, weight: int, out: int, total: int, rows: int, width: int, eps: float) -> None:
    """``total`` = x + residual and ``out`` = rms_norm(total), all [rows, width]."""
    arrays = (x, residual, weight, out, total)
    parallel_for(_add_norm_rows, rows, _grain(width), (arrays, width, np.float32(eps)))


@kernel()
def _add_norm_rows(start: int, end: int, arrays: Any, width: int, eps: float) -> None:
    x, residual, weight, out, total = arrays
    for row in range(start, end):
        place = row * width * 4
        added = _floats(total + place, width)
        a, b = _floats(x + place, width), _floats(residual + place, width)
        for i in range(width):
            added[i] = a[i] + b[i]
        normalise(added, _floats(weight, width), _floats(out + place, width), eps)


@kernel(inline="always")
def _floats(address: int, count: int) -> Any:
    return carray(float_pointer(address), (count,))


@kernel()
def normalise(x: Any, weight: Any, out: Any, eps: float) -> None:
    """One row of ``rms_norm``; ``out`` may be ``x``."""
    squares = np.float32(0.0)
    for i in range(len(x)):
        squares += x[i] * x[i]
    factor = np.float32(1.0) / np.sqrt(squares / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = x[i] * factor * weight[i]


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
    grain = _grain((heads + 2 * kv_heads) * dim)
    parallel_for(_rope_rows, rows, grain, (qkv, q, (keys, values, key_scales, value_scales, nbytes), places, shape))


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
        c, s = _floats(cos + turn, half), _floats(sin + turn, half)
        for head in range(heads):
            target = _floats(q + (row * heads + head) * size, dim)
            _turn(_floats(source + head * size, dim), target, c, s, q_norm, eps)
        source += heads * size
        for head in range(kv_heads):
            place = slot[row] * kv_heads + head
            key, value = source + head * size, source + (kv_heads + head) * size
            own = place * dim * nbytes
            if nbytes == 4:
                _turn(_floats(key, dim), _floats(keys + own, dim), c, s, k_norm, eps)
                old, new = _floats(value, dim), _floats(values + own, dim)
                for i in range(dim):
                    new[i] = old[i]
                continue
            _turn(_floats(key, dim), turned, c, s, k_norm, eps)
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
        normalise(x, _floats(norm, len(x)), out, eps)
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


def _gate_times(turn: Callable[[Emitter, Any], Any]) -> Callable[..., None]:
    """Code for ``out`` = gate / (1 + e^-t) * up, all [n], t being ``turn`` of the gate; n a multiple of eight."""

    def emit(e: Emitter, gate: Any, up: Any, out: Any, n: Any) -> None:
        b = e.builder
        gate, up, out = e.pointer(gate), e.pointer(up), e.pointer(out)
        with e.loop(n, WIDTH) as i:
            g = e.load(e.offset(gate, i))
            sigmoid = b.fdiv(e.splat(1.0), b.fadd(e.splat(1.0), e.exp(b.fsub(e.splat(-0.0), turn(e, g)))))
            e.store(b.fmul(b.fmul(g, sigmoid), e.load(e.offset(up, i))), e.offset(out, i))

    return emit


def _tanh_turn(e: Emitter, g: Any) -> Any:
    """2 sqrt(2 / pi) (g + 0.044715 g^3): (1 + tanh(z)) / 2 is the logistic function of 2 z."""
    b = e.builder
    inner = e.fma(b.fmul(g, g), e.splat(2 * GELU_SLOPE * GELU_CUBE), e.splat(2 * GELU_SLOPE))
    return b.fmul(g, inner)


_linked = link({"silu_times": (4, _gate_times(lambda e, g: g)), "gelu_times": (4, _gate_times(_tanh_turn))})
silu_times, gelu_times = _linked["silu_times"], _linked["gelu_times"]


@kernel()
def swiglu(gate_up: int, out: int, rows: int, width: int) -> None:
    """``out`` [rows, width] = silu(gate) * up of ``gate_up`` [rows, 2 * width]; width a multiple of eight."""
    parallel_for(_swiglu_rows, rows, _grain(width), (gate_up, out, width))


@kernel()
def _swiglu_rows(start: int, end: int, gate_up: int, out: int, width: int) -> None:
    for row in range(start, end):
        gate = gate_up + row * width * 8
        silu_times(gate, gate + width * 4, out + row * width * 4, width)


@kernel()
def geglu(gate_up: int, out: int, rows: int, width: int) -> None:
    """``out`` [rows, width] = gelu(gate) * up of ``gate_up`` [rows, 2 * width], GELU by tanh; width in eights."""
    parallel_for(_geglu_rows, rows, _grain(width), (gate_up, out, width))


@kernel()
def _geglu_rows(start: int, end: int, gate_up: int, out: int, width: int) -> None:
    for row in range(start, end):
        gate = gate_up + row * width * 8
        gelu_times(gate, gate + width * 4, out + row * width * 4, width)
