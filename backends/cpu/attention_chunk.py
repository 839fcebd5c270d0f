"""Chunks: some of a sequence's new queries, for one key/value head, over all of its context."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from .attention_lanes import LANE_WIDTH, LANES, VECTORS
from .attention_plan import CHUNK_TILES, oldest_key
from .attention_rows import KEYS
from .attention_tiles import lane_merge
from .attention_workspace import addresses, aligned, load_queries, locate, tile_part, unpack_tile
from .native import float_pointer
from .simd import FLOOR, kernel


@kernel()
def chunk(item: Any, pointers: Any, shape: Any, step: Any, buffers: Any) -> None:
    """One item."""
    q, out, pool = pointers
    scale, window, block_size, heads, kv_heads, dim = shape
    _, _, _, query_start, context_lens, block_tables = step
    bounds, row = buffers[3], buffers[4]
    s, kv, first_row = item[0], item[1], item[2]
    group, begin = heads // kv_heads, np.int64(query_start[s])
    rows = min((np.int64(query_start[s + 1]) - begin) * group - first_row, CHUNK_TILES * LANES)
    vectors = min((rows + LANE_WIDTH - 1) // LANE_WIDTH, VECTORS)
    lanes = vectors * LANE_WIDTH
    tiles = (rows + lanes - 1) // lanes
    place = np.int64(context_lens[s]) - query_start[s + 1]  # position minus token
    for tile in range(tiles):
        for lane in range(lanes):
            at = first_row + min(tile * lanes + lane, rows - 1)
            mine = row[tile * LANES + lane]
            mine[0], mine[1] = begin + at // group, kv * group + at % group
            bounds[tile, 0, lane], bounds[tile, 1, lane] = place + mine[0], oldest_key(place + mine[0], window)
        load_queries(lanes, vectors, tile, q, scale, heads, dim, buffers)
        state = carray(float_pointer(addresses(tile, dim, buffers)[1]), (dim + 2, lanes))
        state[:] = 0.0
        state[dim] = FLOOR
    first, end = np.int64(bounds[0, 1, 0]), np.int64(bounds[tiles - 1, 0, lanes - 1]) + 1
    for start in range(first // KEYS * KEYS, end, KEYS):
        seen, stop = max(start, first), min(start + KEYS, end)
        key = aligned(start, seen)
        n = locate(block_tables[s], key, seen, stop, block_size, buffers[2][0])
        buffers[2][1] = buffers[2][0]
        unpack_tile(pool, n, kv, kv_heads, dim, buffers)
        for tile in range(tiles):
            mine = bounds[tile]
            if key <= mine[0, lanes - 1] and key + n > mine[1, 0]:  # else no row sees any of them
                masked = key < mine[1, lanes - 1] or key + n > mine[0, 0] + 1
                tile_part(pool[5], n, key, vectors, tile, masked, dim, buffers)
                _, state_at, part, _ = addresses(tile, dim, buffers)
                lane_merge(state_at, part, dim, lanes)
    for at in range(rows):
        tile, lane = at // lanes, at % lanes
        state = carray(float_pointer(addresses(tile, dim, buffers)[1]), (dim + 2, lanes))
        mine = row[tile * LANES + lane]
        target = carray(float_pointer(out + (mine[0] * heads + mine[1]) * dim * 4), (dim,))
        for d in range(dim):
            target[d] = state[d, lane] / state[dim + 1, lane]
