"""Paged attention of one query per sequence: the cache is cut into splits, each read once for a whole group of heads.

The splits' partial results are float32 and are joined by a second kernel (flash decoding).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .architecture import readable
from .cases import Case
from .e4m3 import widen
from .variant import Variant

ROWS = 16  # the least rows a tensor core takes: a group of query heads, padded
TILE = 64  # keys read at a time, whatever the pool's block size
MOST_SPLITS = 32
PROGRAMS = 2 * 132  # enough to fill the largest GPU twice


@triton.jit
def decode_kernel(
    q, keys, values, key_scales, value_scales, sinks, sequences, query_start, context_lens, block_tables,
    out, partial, peaks, sums, table_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, SCALED: tl.constexpr, SINKS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (n, kv, s): split s of the n-th decoding sequence, for the query heads that share KV head kv."""
    index, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    sequence = tl.load(sequences + index)
    token = tl.load(query_start + sequence).to(tl.int64)
    end = tl.load(context_lens + sequence)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(end - WINDOW, 0)
    first_tile, last_tile = begin // TILE, tl.cdiv(end, TILE)
    per_split = tl.cdiv(last_tile - first_tile, SPLITS)
    from_tile = first_tile + split * per_split
    to_tile = tl.minimum(from_tile + per_split, last_tile)

    row, dim, lane = tl.arange(0, ROWS), tl.arange(0, BLOCK), tl.arange(0, TILE)
    head = kv_head * GROUP + row
    mine = (row < GROUP)[:, None] & (dim < DIM)[None, :]
    query = tl.load(q + (token * HEADS + head)[:, None] * DIM + dim[None, :], mask=mine, other=0.0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(from_tile, to_tile):
        at = tile * TILE + lane
        seen = (at >= begin) & (at < end)
        page = tl.load(block_tables + sequence.to(tl.int64) * table_stride + at // PAGE, mask=seen, other=0)
        place = (page.to(tl.int64) * PAGE + at % PAGE) * KV_HEADS + kv_head
        # what is not seen is never read: it may be NaN, and 0 * NaN is NaN
        inside = seen[:, None] & (dim < DIM)[None, :]
        k = widen(tl.load(keys + place[:, None] * DIM + dim[None, :], mask=inside, other=0.0), query.dtype)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        if SCALED:
            scores *= tl.load(key_scales + place, mask=seen, other=0.0)[None, :]
        if SOFTCAP > 0:
            scores = SOFTCAP * (1 - 2 / (tl.exp(scores * (2 / SOFTCAP)) + 1))
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        fade, weights = tl.exp(peak - higher), tl.exp(scores - higher[:, None])
        total = total * fade + tl.sum(weights, 1)
        if SCALED:
            weights *= tl.load(value_scales + place, mask=seen, other=0.0)[None, :]
        v = widen(tl.load(values + place[:, None] * DIM + dim[None, :], mask=inside, other=0.0), query.dtype)
        mixed = tl.dot(weights.to(query.dtype), v, mixed * fade[:, None], input_precision="ieee")
        peak = higher
    if SPLITS == 1:
        if SINKS:  # as a key whose value is zero
            sink = tl.load(sinks + head, mask=row < GROUP, other=0.0)
            higher = tl.maximum(peak, sink)
            fade = tl.exp(peak - higher)
            total = total * fade + tl.exp(sink - higher)
            mixed *= fade[:, None]
        done = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + (token * HEADS + head)[:, None] * DIM + dim[None, :], done, mask=mine)
    else:
        slot = (index.to(tl.int64) * HEADS + head) * SPLITS + split
        tl.store(partial + slot[:, None] * DIM + dim[None, :], mixed, mask=mine)
        tl.store(peaks + slot, peak, mask=row < GROUP)
        tl.store(sums + slot, total, mask=row < GROUP)


@triton.jit
def join_kernel(
    partial, peaks, sums, sinks, sequences, query_start, out,
    HEADS: tl.constexpr, DIM: tl.constexpr, SINKS: tl.constexpr, SPLITS: tl.constexpr, LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (n, h): head h of the n-th decoding sequence from its splits. A split that saw nothing has peak -inf."""
    index, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane, dim = tl.arange(0, LANES), tl.arange(0, BLOCK)
    slot = (index * HEADS + head) * SPLITS + lane
    peak = tl.load(peaks + slot, mask=lane < SPLITS, other=float("-inf"))
    highest = tl.max(peak, 0)
    if SINKS:
        sink = tl.load(sinks + head)
        highest = tl.maximum(highest, sink)
    weight = tl.exp(peak - highest)
    total = tl.sum(tl.load(sums + slot, mask=lane < SPLITS, other=0.0) * weight, 0)
    if SINKS:
        total += tl.exp(sink - highest)
    inside = (lane < SPLITS)[:, None] & (dim < DIM)[None, :]
    part = tl.load(partial + slot[:, None] * DIM + dim[None, :], mask=inside, other=0.0)
    mixed = tl.sum(part * weight[:, None], 0) / total
    token = tl.load(query_start + tl.load(sequences + index)).to(tl.int64)
    tl.store(out + (token * HEADS + head) * DIM + dim, mixed.to(out.dtype.element_ty), mask=dim < DIM)


def launch_shape(block: int) -> tuple[int, int]:
    """Warps and stages for heads of up to ``block``: what keeps everything in registers."""
    return (4, 3) if block <= 128 else (8, 2)


def splits_for(count: int, kv_heads: int, longest: int) -> int:
    """How many splits fill the GPU without leaving one less than a tile: a power of two, 1 to MOST_SPLITS."""
    wanted = max(1, min(PROGRAMS // max(count * kv_heads, 1), -(-longest // TILE), MOST_SPLITS))
    return 1 << (wanted.bit_length() - 1)


def decode_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
    sequences: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    splits: int = 1,
) -> None:
    """Attention of the sequences that have one query each; the other rows of ``out`` are left alone.

    Args:
        q, out: [T, H, hd], contiguous.
        keys, values: one layer's pools [num_blocks, block_size, KV, hd], of q's dtype, int8 or e4m3.
        scales: for int8 and e4m3, those of keys and values, float32 [num_blocks, block_size, KV].
        sequences: int32 [N], which sequences of the step.
        query_start, context_lens: int32 [S + 1], [S].
        block_tables: int32 [S, B].
        softcap: scores become ``softcap * tanh(score / softcap)``; 0: they stay.
        sinks: float32 [H], a score for each head that joins the softmax and takes its share of it; None: none.
        splits: into how many parts each context is cut, see ``splits_for``.
    """
    count, (heads, dim), (page, kv_heads) = len(sequences), q.shape[1:], keys.shape[1:3]
    block = triton.next_power_of_2(dim)
    warps, stages = launch_shape(block)
    partial = torch.empty((count, heads, splits, dim) if splits > 1 else (1,), dtype=torch.float32, device=q.device)
    peaks, sums = torch.empty((2, count, heads, splits), dtype=torch.float32, device=q.device)
    key_scales, value_scales = scales or (peaks, peaks)
    sinks_or_none = peaks if sinks is None else sinks
    decode_kernel[(count, kv_heads, splits)](
        q, readable(keys), readable(values), key_scales, value_scales, sinks_or_none, sequences, query_start,
        context_lens, block_tables,
        out, partial, peaks, sums, block_tables.stride(0), scale,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAGE=page, WINDOW=window or 0, SOFTCAP=softcap,
        SCALED=scales is not None, SINKS=sinks is not None, SPLITS=splits,
        ROWS=max(ROWS, triton.next_power_of_2(heads // kv_heads)), TILE=TILE, BLOCK=block,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        join_kernel[(count, heads)](
            partial, peaks, sums, sinks_or_none, sequences, query_start, out, HEADS=heads, DIM=dim,
            SINKS=sinks is not None, SPLITS=splits, LANES=triton.next_power_of_2(splits), BLOCK=block, num_warps=4,
        )  # fmt: skip


def variants() -> list[Variant]:
    types = dict.fromkeys(("out",), "*bf16")
    types |= dict.fromkeys(("key_scales", "value_scales", "sinks", "partial", "peaks", "sums"), "*fp32")
    types |= dict.fromkeys(("sequences", "query_start", "context_lens", "block_tables"), "*i32")
    types |= {"table_stride": "i32", "scale": "fp32"}
    join: dict[str, int] = {"HEADS": 32, "DIM": 128, "SINKS": False, "SPLITS": 8, "LANES": 8, "BLOCK": 128}
    return [
        *(_variant(case, types) for case in CASES),
        Variant("join[128, 8 splits]", join_kernel, types, join),
        Variant("join[64, 8 splits, sinks]", join_kernel, types, join | {"DIM": 64, "BLOCK": 64, "SINKS": True}),
    ]


def _variant(case: Case, types: dict[str, str]) -> Variant:
    block = triton.next_power_of_2(case.dim)
    warps, stages = launch_shape(block)
    constants = case.constants() | {"SPLITS": 1 if "one split" in case.notes else 8, "TILE": TILE, "BLOCK": block}
    constants["ROWS"] = max(ROWS, triton.next_power_of_2(case.group))
    return Variant(
        f"decode[{case}]", decode_kernel, types | case.types(), constants, warps, stages,
        tensor_cores=True, unaligned=frozenset({"table_stride"}), architectures=case.architectures(),
    )  # fmt: skip


CASES = (
    *(Case(dim) for dim in (64, 80, 96, 128, 256)),
    *(Case(128, group=group) for group in (1, 2, 7, 8, 16)),
    *(Case(dim, kept=kept) for dim in (64, 128, 256) for kept in ("int8", "e4m3", "e4m3 by bits")),
    Case(128, half="fp16"),
    Case(128, notes=("one split",)),
    Case(128, window=4096),
    Case(256, window=4096, softcap=50.0),
    Case(64, group=8, window=128, sinks=True),
    Case(64, group=8, sinks=True, notes=("one split",)),
    Case(64, group=8, sinks=True, kept="e4m3"),
)
