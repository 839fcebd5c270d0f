"""Paged attention on Metal: which spans of keys each threadgroup takes, and the launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernel import DEVICE_ELEMENTS, Constant, Kernel, Launch

Ints = NDArray[np.int32]

#: Floats per lane for the queries of one threadgroup, and as many again for the sums: more would spill registers.
LANE_FLOATS = 40
#: Elements of a key in a lane: neighbouring lanes' loads should stay close.
LANE_LOADS = 12
SIMDS = 4
UNROLL = 4
#: Threadgroups that keep a large GPU busy; more spans than that only add work to join them.
GROUPS = 1024
#: Keys in a span: fewer don't pay for the joining, more leave the last threadgroups working alone.
LEAST_SPAN, MOST_SPAN = 256, 2048
#: A sequence of more queries than this is cheaper gathered once (each key read, written, read) than read per query.
MOST_QUERIES = 3


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a model and its pool fix. ``dtype`` is that of q and results; ``scaled``: K and V are int8 with scales."""

    heads: int
    kv_heads: int
    head_dim: int
    block: int  # keys in a block
    dtype: str
    scaled: bool = False

    @property
    def fits(self) -> bool:
        """Whether the kernels can be made for it."""
        return self.head_dim % 8 == 0 and self.dtype in ("float32", "float16", "bfloat16")

    @property
    def lanes(self) -> int:
        """Lanes that share a key: as few as leave whole elements to each, not too many to load at once, and a group's
        queries in registers."""
        most = min(LANE_FLOATS * self.kv_heads // self.heads, LANE_LOADS)
        fitting = [n for n in (8, 16, 32) if self.head_dim % n == 0]
        return next((n for n in fitting if self.head_dim // n <= most), fitting[-1])

    @property
    def tile(self) -> int:
        """Query heads of one KV head in a threadgroup: all of them, unless registers hold fewer."""
        group, per = self.heads // self.kv_heads, self.head_dim // self.lanes
        return max(n for n in range(1, group + 1) if group % n == 0 and (n * per <= LANE_FLOATS or n == 1))

    @property
    def threadgroups(self) -> int:
        """For each item."""
        return self.heads // self.tile


@dataclass(frozen=True, slots=True)
class Spans:
    """The items of one launch, see ``paged_attention.metal``; ``starts`` says which belong to each token."""

    items: Ints  # [items or more, 4]
    starts: Ints  # [tokens + 1]

    @property
    def tokens(self) -> int:
        return len(self.starts) - 1

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    @property
    def split(self) -> bool:
        return self.count > self.tokens


def span_keys(keys: int, threadgroups: int) -> int:
    """How many keys a span should have when ``keys`` are to be read in all, by ``threadgroups`` for each span."""
    even = -(-keys * threadgroups // GROUPS)
    return min(max(-(-even // 64) * 64, LEAST_SPAN), MOST_SPAN)


def make_spans(sequences: Ints, positions: Ints, window: int | None, threadgroups: int, span: int = 0) -> Spans:
    """Items for tokens of ``sequences`` [N] (rows of the block tables) at ``positions`` [N].

    A token sees its own key and those before it, ``window`` in all (None: no limit). ``span``: keys in an item, 0:
    as ``span_keys`` says.
    """
    stop = positions.astype(np.int64) + 1
    first = np.maximum(stop - window, 0) if window else np.zeros_like(stop)
    span = span or span_keys(int((stop - first).sum()), threadgroups)
    parts = -(-(stop - first) // span)
    starts = np.concatenate(([0], np.cumsum(parts)))
    token = np.repeat(np.arange(len(stop)), parts)
    begin = first[token] + (np.arange(starts[-1]) - starts[token]) * span
    items = np.stack((token, sequences[token], begin, np.minimum(begin + span, stop[token])), axis=1)
    return Spans(_roomy(items.astype(np.int32)), starts.astype(np.int32))


def roomy_tables(tables: Ints) -> Ints:
    """``tables`` with columns up to a multiple of 8: few shapes, and never fewer than DEVICE_ELEMENTS."""
    more = -tables.shape[1] % DEVICE_ELEMENTS
    return np.ascontiguousarray(np.pad(tables, ((0, 0), (0, more)), constant_values=-1))


def _roomy(items: Ints) -> Ints:
    """One item gets a row more, for DEVICE_ELEMENTS."""
    return items if len(items) > 1 else np.concatenate((items, np.zeros_like(items)))


@functools.cache
def attention_kernel(shape: Geometry, split: bool, scale: float, softcap: float) -> Kernel:
    """``split``: spans are left apart, each with its log-sum-exp."""
    constants: dict[str, Constant] = {
        "T": shape.dtype,
        "POOL": "int8" if shape.scaled else shape.dtype,
        "SCALED": int(shape.scaled),
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "HEAD_DIM": shape.head_dim,
        "BLOCK": shape.block,
        "LANES": shape.lanes,
        "PER": shape.head_dim // shape.lanes,
        "TILE": shape.tile,
        "TILES": shape.heads // shape.kv_heads // shape.tile,
        "SIMDS": SIMDS,
        "UNROLL": UNROLL,
        "SPLIT": int(split),
        "FACTOR": scale / softcap if softcap else scale * math.log2(math.e),
        "CAPPED": int(bool(softcap)),
        "CAP": float(softcap),
    }
    inputs = ("q", "k_pool", "v_pool", "tables", "items", *(("k_scales", "v_scales") if shape.scaled else ()))
    return Kernel(("paged_attention",), inputs, ("partial", "lse") if split else ("out",), tuple(constants.items()))


def attention_launch(shape: Geometry, spans: Spans, scale: float, softcap: float = 0.0) -> Launch:
    """The launch of ``paged_attention``: its inputs are q, k_pool, v_pool, tables, items, and scales where
    the pool has them."""
    kernel = attention_kernel(shape, spans.split, scale, softcap)
    grid = (SIMDS * 32, shape.threadgroups, spans.count)
    outputs: tuple[tuple[tuple[int, ...], str], ...] = (((spans.tokens, shape.heads, shape.head_dim), shape.dtype),)
    if spans.split:
        rows = (max(spans.count, -(-DEVICE_ELEMENTS // shape.heads)), shape.heads)
        outputs = (((*rows, shape.head_dim), "float32"), (rows, "float32"))
    return Launch(kernel, grid, (SIMDS * 32, 1, 1), outputs)


@functools.cache
def reduce_kernel(shape: Geometry) -> Kernel:
    constants = (("T", shape.dtype), ("HEADS", shape.heads), ("HEAD_DIM", shape.head_dim))
    return Kernel(("paged_attention_reduce",), ("partial", "lse", "starts"), ("out",), constants)


def reduce_launch(shape: Geometry, spans: Spans) -> Launch:
    """The launch of ``paged_attention_reduce``: its inputs are partial, lse, starts."""
    threads = -(-shape.head_dim // 32) * 32
    output = ((spans.tokens, shape.heads, shape.head_dim), shape.dtype)
    return Launch(reduce_kernel(shape), (threads, shape.heads, spans.tokens), (threads, 1, 1), (output,))


@dataclass(frozen=True, slots=True)
class PagedStep:
    """The spans of one step's tokens on the device, for every layer of one window."""

    shape: Geometry
    spans: Spans
    tables: Any  # int32 [sequences, columns]
    items: Any
    starts: Any

    @classmethod
    def build(cls, shape: Geometry, spans: Spans, tables: Ints) -> PagedStep:
        from ..library import mx

        starts = np.resize(spans.starts, max(len(spans.starts), DEVICE_ELEMENTS))
        return cls(shape, spans, mx.array(roomy_tables(tables)), mx.array(spans.items), mx.array(starts))


def paged_attention(
    q: Any, k_pool: Any, v_pool: Any, step: PagedStep, scale: float, softcap: float = 0.0, scales: Sequence[Any] = ()
) -> Any:
    """Attention of ``q`` [N, H, hd] over pools [blocks, block, KV, hd], in the order of the step's tokens: [N, H * hd].

    ``scales``: of an int8 pool's keys and values, float32 [blocks, block, KV] each. Only where ``kernel.available()``.
    """
    launch = attention_launch(step.shape, step.spans, scale, softcap)
    done = launch.run(q, k_pool, v_pool, step.tables, step.items, *scales)
    if step.spans.split:
        done = reduce_launch(step.shape, step.spans).run(*done, step.starts)
    return done[0].reshape(q.shape[0], -1)
