"""Attention's inner loops for one to four rows of a decode (a row is one query's head), and those that read the pool.

Keys and values are read where they lie, whatever the pool's elements are. Vectors lie along the keys, then along
head_dim.

Sums are added in the order of ``attention_lanes``, and so a row gets the same bits from either. Arguments are int64:
addresses and counts.
"""

from __future__ import annotations

from typing import Any

from .elements import Element, StoredRows
from .native import Body
from .simd import F32, FLOOR, WIDTH, Emitter

#: Keys of a tile of the context.
KEYS = 64
#: A tile's number of keys is padded to a multiple of this.
KEY_UNROLL = 16
#: Heads of one pass over a decode's keys, at most.
MAX_HEADS = 4

_UNROLL = {1: 8, 2: 4, 3: 4, 4: 2}  # vectors of head_dim at once, by heads


def unpack(element: Element) -> Body:
    """``out`` float32 [n, dim] = one head's rows at n slots, for the lanes' form; dim in eights."""

    def body(
        e: Emitter, pool: Any, scales: Any, slots: Any, ahead: Any, n: Any, kv_heads: Any, dim: Any, out: Any
    ) -> None:
        rows, out = StoredRows(e, element, pool, scales, slots, ahead, kv_heads, dim), e.pointer(out)
        with e.loop(n) as key:
            rows.fetch(key)
            row, line = rows.row(key), e.offset(out, e.product(key, dim))
            with e.loop(dim, WIDTH) as d:
                e.store(rows.load(row, d), e.offset(line, d))

    return body


def fetch(element: Element) -> Body:
    """Bring one head's rows at ``n`` slots into the cache, all at once."""

    def body(e: Emitter, pool: Any, scales: Any, slots: Any, n: Any, kv_heads: Any, dim: Any) -> None:
        rows = StoredRows(e, element, pool, scales, slots, slots, kv_heads, dim)
        with e.loop(n) as key:
            rows.fetch(key)

    return body


def row_scores(element: Element, heads: int) -> Body:
    """``scores`` [heads, KEYS] = ``queries`` [heads, dim] x keys [n, dim] transposed; n in sixteens, dim in eights.

    Eight keys at a time change from rows to columns, so that a score's sum runs along head_dim as in the lanes' form;
    two such blocks go together, lest each addition wait for the one before it.
    """

    def body(e: Emitter, queries: Any, *stored: Any) -> None:
        pool, scales, slots, ahead, n, kv_heads, dim, scores = stored
        keys = StoredRows(e, element, pool, scales, slots, ahead, kv_heads, dim)
        queries, scores = e.pointer(queries), e.pointer(scores)
        with e.loop(n, KEY_UNROLL) as key:
            for i in range(KEY_UNROLL):
                keys.fetch(e.builder.add(key, e.number(i)))
            rows = [keys.row(e.builder.add(key, e.number(i))) for i in range(KEY_UNROLL)]
            blocks = [rows[i : i + WIDTH] for i in range(0, KEY_UNROLL, WIDTH)]
            sums = [[e.variable(e.splat(0.0)) for _ in range(heads)] for _ in blocks]
            with e.loop(dim, WIDTH) as d:
                for block, block_sums in zip(blocks, sums, strict=True):
                    for i, column in enumerate(e.transpose([keys.load(row, d) for row in block])):
                        for h, total in enumerate(block_sums):
                            query = e.splat(e.load(e.offset(queries, e.product(dim, h), d, i), F32))
                            e.set(total, e.fma(column, query, e.get(total)))
            for i, block_sums in enumerate(sums):
                for h, total in enumerate(block_sums):
                    e.store(e.get(total), e.offset(scores, key, KEYS * h + WIDTH * i))

    return body


def row_values(element: Element, heads: int) -> Body:
    """``out`` [heads, dim] = ``weights`` [heads, KEYS] x values [n, dim]; dim in eights."""

    def block(e: Emitter, weights: Any, values: StoredRows, n: Any, dim: Any, out: Any, d: Any, vectors: int) -> None:
        sums = [[e.variable(e.splat(0.0)) for _ in range(vectors)] for _ in range(heads)]
        with e.loop(n) as key:
            row = values.row(key)
            parts = [values.load(row, d, WIDTH * i) for i in range(vectors)]
            for h, head_sums in enumerate(sums):
                weight = e.splat(e.load(e.offset(weights, key, KEYS * h), F32))
                for part, total in zip(parts, head_sums, strict=True):
                    e.set(total, e.fma(part, weight, e.get(total)))
        for h, head_sums in enumerate(sums):
            for i, total in enumerate(head_sums):
                e.store(e.get(total), e.offset(out, e.product(dim, h), d, WIDTH * i))

    def body(e: Emitter, weights: Any, *stored: Any) -> None:
        pool, scales, slots, ahead, n, kv_heads, dim, out = stored
        values = StoredRows(e, element, pool, scales, slots, ahead, kv_heads, dim)
        weights, out = e.pointer(weights), e.pointer(out)
        with e.loop(n) as key:
            values.fetch(key)
        span = _UNROLL[heads] * WIDTH
        whole = e.product(e.builder.udiv(dim, e.number(span)), span)
        with e.loop(whole, span) as d:
            block(e, weights, values, n, dim, out, d, _UNROLL[heads])
        with e.loop(dim, WIDTH, whole) as d:
            block(e, weights, values, n, dim, out, d, 1)

    return body


def row_softmax(e: Emitter, scores: Any, n: Any, best: Any, total: Any) -> None:
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


def row_merge(e: Emitter, state: Any, part: Any, dim: Any) -> None:
    """``lane_merge`` for one row, [dim + 2]."""
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
