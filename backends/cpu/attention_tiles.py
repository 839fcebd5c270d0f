"""The inner loops of attention, register-blocked: twelve vectors of eight accumulate at once.

Two forms. *Lanes*, for chunks: ``LANES`` query rows lie side by side in the lanes, keys and values are broadcast
element by element, and softmax runs down the columns, so nothing is ever summed across a vector. *Rows*, for decodes:
one to four query heads against whole key rows, vectors along head_dim.

Keys and values are found by ``offsets``: int64 [n], each key's distance from ``base`` in elements. Arguments are int64:
addresses of float32 (int64 for offsets, int32 for positions) and counts.

*Rows* also read int8 codes where they lie; a code's scale belongs to its key, so callers multiply scores and weights by
it. For *lanes* a tile's codes are made floats once (``unpack``), since every element is used by all lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .simd import F32, FLOOR, I8, I32, I64, INTS, WIDTH, Body, Emitter, link

#: Query rows of a chunk's tile; three vectors.
LANES = 24
#: Keys of a tile of the context.
KEYS = 64
#: Query heads of one pass over a decode's keys, at most.
MAX_HEADS = 4

_VECTORS = LANES // WIDTH
_UNROLL = {1: 8, 2: 4, 3: 4, 4: 2}  # keys (or vectors of head_dim) at once, by heads: at most 12 accumulators


def _row(e: Emitter, base: Any, offsets: Any, key: Any, kind: Any = F32) -> Any:
    """Where key number ``key`` begins."""
    return e.offset(base, e.load(e.offset(offsets, key, kind=I64), I64), kind=kind)


def _unpack(e: Emitter, base: Any, offsets: Any, scales: Any, n: Any, dim: Any, out: Any) -> None:
    """``out`` [n, dim] = codes [n, dim] * ``scales`` [n]."""
    base, offsets, scales, out = (e.pointer(x) for x in (base, offsets, scales, out))
    with e.loop(n) as key:
        row, scale = _row(e, base, offsets, key, I8), e.splat(e.load(e.offset(scales, key), F32))
        line = e.offset(out, e.product(key, dim))
        with e.loop(dim, WIDTH) as d:
            e.store(e.builder.fmul(e.widen(e.offset(row, d, kind=I8), I8), scale), e.offset(line, d))


def _lane_scores(e: Emitter, queries: Any, base: Any, offsets: Any, n: Any, dim: Any, scores: Any) -> None:
    """``scores`` [n, LANES] = keys [n, dim] x ``queries`` [dim, LANES]; n a multiple of four."""
    queries, base, offsets, scores = (e.pointer(x) for x in (queries, base, offsets, scores))
    with e.loop(n, 4) as key:
        rows = [_row(e, base, offsets, e.builder.add(key, e.number(i))) for i in range(4)]
        sums = [[e.variable(e.splat(0.0)) for _ in range(_VECTORS)] for _ in rows]
        with e.loop(dim) as d:
            line = e.offset(queries, e.product(d, LANES))
            lanes = [e.load(e.offset(line, WIDTH * j)) for j in range(_VECTORS)]
            for row, line_sums in zip(rows, sums, strict=True):
                element = e.splat(e.load(e.offset(row, d), F32))
                for lane, total in zip(lanes, line_sums, strict=True):
                    e.set(total, e.fma(element, lane, e.get(total)))
        for i, line_sums in enumerate(sums):
            for j, total in enumerate(line_sums):
                e.store(e.get(total), e.offset(scores, e.product(key, LANES), LANES * i + WIDTH * j))


def _lane_mask(e: Emitter, scores: Any, n: Any, first: Any, newest: Any, oldest: Any) -> None:
    """-inf in ``scores`` [n, LANES] where key ``first + i`` is not in a lane's ``oldest`` to ``newest``."""
    b = e.builder
    scores, newest, oldest = (e.pointer(x) for x in (scores, newest, oldest))
    bounds = [[e.load(e.offset(x, WIDTH * j), INTS) for x in (newest, oldest)] for j in range(_VECTORS)]
    with e.loop(n) as key:
        position = e.splat(b.trunc(b.add(first, key), I32), INTS)
        for j, (high, low) in enumerate(bounds):
            seen = b.and_(b.icmp_signed("<=", position, high), b.icmp_signed(">=", position, low))
            place = e.offset(scores, e.product(key, LANES), WIDTH * j)
            e.store(b.select(seen, e.load(place), e.splat(float("-inf"))), place)


def _lane_softmax(e: Emitter, scores: Any, n: Any, state: Any) -> None:
    """One tile's step of the online softmax (arXiv:1805.02867): ``scores`` [n, LANES] become weights.

    ``state`` [3, LANES]: the running maximum and sum, brought up to date, and by what earlier results must be scaled.
    """
    b = e.builder
    scores, state = e.pointer(scores), e.pointer(state)
    for j in range(_VECTORS):
        best, total, scale = (e.offset(state, LANES * i + WIDTH * j) for i in range(3))
        before = e.load(best)
        top, mass = e.variable(before), e.variable(e.splat(0.0))
        with e.loop(n) as key:
            e.set(top, e.maximum(e.get(top), e.load(e.offset(scores, e.product(key, LANES), WIDTH * j))))
        high = e.get(top)
        with e.loop(n) as key:
            place = e.offset(scores, e.product(key, LANES), WIDTH * j)
            weight = e.exp(b.fsub(e.load(place), high))
            e.store(weight, place)
            e.set(mass, b.fadd(e.get(mass), weight))
        shrink = e.exp(b.fsub(before, high))
        e.store(high, best)
        e.store(e.fma(e.load(total), shrink, e.get(mass)), total)
        e.store(shrink, scale)


def _lane_values(e: Emitter, weights: Any, base: Any, offsets: Any, n: Any, dim: Any, scale: Any, out: Any) -> None:
    """``out`` [dim, LANES] = ``out`` * ``scale`` [LANES] + values [n, dim] transposed x ``weights`` [n, LANES]."""
    weights, base, offsets, scale, out = (e.pointer(x) for x in (weights, base, offsets, scale, out))
    with e.loop(dim, 4) as d:
        places = [
            [e.offset(out, e.product(d, LANES), LANES * i + WIDTH * j) for j in range(_VECTORS)] for i in range(4)
        ]
        shrink = [e.load(e.offset(scale, WIDTH * j)) for j in range(_VECTORS)]
        sums = [
            [e.variable(e.builder.fmul(e.load(p), s)) for p, s in zip(line, shrink, strict=True)] for line in places
        ]
        with e.loop(n) as key:
            row = e.offset(_row(e, base, offsets, key), d)
            line = e.offset(weights, e.product(key, LANES))
            lanes = [e.load(e.offset(line, WIDTH * j)) for j in range(_VECTORS)]
            for i, line_sums in enumerate(sums):
                element = e.splat(e.load(e.offset(row, i), F32))
                for lane, total in zip(lanes, line_sums, strict=True):
                    e.set(total, e.fma(element, lane, e.get(total)))
        for line_places, line_sums in zip(places, sums, strict=True):
            for place, total in zip(line_places, line_sums, strict=True):
                e.store(e.get(total), place)


def _row_scores(heads: int, kind: Any) -> Body:
    """``scores`` [heads, KEYS] = ``queries`` [heads, dim] x keys [n, dim] transposed; n a multiple of eight."""

    def body(e: Emitter, queries: Any, base: Any, offsets: Any, n: Any, dim: Any, scores: Any) -> None:
        queries, base, offsets, scores = (e.pointer(x) for x in (queries, base, offsets, scores))
        with e.loop(n, _UNROLL[heads]) as key:
            rows = [_row(e, base, offsets, e.builder.add(key, e.number(i)), kind) for i in range(_UNROLL[heads])]
            sums = [[e.variable(e.splat(0.0)) for _ in range(heads)] for _ in rows]
            with e.loop(dim, WIDTH) as d:
                query = [e.load(e.offset(queries, e.product(dim, h), d)) for h in range(heads)]
                for row, row_sums in zip(rows, sums, strict=True):
                    part = e.widen(e.offset(row, d, kind=kind), kind)
                    for q, total in zip(query, row_sums, strict=True):
                        e.set(total, e.fma(part, q, e.get(total)))
            for i, row_sums in enumerate(sums):
                for h, total in enumerate(row_sums):
                    e.store(e.sum(e.get(total)), e.offset(scores, key, KEYS * h + i))

    return body


def _row_values(heads: int, kind: Any) -> Body:
    """``out`` [heads, dim] = ``weights`` [heads, KEYS] x values [n, dim]."""

    def block(
        e: Emitter, weights: Any, base: Any, offsets: Any, n: Any, dim: Any, out: Any, d: Any, vectors: int
    ) -> None:
        sums = [[e.variable(e.splat(0.0)) for _ in range(vectors)] for _ in range(heads)]
        with e.loop(n) as key:
            row = e.offset(_row(e, base, offsets, key, kind), d, kind=kind)
            parts = [e.widen(e.offset(row, WIDTH * i, kind=kind), kind) for i in range(vectors)]
            for h, head_sums in enumerate(sums):
                weight = e.splat(e.load(e.offset(weights, key, KEYS * h), F32))
                for part, total in zip(parts, head_sums, strict=True):
                    e.set(total, e.fma(part, weight, e.get(total)))
        for h, head_sums in enumerate(sums):
            for i, total in enumerate(head_sums):
                e.store(e.get(total), e.offset(out, e.product(dim, h), d, WIDTH * i))

    def body(e: Emitter, weights: Any, base: Any, offsets: Any, n: Any, dim: Any, out: Any) -> None:
        weights, base, offsets, out = (e.pointer(x) for x in (weights, base, offsets, out))
        span = _UNROLL[heads] * WIDTH
        whole = e.product(e.builder.udiv(dim, e.number(span)), span)
        with e.loop(whole, span) as d:
            block(e, weights, base, offsets, n, dim, out, d, _UNROLL[heads])
        with e.loop(dim, WIDTH, whole) as d:
            block(e, weights, base, offsets, n, dim, out, d, 1)

    return body


def _row_softmax(e: Emitter, scores: Any, n: Any, best: Any, total: Any) -> None:
    """``scores`` [n] become weights, their maximum goes to ``best`` and their sum to ``total``; n in eights."""
    scores = e.pointer(scores)
    top, mass = e.variable(e.splat(FLOOR)), e.variable(e.splat(0.0))
    with e.loop(n, WIDTH) as key:
        e.set(top, e.maximum(e.get(top), e.load(e.offset(scores, key))))
    high = e.fold(e.get(top), e.maximum)
    with e.loop(n, WIDTH) as key:
        place = e.offset(scores, key)
        weight = e.exp(e.builder.fsub(e.load(place), e.splat(high)))
        e.store(weight, place)
        e.set(mass, e.builder.fadd(e.get(mass), weight))
    e.store(high, e.pointer(best))
    e.store(e.sum(e.get(mass)), e.pointer(total))


def _by_heads(make: Callable[[int, Any], Body], kind: Any) -> Body:
    """One body for one to four heads: the first argument says how many."""

    def body(e: Emitter, heads: Any, *arguments: Any) -> None:
        for count in _UNROLL:
            with e.builder.if_then(e.builder.icmp_signed("==", heads, e.number(count))):
                make(count, kind)(e, *arguments)

    return body


functions = link(
    {
        "lane_scores": (6, _lane_scores),
        "lane_mask": (5, _lane_mask),
        "lane_softmax": (3, _lane_softmax),
        "lane_values": (7, _lane_values),
        "row_softmax": (4, _row_softmax),
        "unpack": (6, _unpack),
        "row_scores": (7, _by_heads(_row_scores, F32)),
        "row_scores_int8": (7, _by_heads(_row_scores, I8)),
        "row_values": (7, _by_heads(_row_values, F32)),
        "row_values_int8": (7, _by_heads(_row_values, I8)),
    }
)
