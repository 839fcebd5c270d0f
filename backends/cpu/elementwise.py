"""The small operations between the linear layers, float32, each one pass over its rows.

Arguments are addresses (``Tensor.data_ptr``) and counts; widths are multiples of eight where a kernel says so. Rows are
shared among threads once there is enough work; how they are shared never changes a result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from .simd import WIDTH, Emitter, float_pointer, int_pointer, kernel, link, parallel_for

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
    rows: int,
    heads: int,
    kv_heads: int,
    dim: int,
    half: int,
    eps: float,
) -> None:
    """Split ``qkv`` [rows, (heads + 2 kv_heads) * dim]; norm q and k by ``q_norm``, ``k_norm`` [dim] (0: not); rotate
    their first ``2 * half`` dims by ``cos``, ``sin`` [positions, half] at ``positions`` int64 [rows]; write ``q``
    [rows, heads, dim], and ``keys``, ``values`` [slots, kv_heads, dim] at ``slots`` int64 [rows]."""
    shape = (heads, kv_heads, dim, half, np.float32(eps))
    places = (positions, slots, cos, sin, q_norm, k_norm)
    grain = _grain((heads + 2 * kv_heads) * dim)
    parallel_for(_rope_rows, rows, grain, (qkv, q, keys, values, places, shape))


@kernel()
def _rope_rows(start: int, end: int, qkv: int, q: int, keys: int, values: int, places: Any, shape: Any) -> None:
    positions, slots, cos, sin, q_norm, k_norm = places
    heads, kv_heads, dim, half, eps = shape
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
        place = slot[row] * kv_heads * size
        for head in range(kv_heads):
            _turn(_floats(source + head * size, dim), _floats(keys + place + head * size, dim), c, s, k_norm, eps)
        old = _floats(source + kv_heads * size, kv_heads * dim)
        new = _floats(values + place, kv_heads * dim)
        for i in range(kv_heads * dim):
            new[i] = old[i]


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


def _silu_times(e: Emitter, gate: Any, up: Any, out: Any, n: Any) -> None:
    """``out`` = gate / (1 + e^-gate) * up, all [n]; n a multiple of eight."""
    b = e.builder
    gate, up, out = e.pointer(gate), e.pointer(up), e.pointer(out)
    with e.loop(n, WIDTH) as i:
        g = e.load(e.offset(gate, i))
        sigmoid = b.fdiv(e.splat(1.0), b.fadd(e.splat(1.0), e.exp(b.fsub(e.splat(-0.0), g))))
        e.store(b.fmul(b.fmul(g, sigmoid), e.load(e.offset(up, i))), e.offset(out, i))


silu_times = link({"silu_times": (4, _silu_times)})["silu_times"]


@kernel()
def swiglu(gate_up: int, out: int, rows: int, width: int) -> None:
    """``out`` [rows, width] = silu(gate) * up of ``gate_up`` [rows, 2 * width]; width a multiple of eight."""
    parallel_for(_swiglu_rows, rows, _grain(width), (gate_up, out, width))


@kernel()
def _swiglu_rows(start: int, end: int, gate_up: int, out: int, width: int) -> None:
    for row in range(start, end):
        gate = gate_up + row * width * 8
        silu_times(gate, gate + width * 4, out + row * width * 4, width)
