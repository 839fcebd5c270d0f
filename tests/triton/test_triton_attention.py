"""Paged attention against the torch reference: unequal lengths, scattered blocks, NaN in all that was never written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from triton_setup import close

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from triton_attention import case, decoded, extended

from bireme.backends.cuda.kernels import decode, extend

DECODES = [(0, 1), (75, 1), (63, 1)]
CHUNKS = [(0, 37), (70, 5)]
SHAPES = [(6, 2, 64), (3, 1, 80), (2, 2, 96), (8, 1, 128), (2, 1, 256)]


@pytest.mark.parametrize("heads, kv_heads, dim", SHAPES)
def test_decode(heads, kv_heads, dim):
    ops, step, q = case(DECODES, heads, kv_heads, dim, torch.float16)
    close(decoded(ops, q, step, 2), ops.attention(q, ops.layer(), step), 4)


@pytest.mark.parametrize("window, splits", [(None, 1), (1, 2), (13, 1), (64, 4)])
def test_decode_windows_and_splits(window, splits):
    ops, step, q = case(DECODES, 2, 1, 64, torch.float32, block=16)
    close(decoded(ops, q, step, splits, window=window), ops.attention(q, ops.layer(window), step), 8)


@pytest.mark.parametrize("heads, kv_heads, dim", SHAPES)
def test_extend(heads, kv_heads, dim):
    ops, step, q = case(CHUNKS, heads, kv_heads, dim, torch.float16)
    close(extended(ops, q, step), ops.attention(q, ops.layer(), step), 4)


@pytest.mark.parametrize("window", [None, 1, 13, 64])
def test_extend_windows(window):
    ops, step, q = case(CHUNKS, 2, 1, 64, torch.float32, block=16)
    close(extended(ops, q, step, window=window), ops.attention(q, ops.layer(window), step), 8)


def test_each_leaves_the_others_rows_alone():
    ops, step, q = case([(9, 1), (4, 3)], 2, 1, 64, torch.float32)
    assert (decoded(ops, q, step, 1)[1:] == 7).all()
    assert (extended(ops, q, step)[0] == 7).all()


@pytest.mark.parametrize("kept, window", [(torch.int8, None), (torch.int8, 13), (torch.float8_e4m3fn, 13)])
def test_quantised_cache(kept, window):
    """Of e4m3 the kernels read the bits here, as on a GPU without instructions for it."""
    work = [(75, 1), (33, 5), (64, 1)]
    ops, step, q = case(work, 2, 1, 64, kept)
    wanted = ops.attention(q, ops.layer(window), step)
    found = torch.where(
        (torch.arange(7) % 6 == 0)[:, None],
        decoded(ops, q, step, 2, window=window),
        extended(ops, q, step, window=window),
    )
    close(found, wanted, 8)


def test_e4m3_by_the_processors_own_conversion(monkeypatch):
    ops, step, q = case([(33, 1), (20, 3)], 2, 1, 64, torch.float8_e4m3fn)
    for module in (decode, extend):
        monkeypatch.setattr(module, "readable", lambda pool: pool)
    wanted = ops.attention(q, ops.layer(), step)
    close(torch.where((torch.arange(4) == 0)[:, None], decoded(ops, q, step, 1), extended(ops, q, step)), wanted, 8)


@pytest.mark.parametrize("splits, window", [(1, None), (4, 13)])
def test_sinks(splits, window):
    """One far above the scores, one far below, and others among them; a split may see nothing."""
    ops, step, q = case([(75, 1), (33, 5), (0, 1)], 6, 2, 64, torch.float32)
    sinks = torch.tensor([50.0, -200.0, 0.0, 1.0, 3.0, -1.0])
    wanted = ops.attention(q, ops.layer(window, sinks=sinks), step)
    found = torch.where(
        torch.tensor([1, 0, 0, 0, 0, 0, 1]).bool()[:, None],
        decoded(ops, q, step, splits, window=window, sinks=sinks),
        extended(ops, q, step, window=window, sinks=sinks),
    )
    close(found, wanted, 8)
    assert float(wanted.view(7, 6, 64)[:, 0].abs().max()) < 1e-6, "all of it went to the sink"


def test_soft_cap():
    ops, step, q = case([(75, 1), (33, 5)], 2, 1, 64, torch.float32)
    cap = 1.5
    keys, values = ops.kv.keys[0].flatten(0, 1), ops.kv.values[0].flatten(0, 1)
    wanted = []
    for token, (position, table) in enumerate(zip(step.positions, step.block_tables[[0, 1, 1, 1, 1, 1]], strict=True)):
        at = torch.arange(int(position) + 1)
        slots = table[at // 4] * 4 + at % 4
        scores = cap * torch.tanh(q[token] @ keys[slots, 0].T * 0.3 / cap)
        wanted.append((scores.softmax(-1) @ values[slots, 0]).flatten())
    found = torch.where((torch.arange(6) == 0)[:, None], decoded(ops, q, step, 2, cap), extended(ops, q, step, cap))
    close(found, torch.stack(wanted), 8)


def test_tiles_cover_every_query_once():
    starts, contexts = np.array([0, 37, 38, 60], np.int32), np.array([37, 200, 90], np.int32)
    tiles = extend.query_tiles(starts, contexts, np.array([0, 2]), 16)
    assert sorted(map(tuple, tiles.tolist())) == [(0, 0), (0, 16), (0, 32), (2, 0), (2, 16)]
    assert tiles[0].tolist() == [2, 16], "the most keys first"


def test_splits_fill_the_gpu_and_no_more():
    assert decode.splits_for(1, 8, 100_000) == decode.MOST_SPLITS
    assert decode.splits_for(1, 8, 63) == 1
    assert decode.splits_for(8, 8, 100_000) == 4
    assert decode.splits_for(256, 8, 100_000) == 1
