"""Paged attention of several queries per sequence: chunks of prompts, whatever lies in the cache before them.

A program's rows are the pairs of a query token and a head of the group, so that a key is read once for all of them.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from .architecture import architecture, readable
from .cases import Case
from .e4m3 import widen
from .variant import Variant


@triton.jit
def _one_tile(
    query, keys, values, key_scales, value_scales, table, kv_head, tile, position, end, peak, total, mixed, scale,
    MASKED: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, SCALED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take TILE keys in. Without MASKED all of them are seen by every row."""
    at, dim = tile * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)
    if MASKED:
        exists = at < end
        page = tl.load(table + at // PAGE, mask=exists, other=0)
        inside = exists[:, None] & (dim < DIM)[None, :]
    else:
        page = tl.load(table + at // PAGE)
        inside = (dim < DIM)[None, :]
    place = (page.to(tl.int64) * PAGE + at % PAGE) * KV_HEADS + kv_head
    k = widen(tl.load(keys + place[:, None] * DIM + dim[None, :], mask=inside, other=0.0), query.dtype)
    scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
    if SCALED:
        if MASKED:
            key_scale = tl.load(key_scales + place, mask=exists, other=0.0)
            value_scale = tl.load(value_scales + place, mask=exists, other=0.0)
        else:
            key_scale, value_scale = tl.load(key_scales + place), tl.load(value_scales + place)
        scores *= key_scale[None, :]
    if SOFTCAP > 0:
        scores = SOFTCAP * (1 - 2 / (tl.exp(scores * (2 / SOFTCAP)) + 1))
    if MASKED:
        seen = at[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (at[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet
    fade, weights = tl.exp(peak - base), tl.exp(scores - base[:, None])
    total = total * fade + tl.sum(weights, 1)
    if SCALED:
        if MASKED and WINDOW > 0:
            weights = tl.where(seen, weights * value_scale[None, :], 0.0)
        else:
            weights *= value_scale[None, :]
    v = widen(tl.load(values + place[:, None] * DIM + dim[None, :], mask=inside, other=0.0), query.dtype)
    mixed = tl.dot(weights.to(query.dtype), v, mixed * fade[:, None], input_precision="ieee")
    return higher, total, mixed


@triton.jit
def extend_kernel(
    q, keys, values, key_scales, value_scales, sinks, tiles, query_start, context_lens, block_tables, out,
    table_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, SCALED: tl.constexpr, SINKS: tl.constexpr, ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """Program (t, kv): query tile t, for the query heads that share KV head kv."""
    index, kv_head = tl.program_id(0), tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    sequence, first = tl.load(tiles + 2 * index), tl.load(tiles + 2 * index + 1)
    start = tl.load(query_start + sequence)
    length = tl.load(query_start + sequence + 1) - start
    end = tl.load(context_lens + sequence)
    row, dim = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    offset, head = first + row // GROUP_ROWS, row % GROUP_ROWS
    mine = ((offset < length) & (head < GROUP))[:, None] & (dim < DIM)[None, :]
    place = ((start + offset).to(tl.int64) * HEADS + kv_head * GROUP + head)[:, None] * DIM + dim[None, :]
    query = tl.load(q + place, mask=mine, other=0.0)
    before = end - length  # tokens that were in the cache before this step
    # rows past the chunk's end see what its last row sees: nothing that was not written
    position = before + tl.minimum(offset, length - 1)
    lowest, highest = before + first, before + tl.minimum(first + ROWS // GROUP_ROWS, length) - 1
    table = block_tables + sequence.to(tl.int64) * table_stride
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, BLOCK], tl.float32)
    masked_from = 0
    if WINDOW > 0:
        masked_from = tl.maximum(lowest - WINDOW + 1, 0) // TILE
    elif UNMASKED:
        masked_from = (lowest + 1) // TILE
        for tile in range(0, masked_from):
            peak, total, mixed = _one_tile(
                query, keys, values, key_scales, value_scales, table, kv_head, tile, position, end, peak, total, mixed,
                scale, False, KV_HEADS, DIM, PAGE, WINDOW, SOFTCAP, SCALED, TILE, BLOCK,
            )  # fmt: skip
    for tile in range(masked_from, highest // TILE + 1):
        peak, total, mixed = _one_tile(
            query, keys, values, key_scales, value_scales, table, kv_head, tile, position, end, peak, total, mixed,
            scale, True, KV_HEADS, DIM, PAGE, WINDOW, SOFTCAP, SCALED, TILE, BLOCK,
        )  # fmt: skip
    if SINKS:  # as a key whose value is zero
        sink = tl.load(sinks + kv_head * GROUP + head, mask=head < GROUP, other=0.0)
        higher = tl.maximum(peak, sink)
        fade = tl.exp(peak - higher)
        total = total * fade + tl.exp(sink - higher)
        mixed *= fade[:, None]
    tl.store(out + place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=mine)


def tile_shape(dim: int, element_bytes: int, arch: int) -> tuple[int, int, int, int]:
    """(rows, keys, warps, stages) for heads of ``dim``: what 99 KiB of shared memory and the registers allow.

    wgmma (sm_90) and tcgen05 (sm_100) take their operands from shared memory; mma.sync needs registers for them, so
    there the tile of keys is half as large.
    """
    if element_bytes > 2:
        return 64, 32, 4, 1
    if dim <= 128:
        return 128, 64 if arch in (90, 100) or dim <= 64 else 32, 8, 2
    return 64, 32, 8, 2


def unmasked(arch: int, scaled: bool) -> bool:
    """Whether tiles that all rows see get a loop of their own: its registers must not cost more than the mask does."""
    return arch == 90 or (arch == 100 and not scaled)


def query_tiles(
    query_start: NDArray[np.int32], context_lens: NDArray[np.int32], sequences: NDArray[np.intp], tokens: int
) -> NDArray[np.int32]:
    """Cut the queries of ``sequences`` into tiles of ``tokens``: [N, 2] (sequence, first query), most keys first."""
    lengths = np.diff(query_start)[sequences]
    counts = -(-lengths // tokens)
    sequence = np.repeat(sequences, counts)
    first = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * tokens
    keys = context_lens[sequence] - np.repeat(lengths, counts) + first
    order = np.argsort(-keys, kind="stable")
    return np.stack((sequence, first), axis=1)[order].astype(np.int32)


def tile_tokens(q: torch.Tensor, kv_heads: int) -> int:
    """Query tokens in one tile, for queries like ``q`` [T, H, hd]."""
    heads, dim = q.shape[1:]
    rows = tile_shape(triton.next_power_of_2(dim), q.element_size(), architecture(q.device))[0]
    return max(rows // int(triton.next_power_of_2(heads // kv_heads)), 1)


def extend_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
    tiles: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> None:
    """Causal attention of the queries in ``tiles`` (int32 [N, 2], see ``query_tiles``); other rows of ``out`` stay.

    The rest is as for ``decode_attention``. The step's own keys and values are in the pools already.
    """
    (heads, dim), (page, kv_heads) = q.shape[1:], keys.shape[1:3]
    block = triton.next_power_of_2(dim)
    arch, scaled = architecture(q.device), scales is not None
    rows, tile, warps, stages = tile_shape(block, q.element_size(), arch)
    group_rows = triton.next_power_of_2(heads // kv_heads)
    key_scales, value_scales = scales or (q, q)
    extend_kernel[(len(tiles), kv_heads)](
        q, readable(keys), readable(values), key_scales, value_scales, q if sinks is None else sinks, tiles,
        query_start, context_lens, block_tables, out, block_tables.stride(0), scale,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAGE=page, WINDOW=window or 0, SOFTCAP=softcap,
        SCALED=scaled, SINKS=sinks is not None, ROWS=max(rows, group_rows), GROUP_ROWS=group_rows,
        TILE=tile, BLOCK=block, UNMASKED=unmasked(arch, scaled) or q.device.type == "cpu", num_warps=warps,
        num_stages=stages,
    )  # fmt: skip


def variants() -> list[Variant]:
    types = dict.fromkeys(("key_scales", "value_scales", "sinks"), "*fp32")
    types |= dict.fromkeys(("tiles", "query_start", "context_lens", "block_tables"), "*i32")
    types |= {"table_stride": "i32", "scale": "fp32"}
    return [_variant(case, types, arch) for case in CASES for arch in case.architectures()]


def _variant(case: Case, types: dict[str, str], arch: int) -> Variant:
    block, scaled = triton.next_power_of_2(case.dim), bool(case.kept)
    rows, tile, warps, stages = tile_shape(block, 2, arch)
    group = triton.next_power_of_2(case.group)
    constants = case.constants() | {"ROWS": max(rows, group), "GROUP_ROWS": group, "TILE": tile, "BLOCK": block}
    constants["UNMASKED"] = unmasked(arch, scaled)
    return Variant(
        f"extend[{case}]", extend_kernel, types | case.types(), constants, warps, stages, tensor_cores=True,
        unaligned=frozenset({"table_stride"}), architectures=(arch,),
    )  # fmt: skip


CASES = (
    *(Case(dim) for dim in (64, 80, 96, 128, 256)),
    *(Case(128, group=group) for group in (1, 2, 7, 8, 16)),
    *(Case(dim, kept=kept) for dim in (64, 128, 256) for kept in ("int8", "e4m3", "e4m3 by bits")),
    Case(128, half="fp16"),
    Case(128, window=4096),
    Case(128, window=4096, kept="e4m3"),
    Case(256, window=4096, softcap=50.0),
    Case(64, group=8, window=128, sinks=True),
    Case(64, group=8, sinks=True, kept="e4m3"),
)
