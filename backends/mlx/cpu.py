"""What MLX does slowly on a CPU, put together from the operations that it does fast there.

On a CPU each operation of MLX but the matrix product runs on one core. Sums and products take 0.1 ns an element, all
that holds an exponential 10 to 15 ns: softmax costs several times as much as the two products around it. Here ``exp2``
is a polynomial over whole arrays, in tiles that stay in a core's cache.

All is float32, and equals the plain forms in ``ops.py`` up to rounding; a Mac runs none of it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import platform
from typing import Final

import numpy as np

from ...models.gelu import GELU_CUBE, GELU_SLOPE
from .library import Array, mx, openblas_core
from .linear import Linear

LOG2E: Final = math.log2(math.e)
#: 2^f for f in [-1/2, 1/2], interpolated in Chebyshev's points, lowest power first: off by 1.0e-7 of its value.
POWERS: Final = tuple(
    np.polynomial.Chebyshev.interpolate(np.exp2, 5, (-0.5, 0.5)).convert(kind=np.polynomial.Polynomial).coef.tolist()
)
#: A float32 plus this is rounded to an integer n, and the sum's lowest bits hold n + 127: the exponent of 2^n.
ROUND: Final = 1.5 * 2.0**23 + 127
#: Fewer elements than this are quicker through MLX's ``power``: the polynomial is 18 operations of 3 us or more.
FEW: Final = 1 << 16
#: OpenBLAS multiplies so many rows at a time; some fewer may take it twice as long as a full tile.
ROWS: Final = 16
#: But not fewer than so many, which depends on its kernels: those for AVX2, and by core those for AVX-512.
LEAST_ROWS: Final = 4
LEAST_ROWS_OF: Final = dict.fromkeys(("SkylakeX", "Cooperlake", "SapphireRapids"), 9)
#: Scores that the attention of a chunk works on at a time, and the queries that they may be of.
TILE_SCORES: Final = 1 << 19
FEWEST, MOST = ROWS, 8 * ROWS
#: Of glibc's malloc.h; and the bytes from which memory goes back to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 30


def keep_freed_memory() -> None:
    """Have glibc keep what MLX frees, up to a step's peak, for its next arrays: given back to the system it comes back
    a page fault at a time, which costs an elementwise operation ten times its own work. Other libraries do as they do.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(option, _KEPT)


def exp2(x: Array) -> Array:
    """2^x, for x up to 127; what lies below -126 counts as that."""
    if x.size < FEW:
        return mx.power(_scalar(2.0), x)
    x = mx.maximum(x, _scalar(-126.0))
    rounded = x + _scalar(ROUND)
    f = x - (rounded - _scalar(ROUND))
    value = f * _scalar(POWERS[-1]) + _scalar(POWERS[-2])
    for power in POWERS[-3::-1]:
        value = value * f + _scalar(power)
    return value * mx.left_shift(rounded.view(mx.int32), _scalar(23)).view(mx.float32)


def multiply(x: Array, matrix: Linear) -> Array:
    """``matrix(x)`` for x [T, K], by way of rows of zeros up to a full tile where that is the quicker."""
    count = len(x)
    missing = -count % ROWS
    if missing == 0 or ROWS - missing < LEAST_ROWS_OF.get(openblas_core(), LEAST_ROWS):
        return matrix(x)
    return matrix(mx.concatenate((x, _zeros(missing, x.shape[1]))))[:count]


def swiglu(gate: Array, up: Array) -> Array:
    """``gate * sigmoid(gate) * up``"""
    return _gated(gate, gate * _scalar(-LOG2E), up)


def geglu(gate: Array, up: Array) -> Array:
    """``gelu(gate) * up``, GELU by tanh: (1 + tanh(z)) / 2 is the logistic function of 2 z."""
    cubic = gate * gate * _scalar(-2 * LOG2E * GELU_SLOPE * GELU_CUBE) + _scalar(-2 * LOG2E * GELU_SLOPE)
    return _gated(gate, gate * cubic, up)


def _gated(gate: Array, power: Array, up: Array) -> Array:
    """``gate / (1 + 2^power) * up``"""
    return gate / (_scalar(1.0) + exp2(mx.minimum(power, _scalar(126.0)))) * up


def attend_decodes(q: Array, k: Array, v: Array, scale: float, seen: Array | None) -> Array:
    """Attention of one query in each of G sequences.

    Args:
        q: [G, H, hd].
        k: [G, KV, L, hd], as v.
        seen: bool [G, 1, 1, L]; None: all keys.
    Returns:
        [G, H * hd].
    """
    grouped = (q * _scalar(scale * LOG2E)).reshape(q.shape[0], k.shape[1], -1, q.shape[2])
    return _softmax_sum(grouped, k, v, None if seen is None else mx.where(seen, 0.0, -math.inf)).reshape(len(q), -1)


def attend_chunk(q: Array, k: Array, v: Array, scale: float, window: int | None) -> Array:
    """Attention of a sequence's last Q tokens to itself, in tiles of queries over the keys that they see.

    Args:
        q: [Q, H, hd].
        k: [1, KV, L, hd], as v: the last Q keys are the queries' own.
        window: keys that a query sees, its own included; None: all up to its own.
    Returns:
        [Q, H * hd].
    """
    (count, heads, dim), (kv_heads, length) = q.shape, k.shape[1:3]
    rows = (q * _scalar(scale * LOG2E)).reshape(count, kv_heads, -1, dim).transpose(1, 2, 0, 3)
    size = min(MOST, max(FEWEST, TILE_SCORES // (heads * length) // ROWS * ROWS))
    outs: list[Array] = []
    for start in range(0, count, size):
        stop = min(start + size, count)
        end = length - count + stop  # one past the last key that the tile sees
        first = max(0, end - (stop - start) - window + 1) if window else 0
        tile = rows[:, :, start:stop].reshape(1, kv_heads, -1, dim)
        if outs:  # one tile after the other: together they would leave the cache, and take memory
            tile = mx.depends(tile, outs[-1])
        bias = _causal(heads // kv_heads, stop - start, end - first, window)
        out = _softmax_sum(tile, k[:, :, first:end], v[:, :, first:end], bias)
        outs.append(out.reshape(kv_heads, -1, stop - start, dim).transpose(2, 0, 1, 3).reshape(stop - start, -1))
    return outs[0] if len(outs) == 1 else mx.concatenate(outs)


def _softmax_sum(q: Array, k: Array, v: Array, bias: Array | None) -> Array:
    """``softmax2(q k^T + bias) v``: q [G, KV, R, hd] holds the scale; the bias broadcasts to [G, KV, R, L]."""
    scores = q @ k.swapaxes(-1, -2)
    if bias is not None:
        scores = scores + bias
    weights = exp2(scores - mx.max(scores, axis=-1, keepdims=True))
    return (weights @ v) / mx.sum(weights, axis=-1, keepdims=True)


@functools.lru_cache(maxsize=32)
def _causal(heads: int, queries: int, keys: int, window: int | None) -> Array:
    """For ``heads`` times the last ``queries`` of ``keys`` tokens, what is added to their scores: 0 or -inf."""
    key, query = np.arange(keys), np.arange(keys - queries, keys)[:, None]
    seen = (key <= query) & (key > query - (window or keys))
    return _made(np.tile(np.where(seen, 0.0, -np.inf).astype(np.float32), (heads, 1)))


@functools.cache
def _scalar(value: float) -> Array:
    """Made once: making an array of a number takes MLX longer than adding it."""
    return _made(value)


@functools.lru_cache(maxsize=4 * ROWS)
def _zeros(rows: int, columns: int) -> Array:
    return _made(np.zeros((rows, columns), np.float32))


def _made(value: object) -> Array:
    made = mx.array(value)
    mx.eval(made)
    return made
