"""Steps put to the attention kernels alone. Import it only where Triton is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from triton_setup import fill, reference_ops, shape, step_of

from bireme.backends.cuda.kernels import decode, extend
from bireme.backends.cuda.kv import LARGEST


def decoded(
    ops: Any,
    q: torch.Tensor,
    step: Any,
    splits: int,
    softcap: float = 0.0,
    window: int | None = None,
    sinks: Any = None,
) -> torch.Tensor:
    out = torch.full_like(q, 7)
    kv = ops.kv
    single = np.flatnonzero(np.diff(step.host.query_start) == 1).astype(np.int32)
    scales = (kv.key_scales[0], kv.value_scales[0]) if kv.quantized else None
    decode.decode_attention(
        q, kv.keys[0], kv.values[0], scales, torch.from_numpy(single), step.query_start, step.context_lens,
        step.block_tables, out, scale=0.3, window=window, softcap=softcap, sinks=sinks, splits=splits,
    )  # fmt: skip
    return out.flatten(1)


def extended(
    ops: Any, q: torch.Tensor, step: Any, softcap: float = 0.0, window: int | None = None, sinks: Any = None
) -> torch.Tensor:
    out = torch.full_like(q, 7)
    kv = ops.kv
    several = np.flatnonzero(np.diff(step.host.query_start) > 1)
    tokens = extend.tile_tokens(q, kv.keys[0].shape[2])
    tiles = extend.query_tiles(step.host.query_start, step.host.context_lens, several, tokens)
    scales = (kv.key_scales[0], kv.value_scales[0]) if kv.quantized else None
    extend.extend_attention(
        q, kv.keys[0], kv.values[0], scales, torch.from_numpy(tiles), step.query_start, step.context_lens,
        step.block_tables, out, scale=0.3, window=window, softcap=softcap, sinks=sinks,
    )  # fmt: skip
    return out.flatten(1)


def case(work: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, dtype: torch.dtype, block: int = 4) -> Any:
    ops, step = reference_ops(shape(heads, kv_heads, dim), dtype, block), step_of(work, block)
    fill(ops.kv, step)
    torch.manual_seed(1)
    return (
        ops,
        step,
        torch.randn(int(step.host.query_start[-1]), heads, dim).to(torch.float32 if dtype in LARGEST else dtype),
    )
