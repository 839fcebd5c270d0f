"""The paged KV pool: allocated once, written by slot, read by block."""

from __future__ import annotations

import torch

from ...models.config import ModelConfig

#: The largest magnitude of a code, by what a quantised pool keeps. -128 never occurs.
LARGEST = {torch.int8: 127, torch.float8_e4m3fn: 448}
#: What ``EngineConfig.kv_cache_dtype`` names; what "auto" keeps is up to the operations.
KEPT = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


class KVPool:
    """Keys and values of every layer, each ``[num_blocks, block_size, kv_heads, head_dim]``.

    With ``dtype`` int8 or e4m3 these are codes, and ``key_scales`` and ``value_scales`` hold a float32 per token and
    head, each ``[num_blocks, block_size, kv_heads]`` (otherwise they are empty): an element is code * scale.

    Fresh memory is not cleared (a lazily mapped pool costs nothing until it is used): what no sequence has written may
    hold anything, NaN included, so readers must ignore it by selection, never by multiplying with zero.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.quantized = dtype in LARGEST

        def pools(shape: tuple[int, ...], dtype: torch.dtype, layers: int = config.num_layers) -> list[torch.Tensor]:
            return [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]

        self.keys, self.values = pools(shape, dtype), pools(shape, dtype)
        scaled = config.num_layers if self.quantized else 0
        self.key_scales, self.value_scales = (pools(shape[:3], torch.float32, scaled) for _ in range(2))

    @property
    def arrays(self) -> list[torch.Tensor]:
        """Everything the pool holds."""
        return [*self.keys, *self.values, *self.key_scales, *self.value_scales]

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write ``keys`` and ``values`` [T, kv_heads, head_dim] at ``slots`` [T] int64, block * block_size + offset."""
        kept = self.keys[layer].dtype
        if self.quantized:
            keys, key_scales = quantise(keys, kept)
            values, value_scales = quantise(values, kept)
            self.key_scales[layer].flatten(0, 1).index_copy_(0, slots, key_scales)
            self.value_scales[layer].flatten(0, 1).index_copy_(0, slots, value_scales)
        _movable(self.keys[layer]).flatten(0, 1).index_copy_(0, slots, _movable(keys.to(kept)))
        _movable(self.values[layer]).flatten(0, 1).index_copy_(0, slots, _movable(values.to(kept)))

    def gather(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``blocks`` int64 [G, NB], in float32: both [G, NB * block_size, kv_heads, head_dim]."""
        found = _movable(self.keys[layer])[blocks], _movable(self.values[layer])[blocks]
        keys, values = (pool.view(self.keys[layer].dtype).float() for pool in found)
        if self.quantized:
            keys *= self.key_scales[layer][blocks][..., None]
            values *= self.value_scales[layer][blocks][..., None]
        return keys.flatten(1, 2), values.flatten(1, 2)

    def copy_blocks(self, copies: torch.Tensor) -> None:
        """Copy whole blocks, ``copies`` int64 [C, 2] (from, to); all are read before any is written."""
        source, target = copies.unbind(1)
        for pool in map(_movable, self.arrays):
            pool[target] = pool[source]


def _movable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or its bytes where torch has no indexing for its dtype."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def quantise(x: torch.Tensor, kept: torch.dtype = torch.int8) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int8 or e4m3 [..., D] and float32 scales [...] of ``x`` [..., D]: ``x`` is near codes * scales.

    The scale is the largest magnitude over the largest code, and NaN where a row has a NaN or an infinity, so that
    whoever reads the row learns of it.
    """
    x = x.float()
    scales = (x.abs().amax(-1) / LARGEST[kept]).clamp_min(torch.finfo(torch.float32).tiny)
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    codes = (x / scales[..., None]).nan_to_num(0.0)
    return (codes.round() if kept == torch.int8 else codes).to(kept), scales
