"""Attention's inner loops as machine code: those of the lanes' form, and those that read each kind of pool."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import attention_lanes as lanes
from . import attention_rows as rows
from .elements import ELEMENTS
from .native import compile_bodies, invoke, link
from .simd import kernel

_HEADS = range(1, rows.MAX_HEADS + 1)
_VECTORS = range(1, lanes.VECTORS + 1)

_lanes = link(
    {
        "lane_mask": (6, lanes.lane_mask),
        "lane_softmax": (4, lanes.lane_softmax),
        "lane_merge": (4, lanes.lane_merge),
    },
    lanes.LANE_WIDTH,
)
lane_mask, lane_softmax, lane_merge = _lanes["lane_mask"], _lanes["lane_softmax"], _lanes["lane_merge"]

_rows = link({"row_softmax": (4, rows.row_softmax), "row_merge": (3, rows.row_merge)})
row_softmax, row_merge = _rows["row_softmax"], _rows["row_merge"]

# Where a table has what: the functions for one, two, ... vectors or heads follow each other.
_FETCH, _UNPACK, _LANE_SCORES = 0, 1, 2
_LANE_VALUES = _LANE_SCORES + len(_VECTORS)
_ROW_SCORES = _LANE_VALUES + len(_VECTORS)
_ROW_VALUES = _ROW_SCORES + len(_HEADS)


@cache
def table(name: str) -> NDArray[np.int64]:
    """The addresses of all that depends on the kind of element ``name``, or on a number of vectors or heads."""
    element = ELEMENTS[name]
    products = {
        **{f"lane_scores_{v}": (5, lanes.lane_scores(v)) for v in _VECTORS},
        **{f"lane_values_{v}": (5, lanes.lane_values(v)) for v in _VECTORS},
    }
    readers = {
        "fetch": (6, rows.fetch(element)),
        "unpack": (8, rows.unpack(element)),
        **{f"row_scores_{heads}": (9, rows.row_scores(element, heads)) for heads in _HEADS},
        **{f"row_values_{heads}": (9, rows.row_values(element, heads)) for heads in _HEADS},
    }
    fetch, unpack, *others = compile_bodies(readers).values()
    return np.array([fetch, unpack, *compile_bodies(products, lanes.LANE_WIDTH).values(), *others], np.int64)


# ``stored``: where the rows of one head are, their scales, the slots, and the slots that come next.


@kernel()
def fetch(table: Any, stored: Any, n: int, kv_heads: int, dim: int) -> None:
    pool, scales, slots, _ = stored
    invoke(table[_FETCH], (pool, scales, slots, n, kv_heads, dim))


@kernel()
def unpack(table: Any, stored: Any, n: int, kv_heads: int, dim: int, out: int) -> None:
    pool, scales, slots, ahead = stored
    invoke(table[_UNPACK], (pool, scales, slots, ahead, n, kv_heads, dim, out))


@kernel()
def lane_scores(table: Any, vectors: int, queries: int, keys: int, n: int, dim: int, scores: int) -> None:
    invoke(table[_LANE_SCORES + vectors - 1], (queries, keys, n, dim, scores))


@kernel()
def lane_values(table: Any, vectors: int, weights: int, values: int, n: int, dim: int, out: int) -> None:
    invoke(table[_LANE_VALUES + vectors - 1], (weights, values, n, dim, out))


@kernel()
def row_scores(table: Any, heads: int, queries: int, stored: Any, n: int, kv_heads: int, dim: int, scores: int) -> None:
    pool, scales, slots, ahead = stored
    invoke(table[_ROW_SCORES + heads - 1], (queries, pool, scales, slots, ahead, n, kv_heads, dim, scores))


@kernel()
def row_values(table: Any, heads: int, weights: int, stored: Any, n: int, kv_heads: int, dim: int, out: int) -> None:
    pool, scales, slots, ahead = stored
    invoke(table[_ROW_VALUES + heads - 1], (weights, pool, scales, slots, ahead, n, kv_heads, dim, out))
