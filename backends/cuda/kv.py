"""The paged KV pool: allocated once, written by slot, read by block."""

from __future__ import annotations

import torch

from ...models.config import ModelConfig


class KVPool:
    """Keys and values of every layer, each ``[num_blocks, block_size, kv_heads, head_dim]``.

    Fresh memory is not cleared (a lazily mapped pool costs nothing until it is used): what no sequence has written may
    hold anything, NaN included, so readers must ignore it by selection, never by multiplying with zero.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        layers = range(config.num_layers)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write ``keys`` and ``values`` [T, kv_heads, head_dim] at ``slots`` [T] int64, block * block_size + offset."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def copy_blocks(self, copies: torch.Tensor) -> None:
        """Copy whole blocks, ``copies`` int64 [C, 2] (from, to); all are read before any is written."""
        source, target = copies.unbind(1)
        for pool in (*self.keys, *self.values):
            pool[target] = pool[source]
