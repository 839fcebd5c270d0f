"""The inner loops of attention, register-blocked: up to twelve vectors of eight accumulate at once.

Two forms. *Lanes*, for many rows (a row is one query's head): one to three vectors hold a row per lane, keys and
values are broadcast element by element, and softmax runs down the columns. *Rows*, for one to four: vectors lie along
the keys, then along head_dim. Both add in the same order (a score along head_dim, a weighted value along the keys, the
weights' sum as eight sums over every eighth key), so a row gets the same bits from either, whatever lies beside it.

Keys and values are found by ``offsets``: int64 [n], each key's distance from ``base`` in elements. Arguments are int64:
addresses of float32 (int64 for offsets, int32 for positions) and counts. ``L`` is the lanes, eight per vector. The
*state* of a row over some keys is its mixed values with two more elements, the scores' maximum and the weights' sum.
"""

from __future__ import annotations

from typing import Any

from .simd import F32, FLOOR, I8, I32, I64, INTS, WIDTH, Body, Emitter, link

#: Vectors of a tile, at most, and the query rows they hold.
VECTORS = 3
LANES = VECTORS * WIDTH
#: Keys of a tile of the context.
KEYS = 64
#: A tile's number of keys is padded to a multiple of this.
KEY_UNROLL = 16

_UNROLL = {1: 8, 2: 4, 3: 4, 4: 2}  # keys (or elements of head_dim) at once, by vectors or heads
#: Heads of one pass over a decode's keys, at most.
MAX_HEADS = 4


def _row(e: Emitter, base: Any, offsets: Any, key: Any) -> Any:
    """Where key number ``key`` begins."""
    return e.offset(base, e.load(e.builder.gep(offsets, [key], source_etype=I64), I64))


def _unpack(e: Emitter, codes: Any, scales: Any, slots: Any, n: Any, head: Any, heads: Any, dim: Any, out: Any) -> None:
    """``out`` [n, dim] = one head's int8 ``codes`` [slots, heads, dim] times ``scales`` [slots, heads], at n slots."""
    codes, scales, slots, out = (e.pointer(x) for x in (codes, scales, slots, out))
    with e.loop(n) as key:
        slot = e.load(e.offset(slots, key, kind=I64), I64)
        index = e.builder.add(e.product(slot, heads), head)
        row, scale = e.offset(codes, e.product(index, dim), kind=I8), e.splat(e.load(e.offset(scales, index), F32))
        line = e.offset(out, e.product(key, dim))
        with e.loop(dim, WIDTH) as d:
            e.store(e.builder.fmul(e.widen(e.offset(row, d, kind=I8)), scale), e.offset(line, d))


def _lane_scores(vectors: int) -> Body:
    """``scores`` [n, L] = keys [n, dim] x ``queries`` [dim, L]; n a multiple of eight."""
    lanes, unroll = vectors * WIDTH, _UNROLL[vectors]

    def body(e: Emitter, queries: Any, base: Any, offsets: Any, n: Any, dim: Any, scores: Any) -> None:
        queries, base, offsets, scores = (e.pointer(x) for x in (queries, base, offsets, scores))
        with e.loop(n, unroll) as key:
            rows = [_row(e, base, offsets, e.builder.add(key, e.number(i))) for i in range(unroll)]
            sums = [[e.variable(e.splat(0.0)) for _ in range(vectors)] for _ in rows]
            with e.loop(dim) as d:
                line = e.offset(queries, e.product(d, lanes))
                query = [e.load(e.offset(line, WIDTH * j)) for j in range(vectors)]
                for row, row_sums in zip(rows, sums, strict=True):
                    element = e.splat(e.load(e.offset(row, d), F32))
                    for lane, total in zip(query, row_sums, strict=True):
                        e.set(total, e.fma(element, lane, e.get(total)))
            for i, row_sums in enumerate(sums):
                for j, total in enumerate(row_sums):
                    e.store(e.get(total), e.offset(scores, e.product(key, lanes), lanes * i + WIDTH * j))

    return body


def _lane_mask(e: Emitter, scores: Any, n: Any, lanes: Any, first: Any, newest: Any, oldest: Any) -> None:
    """-inf in ``scores`` [n, L] where key ``first + i`` is not in a lane's ``oldest`` to ``newest``."""
    b = e.builder
    scores, newest, oldest = (e.pointer(x) for x in (scores, newest, oldest))
    with e.loop(lanes, WIDTH) as lane:
        high, low = (e.load(e.offset(x, lane), INTS) for x in (newest, oldest))
        with e.loop(n) as key:
            position = e.splat(b.trunc(b.add(first, key), I32), INTS)
            seen = b.and_(b.icmp_signed("<=", position, high), b.icmp_signed(">=", position, low))
            place = e.offset(scores, e.product(key, lanes), lane)
            e.store(b.select(seen, e.load(place), e.splat(float("-inf"))), place)


def _lane_softmax(e: Emitter, scores: Any, n: Any, lanes: Any, best: Any) -> None:
    """``scores`` [n, L] become weights, relative to the lane's own maximum; it and the sum go to ``best`` [2, L]."""
    scores, best = e.pointer(scores), e.pointer(best)
    with e.loop(lanes, WIDTH) as lane:
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


def _lane_merge(e: Emitter, state: Any, part: Any, dim: Any, lanes: Any) -> None:
    """``state`` [dim + 2, L] takes in the ``part`` [dim + 2, L] of the next keys (online softmax, arXiv:1805.02867)."""
    b = e.builder
    state, part = e.pointer(state), e.pointer(part)
    with e.loop(lanes, WIDTH) as lane:
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


def _lane_values(vectors: int) -> Body:
    """``out`` [dim, L] = values [n, dim] transposed x ``weights`` [n, L]; dim a multiple of eight."""
    lanes, unroll = vectors * WIDTH, _UNROLL[vectors]

    def body(e: Emitter, weights: Any, base: Any, offsets: Any, n: Any, dim: Any, out: Any) -> None:
        weights, base, offsets, out = (e.pointer(x) for x in (weights, base, offsets, out))
        with e.loop(dim, unroll) as d:
            sums = [[e.variable(e.splat(0.0)) for _ in range(vectors)] for _ in range(unroll)]
            with e.loop(n) as key:
                row = e.offset(_row(e, base, offsets, key), d)
                line = e.offset(weights, e.product(key, lanes))
                weight = [e.load(e.offset(line, WIDTH * j)) for j in range(vectors)]
                for i, row_sums in enumerate(sums):
                    element = e.splat(e.load(e.offset(row, i), F32))
                    for lane, total in zip(weight, row_sums, strict=True):
                        e.set(total, e.fma(element, lane, e.get(total)))
            for i, row_sums in enumerate(sums):
                for j, total in enumerate(row_sums):
                    e.store(e.get(total), e.offset(out, e.product(d, lanes), lanes * i + WIDTH * j))

    return body


def _row_scores(heads: int) -> Body:
    """``scores`` [heads, KEYS] = ``queries`` [heads, dim] x keys [n, dim] transposed; n in sixteens, dim in eights.

    Eight keys at a time change from rows to columns, so that a score's sum runs along head_dim as in ``_lane_scores``;
    two such blocks go together, lest each addition wait for the one before it.
    """

    def body(e: Emitter, queries: Any, base: Any, offsets: Any, n: Any, dim: Any, scores: Any) -> None:
        queries, base, offsets, scores = (e.pointer(x) for x in (queries, base, offsets, scores))
        with e.loop(n, KEY_UNROLL) as key:
            rows = [_row(e, base, offsets, e.builder.add(key, e.number(i))) for i in range(KEY_UNROLL)]
            blocks = [rows[i : i + WIDTH] for i in range(0, KEY_UNROLL, WIDTH)]
            sums = [[e.variable(e.splat(0.0)) for _ in range(heads)] for _ in blocks]
            with e.loop(dim, WIDTH) as d:
                for block, block_sums in zip(blocks, sums, strict=True):
                    for i, column in enumerate(e.transpose([e.load(e.offset(row, d)) for row in block])):
                        for h, total in enumerate(block_sums):
                            query = e.splat(e.load(e.offset(queries, e.product(dim, h), d, i), F32))
                            e.set(total, e.fma(column, query, e.get(total)))
            for i, block_sums in enumerate(sums):
                for h, total in enumerate(block_sums):
                    e.store(e.get(total), e.offset(scores, key, KEYS * h + WIDTH * i))

    return body


def _row_values(heads: int) -> Body:
    """``out`` [heads, dim] = ``weights`` [heads, KEYS] x values [n, dim]."""

    def block(
        e: Emitter, weights: Any, base: Any, offsets: Any, n: Any, dim: Any, out: Any, d: Any, vectors: int
    ) -> None:
        sums = [[e.variable(e.splat(0.0)) for _ in range(vectors)] for _ in range(heads)]
        with e.loop(n) as key:
            row = e.offset(_row(e, base, offsets, key), d)
            parts = [e.load(e.offset(row, WIDTH * i)) for i in range(vectors)]
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


def _row_merge(e: Emitter, state: Any, part: Any, dim: Any) -> None:
    """``_lane_merge`` for one row, [dim + 2]."""
    b = e.builder
    state, part = e.pointer(state), e.pointer(part)
    before, after = (e.splat(e.load(e.offset(x, dim), F32)) for x in (state, part))
    high = e.maximum(before, after)
    keep, take = e.exp(b.fsub(before, high)), e.exp(b.fsub(after, high))
    sums, masses = (e.splat(e.load(e.offset(x, dim, 1), F32)) for x in (state, part))
    e.store(e.first(high), e.offset(state, dim))
    e.store(e.first(e.fma(masses, take, b.fmul(sums, keep))), e.offset(state, dim, 1))
    with e.loop(dim, WIDTH) as d:
        target = e.offset(state, d)
        e.store(e.fma(e.load(e.offset(part, d)), take, b.fmul(e.load(target), keep)), target)


_VECTORS = range(1, VECTORS + 1)
functions = link(
    {
        "unpack": (8, _unpack),
        "lane_mask": (6, _lane_mask),
        "lane_softmax": (4, _lane_softmax),
        "lane_merge": (4, _lane_merge),
        "row_softmax": (4, _row_softmax),
        "row_merge": (3, _row_merge),
        **{f"lane_scores_{v}": (6, _lane_scores(v)) for v in _VECTORS},
        **{f"lane_values_{v}": (6, _lane_values(v)) for v in _VECTORS},
        **{f"row_scores_{heads}": (6, _row_scores(heads)) for heads in _UNROLL},
        **{f"row_values_{heads}": (6, _row_values(heads)) for heads in _UNROLL},
    }
)
