"""Decodes: one query of a sequence, or of several that share the keys, over one tile of its context."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from .attention_lanes import LANE_WIDTH
from .attention_plan import DECODE, oldest_key
from .attention_rows import KEYS, MAX_HEADS
from .attention_tiles import row_merge, row_scores, row_softmax, row_values
from .attention_workspace import addresses, aligned, fetch_tile, load_queries, locate, stored, tile_part, unpack_tile
from .native import atomic_add, float_pointer
from .simd import kernel


@kernel()
def decode(item: Any, following: Any, cold: bool, pointers: Any, shape: Any, step: Any, buffers: Any) -> None:
    """One item, and if it is the last one of a sequence, the sequence's result. ``following``: the thread's next one;
    ``cold``: nobody had this one as its next."""
    q, out, pool = pointers
    _, window, block_size, heads, kv_heads, dim = shape
    members, parts, partial, query_start, context_lens, _ = step
    tile, sequences = item[2], members[item[0] : item[0] + item[3]]
    newest = np.int64(context_lens[sequences[0]]) - 1
    begin, first, end, n = _find(item, window, block_size, step, buffers[2][0])
    if following[1] == DECODE:
        _find(following, window, block_size, step, buffers[2][1])
    else:
        buffers[2][1] = buffers[2][0]
    if cold:
        fetch_tile(pool, n, kv_heads, dim, buffers)
    if len(sequences) == 1:
        s = sequences[0]
        target = partial[parts[s, 0] + tile // KEYS - oldest_key(newest, window) // KEYS]
        _rows(query_start[s], first - begin, end - begin, n, q, pool, shape, target, buffers)
    else:
        for kv in range(kv_heads):
            _lanes(kv, tile, n, sequences, q, pool, shape, step, buffers)
    for s in sequences:
        if atomic_add(parts.ctypes.data + (s * 3 + 2) * 8, -1) == 1:
            parts[s, 2] = parts[s, 1]
            token = np.int64(query_start[s])
            result = carray(float_pointer(out + token * heads * dim * 4), (heads, dim))
            _combine(partial[parts[s, 0] : parts[s, 0] + parts[s, 1]], result, buffers[0])


@kernel()
def _find(item: Any, window: int, block_size: int, step: Any, slots: Any) -> Any:
    """``slots`` of an item's tile; where its keys begin, the first and the end of those that are seen, and how many
    slots there are with padding."""
    members, _, _, _, context_lens, block_tables = step
    tile, sequence = item[2], members[item[0]]
    newest = np.int64(context_lens[sequence]) - 1
    first, end = max(tile, oldest_key(newest, window)), min(tile + KEYS, newest + 1)
    begin = aligned(tile, first)
    return begin, first, end, locate(block_tables[sequence], begin, first, end, block_size, slots)


@kernel()
def _rows(token: int, lead: int, end: int, n: int, q: int, pool: Any, shape: Any, partial: Any, buffers: Any) -> None:
    """One query over the located tile, into ``partial`` [heads, dim + 2]; of its keys ``lead`` to ``end`` are seen."""
    scale, _, _, heads, kv_heads, dim = shape
    group, memory, table = heads // kv_heads, buffers[0], pool[5]
    mixed, weights = memory[MAX_HEADS * dim :], memory[2 * MAX_HEADS * dim :]
    scores = weights.ctypes.data
    for kv in range(kv_heads):
        keys, values = stored(pool, kv, dim, buffers)
        for head in range(kv * group, (kv + 1) * group, MAX_HEADS):
            count = min(MAX_HEADS, (kv + 1) * group - head)
            source = carray(float_pointer(q + (token * heads + head) * dim * 4), (count * dim,))
            for d in range(count * dim):
                memory[d] = source[d] * scale
            row_scores(table, count, memory.ctypes.data, keys, n, kv_heads, dim, scores)
            for h in range(count):
                for i in range(lead):
                    weights[h * KEYS + i] = -np.inf
                for i in range(end, n):
                    weights[h * KEYS + i] = -np.inf
                state = partial[head + h, dim:].ctypes.data
                row_softmax(scores + h * KEYS * 4, n, state, state + 4)
            row_values(table, count, scores, values, n, kv_heads, dim, mixed.ctypes.data)
            for h in range(count):
                for d in range(dim):
                    partial[head + h, d] = mixed[h * dim + d]


@kernel()
def _lanes(kv: int, tile: int, n: int, sequences: Any, q: int, pool: Any, shape: Any, step: Any, buffers: Any) -> None:
    """Several sequences' queries over the located tile, all of whose keys they share, each into its own part."""
    scale, window, _, heads, kv_heads, dim = shape
    _, parts, partial, query_start, context_lens, _ = step
    group, row = heads // kv_heads, buffers[4]
    rows = len(sequences) * group
    vectors = (rows + LANE_WIDTH - 1) // LANE_WIDTH
    for lane in range(rows):
        row[lane, 0], row[lane, 1] = query_start[sequences[lane // group]], kv * group + lane % group
    load_queries(rows, vectors, 0, q, scale, heads, dim, buffers)
    unpack_tile(pool, n, kv, kv_heads, dim, buffers)
    tile_part(pool[5], n, tile, vectors, 0, False, dim, buffers)
    part = carray(float_pointer(addresses(0, dim, buffers)[2]), ((dim + 2) * vectors * LANE_WIDTH,))
    for lane in range(rows):
        s = sequences[lane // group]
        at = parts[s, 0] + tile // KEYS - oldest_key(np.int64(context_lens[s]) - 1, window) // KEYS
        target = partial[at, row[lane, 1]]
        for d in range(dim + 2):
            target[d] = part[d * vectors * LANE_WIDTH + lane]


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
