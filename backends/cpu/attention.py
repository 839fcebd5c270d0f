"""Causal attention over the paged KV pool, decodes and chunks of any length in one call.

A *row* is one query's head; the rows that share a key/value head lie side by side in the lanes of a tile. A step is cut
into items that threads take as they get free:

* chunks: one item per key/value head and ``CHUNK_TILES`` tiles of a sequence's rows, over all of its context;
* decodes (one query): one item per ``KEYS`` keys of the context and all heads, for one sequence, or for several whose
  block tables name the same blocks there (a shared prefix is read once for all of them). Whoever finishes a sequence's
  last item merges its parts (Flash-Decoding).

Every row goes through the context in the same tiles and merges them in the same order, whatever item it lies in. So a
token's result is the same bit for bit in a chunk of any size or as a decode, with and without neighbours, a shared
prefix or a prefix cache, and however many threads there are.

The pool may keep float32, float16 or int8 with scales (``elements``); all sums are float32. A decode alone reads keys
and values where they lie; for many rows a tile at a time is unpacked to float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .attention_chunk import chunk
from .attention_decode import decode
from .attention_plan import DECODE, Plan
from .attention_tiles import table
from .attention_workspace import workspace
from .simd import kernel, parallel_for
from .threads import pool as thread_pool


def attend(
    plan: Plan,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Attention of ``q`` [T, H, hd] over the step's contexts: [T, H * hd].

    Args:
        plan: built for this step, window and head counts.
        keys, values: [num_blocks, block_size, kv_heads, hd], this step's own already stored; float32,
            float16, or int8 with ``scales``. Contiguous; hd a multiple of eight.
        window: how many keys a query sees, itself included; None for all.
        scales: of keys and values, float32 [num_blocks, block_size, kv_heads].
    """
    count, heads, dim = q.shape
    out = torch.empty((count, heads * dim), dtype=torch.float32)
    key_scales, value_scales = (0, 0) if scales is None else (scales[0].data_ptr(), scales[1].data_ptr())
    pool = (keys.data_ptr(), values.data_ptr(), key_scales, value_scales, keys.element_size())
    shape = (scale, window or 0, keys.shape[1], heads, keys.shape[2], dim)
    functions, threads = table(str(keys.dtype).removeprefix("torch.")), thread_pool().threads
    _run(q.data_ptr(), out.data_ptr(), pool, functions, shape, plan.items, plan.step, threads)
    return out


@kernel()
def _run(q: int, out: int, pool: Any, functions: Any, shape: Any, items: Any, step: Any, threads: int) -> None:
    keys, values, key_scales, value_scales, nbytes = pool
    pointers = (q, out, (keys, values, key_scales, value_scales, nbytes, functions))
    scale, window, block_size, heads, kv_heads, dim = shape
    shape = (np.float32(scale), window, block_size, heads, kv_heads, dim)
    parallel_for(_work, len(items), 1, (pointers, shape, items, step, threads))


@kernel()
def _work(start: int, end: int, pointers: Any, shape: Any, items: Any, step: Any, threads: int) -> None:
    buffers = workspace(shape[5])
    for i in range(start, end):
        if items[i, 1] == DECODE:
            decode(items[i], items[min(i + threads, len(items) - 1)], i < threads, pointers, shape, step, buffers)
        else:
            chunk(items[i], pointers, shape, step, buffers)
