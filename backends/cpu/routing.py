"""Which experts a token goes to, and its way there and back: kernels around the experts' own products.

Arguments are addresses (``Tensor.data_ptr``) and counts. Nothing that a row becomes depends on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from .elementwise import grain
from .native import float_pointer, int_pointer, link
from .simd import WIDTH, Emitter, kernel, parallel_for

#: Sums that one product of two rows is added up in, so that additions need not wait for each other.
SUMS = 4


def _dot(e: Emitter, a: Any, b: Any, n: Any, out: Any) -> None:
    """The float32 at ``out`` = sum of a * b, both [n]; n a multiple of eight. The order depends on n alone."""
    builder = e.builder
    a, b, out = e.pointer(a), e.pointer(b), e.pointer(out)
    sums = [e.variable(e.splat(0.0)) for _ in range(SUMS)]
    whole = builder.mul(builder.udiv(n, e.number(SUMS * WIDTH)), e.number(SUMS * WIDTH))
    with e.loop(whole, SUMS * WIDTH) as i:
        for place, total in enumerate(sums):
            x, y = (e.load(e.offset(each, i, place * WIDTH)) for each in (a, b))
            e.set(total, e.fma(x, y, e.get(total)))
    with e.loop(n, WIDTH, whole) as i:
        e.set(sums[0], e.fma(e.load(e.offset(a, i)), e.load(e.offset(b, i)), e.get(sums[0])))
    first, second, third, fourth = (e.get(total) for total in sums)
    total = builder.fadd(builder.fadd(first, second), builder.fadd(third, fourth))
    e.store(e.sum(total), out)


dot = link({"dot": (4, _dot)})["dot"]


@kernel()
def route(
    x: int, router: int, shares: int, chosen: int, rows: int, width: int, experts: int, top_k: int, normalise: bool
) -> None:
    """``shares`` float32 and ``chosen`` int64 [rows, top_k] of ``x`` [rows, width] by ``router`` [experts, width], as
    ``Ops.moe`` has them; width a multiple of eight."""
    shape = (width, experts, top_k, normalise)
    parallel_for(_route_rows, rows, grain(width * experts), (x, router, shares, chosen, shape))


@kernel()
def _route_rows(start: int, end: int, x: int, router: int, shares: int, chosen: int, shape: Any) -> None:
    width, experts, top_k, normalise = shape
    logits = np.empty(experts, np.float32)
    taken = np.empty(experts, np.bool_)
    for row in range(start, end):
        for expert in range(experts):
            dot(x + row * width * 4, router + expert * width * 4, width, logits.ctypes.data + expert * 4)
            taken[expert] = False
        picked = carray(int_pointer(chosen + row * top_k * 8), (top_k,))
        share = carray(float_pointer(shares + row * top_k * 4), (top_k,))
        for rank in range(top_k):
            best = -1
            for expert in range(experts):
                if not taken[expert] and (best < 0 or logits[expert] > logits[best]):
                    best = expert
            taken[best] = True
            picked[rank] = best
        _soften(logits, picked, share, normalise)


@kernel()
def _soften(logits: Any, picked: Any, share: Any, normalise: bool) -> None:
    """The picked logits' part of a softmax over all, or over themselves alone where they are to add up to one."""
    top, total = logits[picked[0]], np.float32(0.0)
    for expert in range(len(logits)):
        total += np.exp(logits[expert] - top)
    mine = np.float32(0.0)
    for rank in range(len(picked)):
        share[rank] = np.exp(logits[picked[rank]] - top) / total
        mine += share[rank]
    if normalise:
        for rank in range(len(picked)):
            share[rank] = share[rank] / mine


@kernel()
def arrange(chosen: int, starts: int, places: int, count: int, experts: int) -> None:
    """The ``count`` picks of ``chosen`` int64 by expert, each expert's in order: ``places`` int64 [count] says
    where each goes, and each expert's lie from its own of ``starts`` int64 [experts + 1] up to the next."""
    picks = carray(int_pointer(chosen), (count,))
    first = carray(int_pointer(starts), (experts + 1,))
    place = carray(int_pointer(places), (count,))
    for expert in range(experts + 1):
        first[expert] = 0
    for pick in range(count):
        first[picks[pick] + 1] += 1
    for expert in range(experts):
        first[expert + 1] += first[expert]
    following = first.copy()
    for pick in range(count):
        place[pick] = following[picks[pick]]
        following[picks[pick]] += 1


@kernel()
def scatter(x: int, places: int, out: int, rows: int, width: int, top_k: int, stride: int) -> None:
    """Row r of ``x`` [rows, width] to each of its ``top_k`` ``places`` in ``out`` [rows * top_k, stride], zero past its
    width."""
    parallel_for(_scatter_rows, rows, grain(stride * top_k), (x, places, out, width, top_k, stride))


@kernel()
def _scatter_rows(start: int, end: int, x: int, places: int, out: int, width: int, top_k: int, stride: int) -> None:
    for row in range(start, end):
        source = carray(float_pointer(x + row * width * 4), (width,))
        place = carray(int_pointer(places + row * top_k * 8), (top_k,))
        for rank in range(top_k):
            target = carray(float_pointer(out + place[rank] * stride * 4), (stride,))
            for i in range(width):
                target[i] = source[i]
            for i in range(width, stride):
                target[i] = np.float32(0.0)


@kernel()
def combine(products: int, places: int, shares: int, out: int, rows: int, width: int, top_k: int) -> None:
    """``out`` [rows, width]: the rows of ``products`` at each row's ``places``, times its ``shares`` [rows, top_k],
    added in order."""
    parallel_for(_combine_rows, rows, grain(width * top_k), (products, places, shares, out, width, top_k))


@kernel()
def _combine_rows(
    start: int, end: int, products: int, places: int, shares: int, out: int, width: int, top_k: int
) -> None:
    for row in range(start, end):
        target = carray(float_pointer(out + row * width * 4), (width,))
        place = carray(int_pointer(places + row * top_k * 8), (top_k,))
        share = carray(float_pointer(shares + row * top_k * 4), (top_k,))
        for i in range(width):
            target[i] = np.float32(0.0)
        for rank in range(top_k):
            source = carray(float_pointer(products + place[rank] * width * 4), (width,))
            weight = share[rank]
            for i in range(width):
                target[i] += weight * source[i]
