"""The small operations between the linear layers, float32, each one pass over its rows.

Arguments are addresses (``Tensor.data_ptr``) and counts; widths are multiples of eight where a kernel says so. Rows are
shared among threads once there is enough work; how they are shared never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from ...models.gelu import GELU_CUBE, GELU_SLOPE
from .native import float_pointer, link
from .simd import WIDTH, Emitter, kernel, parallel_for

#: Elements worth handing to another thread.
GRAIN = 8192


@kernel(inline="always")
def grain(width: int) -> int:
    """Rows of ``width`` worth handing to another thread."""
    return (GRAIN + width - 1) // width


@kernel()
def rms_norm(x: int, weight: int, out: int, rows: int, width: int, eps: float) -> None:
    """``out`` [rows, width] = x / sqrt(mean(x^2) + eps) * weight."""
    parallel_for(_norm_rows, rows, grain(width), (x, weight, out, width, np.float32(eps)))


@kernel()
def _norm_rows(start: int, end: int, x: int, weight: int, out: int, width: int, eps: float) -> None:
    for row in range(start, end):
        place = row * width * 4
        normalise(floats(x + place, width), floats(weight, width), floats(out + place, width), eps)


@kernel()
def add_rms_norm(x: int, residual: int, weight: int, out: int, total: int, rows: int, width: int, eps: float) -> None:
    """``total`` = x + residual and ``out`` = rms_norm(total), all [rows, width]."""
    arrays = (x, residual, weight, out, total)
    parallel_for(_add_norm_rows, rows, grain(width), (arrays, width, np.float32(eps)))


@kernel()
def _add_norm_rows(start: int, end: int, arrays: Any, width: int, eps: float) -> None:
    x, residual, weight, out, total = arrays
    for row in range(start, end):
        place = row * width * 4
        added = floats(total + place, width)
        a, b = floats(x + place, width), floats(residual + place, width)
        for i in range(width):
            added[i] = a[i] + b[i]
        normalise(added, floats(weight, width), floats(out + place, width), eps)


@kernel(inline="always")
def floats(address: int, count: int) -> Any:
    """``count`` float32 at ``address``."""
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
    """2 SLOPE (g + CUBE g^3): (1 + tanh(z)) / 2 is the logistic function of 2 z."""
    b = e.builder
    inner = e.fma(b.fmul(g, g), e.splat(2 * GELU_SLOPE * GELU_CUBE), e.splat(2 * GELU_SLOPE))
    return b.fmul(g, inner)


_linked = link({"silu_times": (4, _gate_times(lambda e, g: g)), "gelu_times": (4, _gate_times(_tanh_turn))})
silu_times, gelu_times = _linked["silu_times"], _linked["gelu_times"]


@kernel()
def swiglu(gate_up: int, out: int, rows: int, width: int) -> None:
    """``out`` [rows, width] = silu(gate) * up of ``gate_up`` [rows, 2 * width]; width a multiple of eight."""
    parallel_for(_swiglu_rows, rows, grain(width), (gate_up, out, width))


@kernel()
def _swiglu_rows(start: int, end: int, gate_up: int, out: int, width: int) -> None:
    for row in range(start, end):
        gate = gate_up + row * width * 8
        silu_times(gate, gate + width * 4, out + row * width * 4, width)


@kernel()
def geglu(gate_up: int, out: int, rows: int, width: int) -> None:
    """``out`` [rows, width] = gelu(gate) * up of ``gate_up`` [rows, 2 * width], GELU by tanh; width in eights."""
    parallel_for(_geglu_rows, rows, grain(width), (gate_up, out, width))


@kernel()
def _geglu_rows(start: int, end: int, gate_up: int, out: int, width: int) -> None:
    for row in range(start, end):
        gate = gate_up + row * width * 8
        gelu_times(gate, gate + width * 4, out + row * width * 4, width)
