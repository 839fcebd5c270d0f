"""What one thread works in on one item of attention: a tile of keys and values, and the rows that go over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from .attention_lanes import LANE_WIDTH, LANES
from .attention_plan import CHUNK_TILES
from .attention_rows import KEY_UNROLL, KEYS, MAX_HEADS
from .attention_tiles import fetch, lane_mask, lane_scores, lane_softmax, lane_values, unpack
from .native import float_pointer
from .simd import kernel


@kernel()
def workspace(dim: int) -> Any:
    """The buffers of an item: see what each holds."""
    tiles = CHUNK_TILES * (2 * dim + 2) * LANES  # of each row tile the queries [dim, L] and the state [dim + 2, L]
    shared = (dim + 2 + KEYS) * LANES  # a part [dim + 2, L] and scores [KEYS, L]
    rows = MAX_HEADS * (2 * dim + KEYS)  # of a decode: queries, mixed values and scores
    return (
        np.empty(max(tiles + shared, rows), np.float32),
        np.empty(2 * dim * KEYS, np.float32),  # an unpacked tile's keys [KEYS, dim], then its values
        np.empty((2, KEYS), np.int64),  # a tile's slots, and those of the tile that comes next
        np.empty((CHUNK_TILES, 2, LANES), np.int32),  # the newest and the oldest key that a row sees
        np.empty((CHUNK_TILES * LANES, 2), np.int64),  # a row's token, and its head
    )


@kernel(inline="always")
def addresses(tile: int, dim: int, buffers: Any) -> Any:
    """Of a row tile's queries and its state, and of what all tiles share: the part and the scores."""
    memory = buffers[0].ctypes.data
    queries = memory + tile * (2 * dim + 2) * LANES * 4
    part = memory + CHUNK_TILES * (2 * dim + 2) * LANES * 4
    return queries, queries + dim * LANES * 4, part, part + (dim + 2) * LANES * 4


@kernel()
def locate(table: Any, begin: int, first: int, end: int, block_size: int, slots: Any) -> int:
    """``slots`` of keys ``begin`` to ``end``, and how many: a multiple of ``KEY_UNROLL``.

    Before key ``first``, and from ``end`` on, its slot stands instead.
    """
    block, inside = first // block_size, first % block_size
    base = np.int64(table[block]) * block_size
    for i in range(first - begin, end - begin):
        if inside == block_size:
            block, inside = block + 1, 0
            base = np.int64(table[block]) * block_size
        slots[i] = base + inside
        inside += 1
    for i in range(first - begin):
        slots[i] = slots[first - begin]
    for i in range(end - begin, KEYS):
        slots[i] = slots[first - begin]
    return (end - begin + KEY_UNROLL - 1) // KEY_UNROLL * KEY_UNROLL


@kernel(inline="always")
def aligned(tile: int, first: int) -> int:
    """Where a tile's keys are counted from, so that sums add in the same order whatever key is the first."""
    return tile + (first - tile) // KEY_UNROLL * KEY_UNROLL if first > tile else tile


@kernel()
def stored(pool: Any, kv: int, dim: int, buffers: Any) -> Any:
    """Where one key/value head's keys, its values, their scales, the tile's slots and the next one's are."""
    keys, values, key_scales, value_scales, nbytes, _ = pool
    head, slots, ahead = kv * dim * nbytes, buffers[2][0].ctypes.data, buffers[2][1].ctypes.data
    return (keys + head, key_scales + kv * 4, slots, ahead), (values + head, value_scales + kv * 4, slots, ahead)


@kernel()
def unpack_tile(pool: Any, n: int, kv: int, kv_heads: int, dim: int, buffers: Any) -> None:
    """Fill the unpacked tile with ``n`` keys and values of one key/value head."""
    keys, values = stored(pool, kv, dim, buffers)
    out = buffers[1].ctypes.data
    unpack(pool[5], keys, n, kv_heads, dim, out)
    unpack(pool[5], values, n, kv_heads, dim, out + dim * KEYS * 4)


@kernel()
def fetch_tile(pool: Any, n: int, kv_heads: int, dim: int, buffers: Any) -> None:
    """Bring the located tile of ``n`` keys and values into the cache."""
    for kv in range(kv_heads):
        keys, values = stored(pool, kv, dim, buffers)
        fetch(pool[5], keys, n, kv_heads, dim)
        fetch(pool[5], values, n, kv_heads, dim)


@kernel()
def load_queries(rows: int, vectors: int, tile: int, q: int, scale: float, heads: int, dim: int, buffers: Any) -> None:
    """A tile's rows, which ``buffers[4]`` names, into its lanes, times ``scale``; in lanes left over lies anything."""
    lanes, row = vectors * LANE_WIDTH, buffers[4][tile * LANES :]
    queries = carray(float_pointer(addresses(tile, dim, buffers)[0]), (dim * lanes,))
    for lane in range(rows):
        source = carray(float_pointer(q + (row[lane, 0] * heads + row[lane, 1]) * dim * 4), (dim,))
        for d in range(dim):
            queries[d * lanes + lane] = source[d] * scale


@kernel()
def tile_part(table: Any, n: int, first: int, vectors: int, tile: int, masked: bool, dim: int, buffers: Any) -> None:
    """The part of the unpacked tile of ``n`` keys, the first at position ``first``, for the rows in a tile's lanes."""
    keys = np.int64(buffers[1].ctypes.data)
    lanes = vectors * LANE_WIDTH
    queries, _, part, scores = addresses(tile, dim, buffers)
    lane_scores(table, vectors, queries, keys, n, dim, scores)
    if masked:
        newest = buffers[3][tile].ctypes.data
        lane_mask(scores, n, lanes, first, newest, newest + LANES * 4)
    lane_softmax(scores, n, lanes, part + dim * lanes * 4)
    lane_values(table, vectors, scores, keys + dim * KEYS * 4, n, dim, part)
