"""Attention's inner loops for many rows (a row is one query's head): one to three vectors hold a row per lane.

Keys and values are broadcast element by element, up to twelve vectors accumulate at once, and softmax runs down the
columns.

A score is summed along head_dim, a weighted value along the keys, the weights as eight sums over every eighth key, as
in ``attention_rows``. Arguments are int64: addresses of float32 (int32 for positions) and counts. ``L`` is the lanes.
The *state* of a row over some keys is its mixed values with two more elements, the scores' maximum and the weights'
sum.
"""

from __future__ import annotations

from typing import Any

from . import jit
from .native import Body
from .simd import F32, FLOOR, I32, WIDTH, Emitter

#: Elements of a vector, vectors of a tile at most, and the query rows they hold.
LANE_WIDTH = 16 if "avx512f" in jit.target()[1] else 8
VECTORS = 3
LANES = VECTORS * LANE_WIDTH

_UNROLL = {1: 8, 2: 4, 3: 4}  # keys (or elements of head_dim) at once, by vectors


def lane_scores(vectors: int) -> Body:
    """``scores`` [n, L] = ``keys`` [n, dim] x ``queries`` [dim, L]; n a multiple of eight."""
    unroll = _UNROLL[vectors]

    def body(e: Emitter, queries: Any, keys: Any, n: Any, dim: Any, scores: Any) -> None:
        queries, keys, scores = (e.pointer(x) for x in (queries, keys, scores))
        lanes = vectors * e.width
        with e.loop(n, unroll) as key:
            rows = [e.offset(keys, e.product(e.builder.add(key, e.number(i)), dim)) for i in range(unroll)]
            sums = [[e.variable(e.splat(0.0)) for _ in range(vectors)] for _ in rows]
            with e.loop(dim) as d:
                line = e.offset(queries, e.product(d, lanes))
                query = [e.load(e.offset(line, e.width * j)) for j in range(vectors)]
                for row, row_sums in zip(rows, sums, strict=True):
                    element = e.splat(e.load(e.offset(row, d), F32))
                    for lane, total in zip(query, row_sums, strict=True):
                        e.set(total, e.fma(element, lane, e.get(total)))
            for i, row_sums in enumerate(sums):
                for j, total in enumerate(row_sums):
                    e.store(e.get(total), e.offset(scores, e.product(key, lanes), lanes * i + e.width * j))

    return body


def lane_mask(e: Emitter, scores: Any, n: Any, lanes: Any, first: Any, newest: Any, oldest: Any) -> None:
    """-inf in ``scores`` [n, L] where key ``first + i`` is not in a lane's ``oldest`` to ``newest``."""
    b = e.builder
    scores, newest, oldest = (e.pointer(x) for x in (scores, newest, oldest))
    with e.loop(lanes, e.width) as lane:
        high, low = (e.load(e.offset(x, lane), e.ints) for x in (newest, oldest))
        with e.loop(n) as key:
            position = e.splat(b.trunc(b.add(first, key), I32), e.ints)
            seen = b.and_(b.icmp_signed("<=", position, high), b.icmp_signed(">=", position, low))
            place = e.offset(scores, e.product(key, lanes), lane)
            e.store(b.select(seen, e.load(place), e.splat(float("-inf"))), place)


def lane_softmax(e: Emitter, scores: Any, n: Any, lanes: Any, best: Any) -> None:
    """``scores`` [n, L] become weights, relative to the lane's own maximum; it and the sum go to ``best`` [2, L]."""
    scores, best = e.pointer(scores), e.pointer(best)
    with e.loop(lanes, e.width) as lane:
        top = e.variable(e.splat(FLOOR))
        with e.loop(n) as key:
            e.set(top, e.maximum(e.get(top), e.load(e.offset(scores, e.product(key, lanes), lane))))
        high = e.get(top)
        masses = [e.variable(e.splat(0.0)) for _ in range(WIDTH)]
        with e.loop(n, WIDTH) as key:
            for i, mass in enumerate(masses):
                place = e.offset(scores, e.product(e.builder.add(key, e.number(i)), lanes), lane)
                weight = e.exp(e.builder.fsub(e.load(place), high))
                e.store(weight, place)
                e.set(mass, e.builder.fadd(e.get(mass), weight))
        e.store(high, e.offset(best, lane))
        e.store(e.tree([e.get(mass) for mass in masses], e.builder.fadd), e.offset(best, lanes, lane))


def lane_merge(e: Emitter, state: Any, part: Any, dim: Any, lanes: Any) -> None:
    """``state`` [dim + 2, L] takes in the ``part`` [dim + 2, L] of the next keys (online softmax, arXiv:1805.02867)."""
    b = e.builder
    state, part = e.pointer(state), e.pointer(part)
    with e.loop(lanes, e.width) as lane:
        best = e.offset(state, e.product(dim, lanes), lane)
        before, after = e.load(best), e.load(e.offset(part, e.product(dim, lanes), lane))
        high = e.maximum(before, after)
        keep, take = e.exp(b.fsub(before, high)), e.exp(b.fsub(after, high))
        with e.loop(b.add(dim, e.number(2))) as d:  # the maximum, scaled too, is put right below
            line = e.product(d, lanes)
            target = e.offset(state, line, lane)
            kept = b.fmul(e.load(target), keep)
            e.store(e.fma(e.load(e.offset(part, line, lane)), take, kept), target)
        e.store(high, best)


def lane_values(vectors: int) -> Body:
    """``out`` [dim, L] = ``values`` [n, dim] transposed x ``weights`` [n, L]; dim a multiple of eight."""
    unroll = _UNROLL[vectors]

    def body(e: Emitter, weights: Any, values: Any, n: Any, dim: Any, out: Any) -> None:
        weights, values, out = (e.pointer(x) for x in (weights, values, out))
        lanes = vectors * e.width
        with e.loop(dim, unroll) as d:
            sums = [[e.variable(e.splat(0.0)) for _ in range(vectors)] for _ in range(unroll)]
            with e.loop(n) as key:
                row = e.offset(values, e.product(key, dim), d)
                line = e.offset(weights, e.product(key, lanes))
                weight = [e.load(e.offset(line, e.width * j)) for j in range(vectors)]
                for i, row_sums in enumerate(sums):
                    element = e.splat(e.load(e.offset(row, i), F32))
                    for lane, total in zip(weight, row_sums, strict=True):
                        e.set(total, e.fma(element, lane, e.get(total)))
            for i, row_sums in enumerate(sums):
                for j, total in enumerate(row_sums):
                    e.store(e.get(total), e.offset(out, e.product(d, lanes), lanes * i + e.width * j))

    return body
