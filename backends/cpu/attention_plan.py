"""How the attention of one step is cut into items for threads: see ``attention``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.step import StepBatch
from .attention_lanes import LANES
from .attention_rows import KEYS
from .simd import kernel

#: Row tiles of one item of a chunk: each of them uses a tile of keys and values while it is in the cache.
CHUNK_TILES = 96 // LANES
DECODE = -1  # in an item's second column, where a chunk's item has its key/value head


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

    @property
    def step(self) -> tuple[NDArray[Any], ...]:
        """What the items are about, as the kernels take it."""
        return self.members, self.parts, self.partial, self.query_start, self.context_lens, self.block_tables

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
