"""Causal attention over the paged KV pool, float32 or int8: decodes and chunks of any length in one call.

A *row* is one query's head; the rows that share a key/value head lie side by side in the lanes of a tile. A step is cut
into items that threads take as they get free:

* chunks: one item per key/value head and ``CHUNK_TILES`` tiles of a sequence's rows, over all of its context;
* decodes (one query): one item per ``KEYS`` keys of the context and all heads, for one sequence, or for several whose
  block tables name the same blocks there (a shared prefix is read once for all of them). Whoever finishes a sequence's
  last item merges its parts (Flash-Decoding).

Every row goes through the context in the same tiles and merges them in the same order, whatever item it lies in. So a
token's result is the same bit for bit in a chunk of any size or as a decode, with and without neighbours, a shared
prefix or a prefix cache, and however many threads there are.

Float32 keys and values are read where they lie; of int8 ones a tile at a time is unpacked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from ...core.step import StepBatch
from .attention_tiles import KEY_UNROLL, KEYS, LANES, MAX_HEADS, VECTORS, functions
from .simd import FLOOR, WIDTH, atomic_add, float_pointer, kernel, parallel_for

#: Row tiles of one item of a chunk: each of them uses a tile of keys and values while it is in the cache.
CHUNK_TILES = 4
DECODE = -1  # in an item's second column, where a chunk's item has its key/value head

lane_scores_1, lane_scores_2, lane_scores_3 = (functions[f"lane_scores_{v}"] for v in (1, 2, 3))
lane_values_1, lane_values_2, lane_values_3 = (functions[f"lane_values_{v}"] for v in (1, 2, 3))
lane_mask, lane_softmax, lane_merge = functions["lane_mask"], functions["lane_softmax"], functions["lane_merge"]
row_scores_1, row_scores_2 = functions["row_scores_1"], functions["row_scores_2"]
row_scores_3, row_scores_4 = functions["row_scores_3"], functions["row_scores_4"]
row_values_1, row_values_2 = functions["row_values_1"], functions["row_values_2"]
row_values_3, row_values_4 = functions["row_values_3"], functions["row_values_4"]
row_softmax, row_merge = functions["row_softmax"], functions["row_merge"]
unpack = functions["unpack"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one step is cut, the same for every layer with the same window."""

    items: NDArray[np.int64]  # [N, 4]: sequence, head, first row, 0; or of ``members`` the first, DECODE, key, count
    members: NDArray[np.int64]  # sequences of the decodes' items
    parts: NDArray[np.int64]  # [S, 3], of a decode: its first row of ``partial``, how many, and how many are unfinished
    partial: NDArray[np.float32]  # [decode parts, heads, head_dim + 2]: states
    query_start: NDArray[np.int32]  # [S + 1]
    context_lens: NDArray[np.int32]  # [S]
    block_tables: NDArray[np.int32]  # [S, B]

    @classmethod
    def build(
        cls, batch: StepBatch, window: int | None, heads: int, kv_heads: int, head_dim: int, block_size: int
    ) -> Plan:
        query_start, context_lens, block_tables = (  # copies: numba compiles again for read-only arrays
            np.array(x, np.int32, order="C") for x in (batch.query_start, batch.context_lens, batch.block_tables)
        )
        group = heads // kv_heads
        chunks = cut_chunks(query_start, group, kv_heads)
        parts = cut_decodes(query_start, context_lens, window or 0)
        items, members = share_tiles(parts, context_lens, block_tables, window or 0, block_size, LANES // group)
        partial = np.empty((int(parts[:, 1].sum()), heads, head_dim + 2), np.float32)
        return cls(np.concatenate([chunks, items]), members, parts, partial, query_start, context_lens, block_tables)


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
        plan.members,
        plan.parts,
        plan.partial,
        plan.query_start,
        plan.context_lens,
        plan.block_tables,
    )
    return out


@kernel()
def cut_chunks(query_start: Any, group: int, kv_heads: int) -> Any:
    """The chunks' items, a sequence's longest work first."""
    sequences, count, most = len(query_start) - 1, 0, CHUNK_TILES * LANES
    for s in range(sequences):
        queries = query_start[s + 1] - query_start[s]
        if queries > 1:
            count += (queries * group + most - 1) // most * kv_heads
    items = np.zeros((count, 4), np.int64)
    at = 0
    for s in range(sequences):
        queries = query_start[s + 1] - query_start[s]
        if queries > 1:
            for head in range(kv_heads):
                for first in range((queries * group - 1) // most * most, -1, -most):
                    items[at, 0], items[at, 1], items[at, 2] = s, head, first
                    at += 1
    return items


@kernel()
def cut_decodes(query_start: Any, context_lens: Any, window: int) -> Any:
    """``Plan.parts``: one part per tile of keys that a decode sees."""
    parts = np.zeros((len(context_lens), 3), np.int64)
    total = 0
    for s in range(len(context_lens)):
        if query_start[s + 1] - query_start[s] == 1:
            newest = np.int64(context_lens[s]) - 1
            count = newest // KEYS - oldest_key(newest, window) // KEYS + 1
            parts[s, 0], parts[s, 1], parts[s, 2] = total, count, count
            total += count
    return parts


@kernel()
def share_tiles(parts: Any, context_lens: Any, block_tables: Any, window: int, block_size: int, most: int) -> Any:
    """The decodes' items, and their members: up to ``most`` sequences that have a whole tile's blocks in common."""
    total = parts[:, 1].sum()
    items, members = np.zeros((total, 4), np.int64), np.empty(total, np.int64)
    decodes = np.flatnonzero(parts[:, 1])
    made, at = 0, 0
    longest: Any = 0
    for s in decodes:
        longest = max(longest, np.int64(context_lens[s]))
    for tile in range(0, longest, KEYS):
        first_block, end_block = tile // block_size, (tile + KEYS - 1) // block_size + 1
        here = decodes[context_lens[decodes] > tile]
        for s in here[np.argsort(block_tables[here, first_block])]:
            newest = np.int64(context_lens[s]) - 1
            oldest = oldest_key(newest, window)
            if oldest >= tile + KEYS:
                continue
            whole = oldest <= tile and newest >= tile + KEYS - 1
            joins = whole and made > 0 and items[made - 1, 2] == tile and 0 < items[made - 1, 3] < most
            if joins:
                other = members[at - 1]
                seen = np.int64(context_lens[other]) - 1
                joins = seen >= tile + KEYS - 1 and oldest_key(seen, window) <= tile
                for block in range(first_block, end_block):
                    joins = joins and block_tables[s, block] == block_tables[other, block]
            if not joins:
                items[made, 0], items[made, 1], items[made, 2], items[made, 3] = at, DECODE, tile, 0
                made += 1
            members[at] = s
            at += 1
            items[made - 1, 3] += 1
    return items[:made], members


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
    members: Any,
    parts: Any,
    partial: Any,
    query_start: Any,
    context_lens: Any,
    block_tables: Any,
) -> None:
    pointers = (q, out, (keys, values, key_scales, value_scales))
    shape = (np.float32(scale), window, block_size, heads, kv_heads, dim)
    step = (members, parts, partial, query_start, context_lens, block_tables)
    parallel_for(_work, len(items), 1, (pointers, shape, items, step))


@kernel()
def _work(start: int, end: int, pointers: Any, shape: Any, items: Any, step: Any) -> None:
    dim, coded = shape[5], pointers[2][2] != 0
    buffers = (
        np.empty((CHUNK_TILES * (2 * dim + 2) + dim + 2 + KEYS) * LANES, np.float32),  # see ``_addresses``
        np.empty(2 * dim * KEYS if coded else 1, np.float32),  # an unpacked tile's keys, then its values
        np.empty((3, KEYS), np.int64),  # a tile's slots, and where they lie in the pool and in the unpacked tile
        np.empty((CHUNK_TILES, 2, LANES), np.int32),  # the newest and the oldest key that a row sees
        np.empty((CHUNK_TILES * LANES, 2), np.int64),  # a row's token, and its head
    )
    if coded:
        for i in range(KEYS):
            buffers[2][2, i] = i * dim
    for i in range(start, end):
        if items[i, 1] == DECODE:
            _decode(items[i], pointers, shape, step, buffers)
        else:
            _chunk(items[i], pointers, shape, step, buffers)


@kernel(inline="always")
def _addresses(tile: int, dim: int, buffers: Any) -> Any:
    """Of a row tile's queries and state (rows of a decode use the first's), and of what all share: part and scores."""
    memory = buffers[0].ctypes.data
    queries = memory + tile * (2 * dim + 2) * LANES * 4
    part = memory + CHUNK_TILES * (2 * dim + 2) * LANES * 4
    return queries, queries + dim * LANES * 4, part, part + (dim + 2) * LANES * 4


@kernel()
def _locate(table: Any, begin: int, first: int, end: int, block_size: int, slots: Any) -> int:
    """``slots`` of keys ``begin`` to ``end``, and how many: a multiple of ``KEY_UNROLL``.

    Before key ``first``, and after ``end``, its slot stands instead.
    """
    block, inside = first // block_size, first % block_size
    base = np.int64(table[block]) * block_size
    for i in range(first - begin, end - begin):
        if inside == block_size:
            block, inside = block + 1, 0
            base = np.int64(table[block]) * block_size
        slots[i] = base + inside
        inside += 1
    padded = (end - begin + KEY_UNROLL - 1) // KEY_UNROLL * KEY_UNROLL
    for i in range(first - begin):
        slots[i] = slots[first - begin]
    for i in range(end - begin, padded):
        slots[i] = slots[first - begin]
    return padded


@kernel(inline="always")
def _aligned(tile: int, first: int) -> int:
    """Where a tile's keys are counted from, so that sums add in the same order whatever key is the first."""
    return tile + (first - tile) // KEY_UNROLL * KEY_UNROLL if first > tile else tile


@kernel()
def _rows_of(pool: Any, n: int, kv: int, kv_heads: int, dim: int, buffers: Any) -> Any:
    """Where a placed tile's keys and its values lie, and at which offsets; int8 ones are unpacked first."""
    keys, values, key_scales, value_scales = pool
    tile, slots = buffers[1].ctypes.data, buffers[2]
    if not key_scales:
        return keys + kv * dim * 4, values + kv * dim * 4, np.int64(slots[1].ctypes.data)
    where = slots[0].ctypes.data
    unpack(keys, key_scales, where, n, kv, kv_heads, dim, tile)
    unpack(values, value_scales, where, n, kv, kv_heads, dim, tile + dim * KEYS * 4)
    return np.int64(tile), np.int64(tile + dim * KEYS * 4), np.int64(slots[2].ctypes.data)


@kernel()
def _load_queries(rows: int, vectors: int, tile: int, q: int, scale: float, heads: int, dim: int, buffers: Any) -> None:
    """A tile's rows, which ``buffers[4]`` names, into its lanes, times ``scale``; in lanes left over lies anything."""
    lanes, row = vectors * WIDTH, buffers[4][tile * LANES :]
    queries = carray(float_pointer(_addresses(tile, dim, buffers)[0]), (dim * lanes,))
    for lane in range(rows):
        source = carray(float_pointer(q + (row[lane, 0] * heads + row[lane, 1]) * dim * 4), (dim,))
        for d in range(dim):
            queries[d * lanes + lane] = source[d] * scale


@kernel()
def _place_tile(table: Any, begin: int, first: int, end: int, shape: Any, buffers: Any) -> Any:
    """Find keys ``begin`` to ``end`` in the pool; how many there are, with padding."""
    _, _, block_size, _, kv_heads, dim = shape
    slots = buffers[2]
    padded = _locate(table, begin, first, end, block_size, slots[0])
    for i in range(padded):
        slots[1, i] = slots[0, i] * kv_heads * dim
    return padded


@kernel()
def _tile(n: int, first: int, vectors: int, tile: int, masked: bool, rows: Any, dim: int, buffers: Any) -> None:
    """The part of a placed tile of ``n`` keys, the first at position ``first``, for the rows in a tile's lanes."""
    keys, values, where = rows
    lanes = vectors * WIDTH
    queries, _, part, scores = _addresses(tile, dim, buffers)
    _scores(vectors, queries, keys, where, n, dim, scores)
    if masked:
        newest = buffers[3][tile].ctypes.data
        lane_mask(scores, n, lanes, first, newest, newest + LANES * 4)
    lane_softmax(scores, n, lanes, part + dim * lanes * 4)
    _values(vectors, scores, values, where, n, dim, part)


@kernel()
def _decode(item: Any, pointers: Any, shape: Any, step: Any, buffers: Any) -> None:
    q, out, pool = pointers
    window, heads, kv_heads, dim = shape[1], shape[3], shape[4], shape[5]
    members, parts, partial, query_start, context_lens, block_tables = step
    tile, group = item[2], heads // kv_heads
    sequences = members[item[0] : item[0] + item[3]]
    newest = np.int64(context_lens[sequences[0]]) - 1
    first, end = max(tile, oldest_key(newest, window)), min(tile + KEYS, newest + 1)
    begin = _aligned(tile, first)
    n = _place_tile(block_tables[sequences[0]], begin, first, end, shape, buffers)
    if len(sequences) == 1:
        s = sequences[0]
        target = partial[parts[s, 0] + tile // KEYS - oldest_key(newest, window) // KEYS]
        _decode_rows(query_start[s], first - begin, end - begin, n, q, pool, shape, target, buffers)
    else:
        for kv in range(kv_heads):
            for start in range(0, len(sequences) * group, LANES):
                rows = min(len(sequences) * group - start, LANES)
                _decode_lanes(start, rows, kv, tile, n, sequences, pointers, shape, step, buffers)
    for s in sequences:
        if atomic_add(parts.ctypes.data + (s * 3 + 2) * 8, -1) == 1:
            parts[s, 2] = parts[s, 1]
            token = np.int64(query_start[s])
            result = carray(float_pointer(out + token * heads * dim * 4), (heads, dim))
            _combine(partial[parts[s, 0] : parts[s, 0] + parts[s, 1]], result, buffers[0])


@kernel()
def _decode_rows(
    token: int, lead: int, end: int, n: int, q: int, pool: Any, shape: Any, partial: Any, buffers: Any
) -> None:
    """One query over a placed tile, into ``partial`` [heads, dim + 2]; of ``n`` keys, ``lead`` to ``end`` are seen."""
    scale, heads, kv_heads, dim = shape[0], shape[3], shape[4], shape[5]
    group, memory = heads // kv_heads, buffers[0]
    mixed, weights = memory[MAX_HEADS * dim :], memory[2 * MAX_HEADS * dim :]
    scores = weights.ctypes.data
    for kv in range(kv_heads):
        keys, values, where = _rows_of(pool, n, kv, kv_heads, dim, buffers)
        for head in range(kv * group, (kv + 1) * group, MAX_HEADS):
            count = min(MAX_HEADS, (kv + 1) * group - head)
            source = carray(float_pointer(q + (token * heads + head) * dim * 4), (count * dim,))
            for d in range(count * dim):
                memory[d] = source[d] * scale
            _row_scores(count, memory.ctypes.data, keys, where, n, dim, scores)
            for h in range(count):
                for i in range(lead):
                    weights[h * KEYS + i] = -np.inf
                for i in range(end, n):
                    weights[h * KEYS + i] = -np.inf
                state = partial[head + h, dim:].ctypes.data
                row_softmax(scores + h * KEYS * 4, n, state, state + 4)
            _row_values(count, scores, values, where, n, dim, mixed.ctypes.data)
            for h in range(count):
                for d in range(dim):
                    partial[head + h, d] = mixed[h * dim + d]


@kernel()
def _decode_lanes(
    start: int,
    rows: int,
    kv: int,
    tile: int,
    n: int,
    sequences: Any,
    pointers: Any,
    shape: Any,
    step: Any,
    buffers: Any,
) -> None:
    """Rows ``start`` on of several sequences' queries over a placed tile that they share, each into its own part."""
    q, _, pool = pointers
    scale, window, _, heads, kv_heads, dim = shape
    _, parts, partial, query_start, context_lens, _ = step
    group, row = heads // kv_heads, buffers[4]
    vectors = (rows + WIDTH - 1) // WIDTH
    for lane in range(rows):
        row[lane, 0] = query_start[sequences[(start + lane) // group]]
        row[lane, 1] = kv * group + (start + lane) % group
    _load_queries(rows, vectors, 0, q, scale, heads, dim, buffers)
    _tile(n, tile, vectors, 0, False, _rows_of(pool, n, kv, kv_heads, dim, buffers), dim, buffers)
    part = carray(float_pointer(_addresses(0, dim, buffers)[2]), ((dim + 2) * vectors * WIDTH,))
    for lane in range(rows):
        s = sequences[(start + lane) // group]
        at = parts[s, 0] + tile // KEYS - oldest_key(np.int64(context_lens[s]) - 1, window) // KEYS
        target = partial[at, row[lane, 1]]
        for d in range(dim + 2):
            target[d] = part[d * vectors * WIDTH + lane]


@kernel()
def _combine(parts: Any, out: Any, state: Any) -> None:
    """``parts`` [n, heads, dim + 2] of one query to ``out`` [heads, dim]."""
    heads, dim = out.shape
    for h in range(heads):
        for d in range(dim + 2):
            state[d] = parts[0, h, d]
        for i in range(1, len(parts)):
            row_merge(state.ctypes.data, parts[i, h].ctypes.data, dim)
        for d in range(dim):
            out[h, d] = state[d] / state[dim + 1]


@kernel()
def _chunk(item: Any, pointers: Any, shape: Any, step: Any, buffers: Any) -> None:
    q, out, pool = pointers
    scale, window, _, heads, kv_heads, dim = shape
    _, _, _, query_start, context_lens, block_tables = step
    bounds, row = buffers[3], buffers[4]
    s, kv, first_row = item[0], item[1], item[2]
    group, begin = heads // kv_heads, np.int64(query_start[s])
    rows = min((np.int64(query_start[s + 1]) - begin) * group - first_row, CHUNK_TILES * LANES)
    vectors = min((rows + WIDTH - 1) // WIDTH, VECTORS)
    lanes = vectors * WIDTH
    tiles = (rows + lanes - 1) // lanes
    place = np.int64(context_lens[s]) - query_start[s + 1]  # position minus token
    for tile in range(tiles):
        for lane in range(lanes):
            at = first_row + min(tile * lanes + lane, rows - 1)
            mine = row[tile * LANES + lane]
            mine[0], mine[1] = begin + at // group, kv * group + at % group
            bounds[tile, 0, lane], bounds[tile, 1, lane] = place + mine[0], oldest_key(place + mine[0], window)
        _load_queries(lanes, vectors, tile, q, scale, heads, dim, buffers)
        state = carray(float_pointer(_addresses(tile, dim, buffers)[1]), (dim + 2, lanes))
        state[:] = 0.0
        state[dim] = FLOOR
    first, end = np.int64(bounds[0, 1, 0]), np.int64(bounds[tiles - 1, 0, lanes - 1]) + 1
    for start in range(first // KEYS * KEYS, end, KEYS):
        seen, stop = max(start, first), min(start + KEYS, end)
        key = _aligned(start, seen)
        n = _place_tile(block_tables[s], key, seen, stop, shape, buffers)
        where = _rows_of(pool, n, kv, kv_heads, dim, buffers)
        for tile in range(tiles):
            mine = bounds[tile]
            if key <= mine[0, lanes - 1] and key + n > mine[1, 0]:  # else no row sees any of them
                _tile(n, key, vectors, tile, key < mine[1, lanes - 1] or key + n > mine[0, 0] + 1, where, dim, buffers)
                _, state_at, part, _ = _addresses(tile, dim, buffers)
                lane_merge(state_at, part, dim, lanes)
    for at in range(rows):
        tile, lane = at // lanes, at % lanes
        state = carray(float_pointer(_addresses(tile, dim, buffers)[1]), (dim + 2, lanes))
        mine = row[tile * LANES + lane]
        target = carray(float_pointer(out + (mine[0] * heads + mine[1]) * dim * 4), (dim,))
        for d in range(dim):
            target[d] = state[d, lane] / state[dim + 1, lane]


@kernel()
def _scores(vectors: int, queries: int, keys: int, where: int, n: int, dim: int, scores: int) -> None:
    if vectors == 1:
        lane_scores_1(queries, keys, where, n, dim, scores)
    elif vectors == 2:
        lane_scores_2(queries, keys, where, n, dim, scores)
    else:
        lane_scores_3(queries, keys, where, n, dim, scores)


@kernel()
def _values(vectors: int, weights: int, values: int, where: int, n: int, dim: int, out: int) -> None:
    if vectors == 1:
        lane_values_1(weights, values, where, n, dim, out)
    elif vectors == 2:
        lane_values_2(weights, values, where, n, dim, out)
    else:
        lane_values_3(weights, values, where, n, dim, out)


@kernel()
def _row_scores(heads: int, queries: int, keys: int, where: int, n: int, dim: int, scores: int) -> None:
    if heads == 1:
        row_scores_1(queries, keys, where, n, dim, scores)
    elif heads == 2:
        row_scores_2(queries, keys, where, n, dim, scores)
    elif heads == 3:
        row_scores_3(queries, keys, where, n, dim, scores)
    else:
        row_scores_4(queries, keys, where, n, dim, scores)


@kernel()
def _row_values(heads: int, weights: int, values: int, where: int, n: int, dim: int, out: int) -> None:
    if heads == 1:
        row_values_1(weights, values, where, n, dim, out)
    elif heads == 2:
        row_values_2(weights, values, where, n, dim, out)
    elif heads == 3:
        row_values_3(weights, values, where, n, dim, out)
    else:
        row_values_4(weights, values, where, n, dim, out)
