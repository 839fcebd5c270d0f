"""Causal attention over the paged KV pool, float32 or int8: decodes and chunks of any length in one call.

A step is cut into items that threads take as they get free:

* a decode (one query): one item per ``KEYS`` keys of its context, all heads of it; whoever finishes a sequence's last
  item combines the partial results, in the order of the context (Flash-Decoding);
* a chunk: one item per key/value head and ``LANES`` rows, a row being a query's head of that group, over the context
  with an online softmax.

Where a sequence is cut depends on its own lengths only, so its result is the same bit for bit whatever else is in the
step and however many threads there are. Keys and values are read where they lie: int8 codes enter the products as they
are, and their scales (one per token and head) go into scores and weights; a chunk unpacks one tile's codes at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from ...core.step import StepBatch
from .attention_tiles import KEYS, LANES, functions
from .simd import FLOOR, atomic_add, float_pointer, kernel, parallel_for

DECODE = -1  # in an item's second column, where a chunk's item has its key/value head

row_scores, row_scores_int8 = functions["row_scores"], functions["row_scores_int8"]
row_values, row_values_int8 = functions["row_values"], functions["row_values_int8"]
lane_scores, lane_mask, row_softmax = functions["lane_scores"], functions["lane_mask"], functions["row_softmax"]
lane_softmax, lane_values, unpack = functions["lane_softmax"], functions["lane_values"], functions["unpack"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one step is cut, the same for every layer with the same window."""

    items: NDArray[np.int64]  # [N, 4]: sequence; key/value head or DECODE; first row or key; row of ``partial``
    left: NDArray[np.int64]  # [S], a decode's unfinished items
    partial: NDArray[np.float32]  # [decode items, heads, head_dim + 2], the last two: maximum and sum
    query_start: NDArray[np.int32]  # [S + 1]
    context_lens: NDArray[np.int32]  # [S]
    block_tables: NDArray[np.int32]  # [S, B]

    @classmethod
    def build(cls, batch: StepBatch, window: int | None, heads: int, kv_heads: int, head_dim: int) -> Plan:
        query_start, context_lens, block_tables = (  # copies: numba compiles again for read-only arrays
            np.array(x, np.int32, order="C") for x in (batch.query_start, batch.context_lens, batch.block_tables)
        )
        items, left, partials = cut(query_start, context_lens, window or 0, heads // kv_heads, kv_heads)
        partial = np.empty((partials, heads, head_dim + 2), np.float32)
        return cls(items, left, partial, query_start, context_lens, block_tables)


def attend(
    plan: Plan,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Attention of ``q`` [T, H, hd] over the step's contexts: [T, H * hd].

    Args:
        plan: built for this step, window and head counts.
        keys, values: [num_blocks, block_size, kv_heads, hd], this step's own already stored; float32, or int8 with
            ``scales``. Contiguous; hd a multiple of eight.
        window: how many keys a query sees, itself included; None for all.
        scales: of keys and values, float32 [num_blocks, block_size, kv_heads].
    """
    count, heads, dim = q.shape
    out = torch.empty((count, heads * dim), dtype=torch.float32)
    key_scales, value_scales = (0, 0) if scales is None else (scales[0].data_ptr(), scales[1].data_ptr())
    _run(
        q.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        key_scales,
        value_scales,
        out.data_ptr(),
        scale,
        window or 0,
        keys.shape[1],
        heads,
        keys.shape[2],
        dim,
        plan.items,
        plan.left,
        plan.partial,
        plan.query_start,
        plan.context_lens,
        plan.block_tables,
    )
    return out


@kernel()
def cut(query_start: Any, context_lens: Any, window: int, group: int, kv_heads: int) -> Any:
    """Items (chunks first, longest work first), items left per sequence, and how many are of decodes."""
    sequences = len(context_lens)
    left = np.zeros(sequences, np.int64)
    chunks, decodes = 0, 0
    for s in range(sequences):
        queries = query_start[s + 1] - query_start[s]
        if queries == 1:
            left[s] = (context_lens[s] - 1) // KEYS - oldest_key(context_lens[s] - 1, window) // KEYS + 1
            decodes += left[s]
        elif queries > 1:
            chunks += (queries * group + LANES - 1) // LANES * kv_heads
    items = np.empty((chunks + decodes, 4), np.int64)
    at = 0
    for s in range(sequences):
        rows = (query_start[s + 1] - query_start[s]) * group
        if rows > group:
            for head in range(kv_heads):
                for first in range((rows - 1) // LANES * LANES, -1, -LANES):
                    items[at, 0], items[at, 1], items[at, 2], items[at, 3] = s, head, first, 0
                    at += 1
    for s in range(sequences):
        start = oldest_key(context_lens[s] - 1, window) // KEYS * KEYS
        for i in range(left[s]):
            items[at, 0], items[at, 1], items[at, 2], items[at, 3] = s, DECODE, start + i * KEYS, at - chunks
            at += 1
    return items, left, decodes


@kernel(inline="always")
def oldest_key(position: int, window: int) -> int:
    """The first key that the query at ``position`` sees."""
    return max(0, position - window + 1) if window > 0 else 0


@kernel()
def _run(
    q: int,
    keys: int,
    values: int,
    key_scales: int,
    value_scales: int,
    out: int,
    scale: float,
    window: int,
    block_size: int,
    heads: int,
    kv_heads: int,
    dim: int,
    items: Any,
    left: Any,
    partial: Any,
    query_start: Any,
    context_lens: Any,
    block_tables: Any,
) -> None:
    pointers = (q, out, (keys, values, key_scales, value_scales))
    shape = (np.float32(scale), window, block_size, heads, kv_heads, dim)
    step = (left, partial, query_start, context_lens, block_tables)
    parallel_for(_work, len(items), 1, (pointers, shape, items, step))


@kernel()
def _work(start: int, end: int, pointers: Any, shape: Any, items: Any, step: Any) -> None:
    heads, dim = shape[3], shape[5]
    quantised = pointers[2][2] != 0
    scratch = np.empty(max(heads * dim + 4 * (KEYS + dim), (2 * dim + KEYS + 3) * LANES), np.float32)
    plain = np.empty(KEYS * dim if quantised else 0, np.float32)  # a tile's codes as floats, for chunks
    offsets = np.empty((3, KEYS), np.int64)  # of a tile's keys: in the pool, in the pool of scales, in ``plain``
    for i in range(KEYS):
        offsets[2, i] = i * dim
    spare = (scratch, offsets, np.empty(KEYS, np.float32), plain)
    for i in range(start, end):
        if items[i, 1] == DECODE:
            _decode(items[i], pointers, shape, step, spare)
        else:
            _chunk(items[i], pointers, shape, step, spare)


@kernel()
def _locate(table: Any, first: int, end: int, block_size: int, kv_heads: int, dim: int, offsets: Any) -> None:
    """``offsets`` of keys ``first`` to ``end``; the rest, up to the next multiple of eight, repeat the first one."""
    count = end - first
    block, inside = first // block_size, first % block_size
    base = np.int64(table[block]) * block_size
    for i in range(count):
        if inside == block_size:
            block, inside = block + 1, 0
            base = np.int64(table[block]) * block_size
        offsets[1, i] = (base + inside) * kv_heads
        inside += 1
    for i in range(count, (count + 7) // 8 * 8):
        offsets[1, i] = offsets[1, 0]
    for i in range((count + 7) // 8 * 8):
        offsets[0, i] = offsets[1, i] * dim


@kernel()
def _load_scales(scales: int, kv: int, offsets: Any, n: int, factors: Any) -> None:
    """``factors`` [n]: those of head ``kv`` of a tile's keys."""
    for i in range(n):
        factors[i] = carray(float_pointer(scales + (offsets[1, i] + kv) * 4), (1,))[0]


@kernel()
def _multiply(weights: Any, count: int, n: int, scales: int, kv: int, offsets: Any, factors: Any) -> None:
    """Scores or weights [count, KEYS] of codes times their scales."""
    _load_scales(scales, kv, offsets, n, factors)
    for h in range(count):
        line = weights[h * KEYS : h * KEYS + n]
        for i in range(n):
            line[i] *= factors[i]


@kernel()
def _decode(item: Any, pointers: Any, shape: Any, step: Any, spare: Any) -> None:
    q, out, pool = pointers
    scratch, offsets, factors, _ = spare
    scale, window, block_size, heads, kv_heads, dim = shape
    left, partial, query_start, context_lens, block_tables = step
    s, tile, row = item[0], item[2], item[3]
    first = max(tile, oldest_key(context_lens[s] - 1, window))
    end = min(tile + KEYS, np.int64(context_lens[s]))
    _locate(block_tables[s], first, end, block_size, kv_heads, dim, offsets)
    token = query_start[s] * heads * dim
    source = carray(float_pointer(q + token * 4), (heads * dim,))
    for d in range(heads * dim):
        scratch[d] = source[d] * scale
    group = heads // kv_heads
    weights = scratch[heads * dim :]
    for kv in range(kv_heads):
        for head in range(kv * group, (kv + 1) * group, 4):
            count = min(4, (kv + 1) * group - head)
            work = (scratch, weights, offsets, factors, partial[row])
            _decode_heads(head, count, kv, pool, end - first, dim, work)
    if atomic_add(left.ctypes.data + s * 8, -1) == 1:
        parts = (np.int64(context_lens[s]) - 1) // KEYS - oldest_key(context_lens[s] - 1, window) // KEYS + 1
        left[s] = parts
        last = (np.int64(context_lens[s]) - 1) // KEYS
        begin = row - (tile // KEYS - (last - parts + 1))
        _combine(partial[begin : begin + parts], carray(float_pointer(out + token * 4), (heads, dim)))


@kernel()
def _decode_heads(head: int, count: int, kv: int, pool: Any, n: int, dim: int, work: Any) -> None:
    """``count`` heads that share key/value head ``kv``, over a tile's ``n`` keys, into ``partial`` [heads, dim + 2]."""
    keys, values, key_scales, value_scales = pool
    queries, weights, offsets, factors, partial = work
    padded = (n + 7) // 8 * 8
    q, w, where = queries.ctypes.data + head * dim * 4, weights.ctypes.data, offsets.ctypes.data
    if key_scales == 0:
        row_scores(count, q, keys + kv * dim * 4, where, padded, dim, w)
    else:
        row_scores_int8(count, q, keys + kv * dim, where, padded, dim, w)
        _multiply(weights, count, n, key_scales, kv, offsets, factors)
    for h in range(count):
        for i in range(n, padded):
            weights[h * KEYS + i] = -np.inf
        state = partial[head + h, dim:].ctypes.data
        row_softmax(w + h * KEYS * 4, padded, state, state + 4)
    mixed = w + 4 * KEYS * 4
    if value_scales == 0:
        row_values(count, w, values + kv * dim * 4, where, n, dim, mixed)
    else:
        _multiply(weights, count, n, value_scales, kv, offsets, factors)
        row_values_int8(count, w, values + kv * dim, where, n, dim, mixed)
    for h in range(count):
        for d in range(dim):
            partial[head + h, d] = weights[4 * KEYS + h * dim + d]


@kernel()
def _combine(parts: Any, out: Any) -> None:
    """``parts`` [n, heads, dim + 2] of one query to ``out`` [heads, dim]."""
    count, heads, dim = parts.shape[0], out.shape[0], out.shape[1]
    for h in range(heads):
        best = parts[0, h, dim]
        for i in range(1, count):
            best = max(best, parts[i, h, dim])
        total = np.float32(0.0)
        for d in range(dim):
            out[h, d] = 0.0
        for i in range(count):
            weight = np.float32(np.exp(parts[i, h, dim] - best))
            total += weight * parts[i, h, dim + 1]
            for d in range(dim):
                out[h, d] += weight * parts[i, h, d]
        for d in range(dim):
            out[h, d] /= total


@kernel()
def _load_lanes(
    q: int, first_row: int, rows: int, layout: Any, scale: float, window: int, queries: Any, bounds: Any, state: Any
) -> None:
    """A tile's rows into the lanes of ``queries`` [dim, LANES], the last one repeated; what each sees."""
    begin, place, kv, group, heads, dim = layout
    for lane in range(LANES):
        row = first_row + min(lane, rows - 1)
        token, head = begin + row // group, kv * group + row % group
        source = carray(float_pointer(q + (token * heads + head) * dim * 4), (dim,))
        for d in range(dim):
            queries[d * LANES + lane] = source[d] * scale
        position = place + row // group
        bounds[0, lane], bounds[1, lane] = position, oldest_key(position, window)
        state[lane], state[LANES + lane] = FLOOR, 0.0


@kernel()
def _floats(codes: int, scales: int, kv: int, n: int, dim: int, spare: Any) -> Any:
    """Head ``kv`` of a tile's ``n`` keys or values in float32: the address to which offsets are added, and theirs."""
    _, offsets, factors, plain = spare
    if scales == 0:
        return codes + kv * dim * 4, offsets.ctypes.data
    _load_scales(scales, kv, offsets, n, factors)
    unpack(codes + kv * dim, offsets.ctypes.data, factors.ctypes.data, n, dim, plain.ctypes.data)
    return plain.ctypes.data, offsets[2].ctypes.data


@kernel()
def _chunk(item: Any, pointers: Any, shape: Any, step: Any, spare: Any) -> None:
    q, out, (keys, values, key_scales, value_scales) = pointers
    scratch, offsets = spare[0], spare[1]
    scale, window, block_size, heads, kv_heads, dim = shape
    _, _, query_start, context_lens, block_tables = step
    s, kv, first_row = item[0], item[1], item[2]
    group, begin = heads // kv_heads, np.int64(query_start[s])
    rows = min((np.int64(query_start[s + 1]) - begin) * group - first_row, LANES)
    place = begin + context_lens[s] - query_start[s + 1]  # position minus index in the chunk
    bounds = np.empty((2, LANES), np.int32)
    queries, mixed = scratch[: dim * LANES], scratch[dim * LANES : 2 * dim * LANES]
    state, scores = scratch[2 * dim * LANES :], scratch[2 * dim * LANES + 3 * LANES :]
    _load_lanes(q, first_row, rows, (begin, place, kv, group, heads, dim), scale, window, queries, bounds, state)
    for i in range(dim * LANES):
        mixed[i] = 0.0
    first, end = np.int64(bounds[1, 0]), np.int64(bounds[0, LANES - 1]) + 1
    seen_by_all = (np.int64(bounds[1, LANES - 1]), np.int64(bounds[0, 0]) + 1)
    for tile in range(first // KEYS * KEYS, end, KEYS):
        a: Any = max(tile, first)
        b: Any = min(tile + KEYS, end)
        padded = (b - a + 3) // 4 * 4
        _locate(block_tables[s], a, b, block_size, kv_heads, dim, offsets)
        k, where = _floats(keys, key_scales, kv, padded, dim, spare)
        lane_scores(queries.ctypes.data, k, where, padded, dim, scores.ctypes.data)
        if a < seen_by_all[0] or a + padded > seen_by_all[1]:
            lane_mask(scores.ctypes.data, padded, a, bounds.ctypes.data, bounds.ctypes.data + LANES * 4)
        lane_softmax(scores.ctypes.data, b - a, state.ctypes.data)
        scaling = state.ctypes.data + 2 * LANES * 4
        v, where = _floats(values, value_scales, kv, b - a, dim, spare)
        lane_values(scores.ctypes.data, v, where, b - a, dim, scaling, mixed.ctypes.data)
    for lane in range(rows):
        row = first_row + lane
        token, head = begin + row // group, kv * group + row % group
        target = carray(float_pointer(out + (token * heads + head) * dim * 4), (dim,))
        total = state[LANES + lane]
        for d in range(dim):
            target[d] = mixed[d * LANES + lane] / total
