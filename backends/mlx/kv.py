"""The paged KV pool in MLX arrays: allocated once, written in place, read by slot.

MLX arrays are values. A write makes a new array, and reuses the old one's memory ("donation") only where nothing else
holds it: no second name, no view, no queued kernel that still has to read it. So each pool is held here alone, is
rebound by every write, and the runner evaluates a step's writes only when the step before has finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...models.config import ModelConfig
from .library import Array, mx, on_metal
from .metal.attention import Geometry
from .metal.kernel import available, dtype_name
from .metal.quantise import LEAST_SCALE, quantise_heads

#: The largest code; symmetric, so -128 never occurs.
LARGEST = 127.0


@dataclass(frozen=True, slots=True)
class Keys:
    """Which cached tokens a group of G sequences reads, L each.

    ``slots`` int32 [G, L]; ``rows`` int32 [G, KV, L], the same as rows of a pool seen as [slots * KV, hd].
    """

    slots: Array
    rows: Array


class KVPool:
    """Keys and values of every layer, each ``[num_blocks, block_size, kv_heads, head_dim]`` in ``dtype``.

    ``quantized``: these are int8 codes, and ``key_scales`` and ``value_scales`` hold a float32 per token and head, each
    ``[num_blocks, block_size, kv_heads]`` (otherwise they are empty): an element is code * scale.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: Array, quantized: bool = False
    ) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        self.quantized = quantized
        self.stored_dtype = "int8" if quantized else dtype_name(dtype)
        geometry = Geometry(config.num_heads, self.kv_heads, self.head_dim, block_size, dtype_name(dtype), quantized)
        self.paged = geometry if available() and geometry.fits else None  # how our kernel reads it where it lies
        self._decode = _decoder(dtype)
        layers, scaled = config.num_layers, config.num_layers if quantized else 0
        self.keys, self.values = (_zeros(shape, mx.int8 if quantized else dtype, layers) for _ in range(2))
        self.key_scales, self.value_scales = (_zeros(shape[:3], mx.float32, scaled) for _ in range(2))
        mx.eval(self.arrays)

    @property
    def arrays(self) -> list[Array]:
        """Every pool, to be evaluated with each step so that no chain of writes grows."""
        return [*self.keys, *self.values, *self.key_scales, *self.value_scales]

    def scales(self, layer: int) -> tuple[Array, ...]:
        """Those of the layer's keys and of its values, where the pool keeps codes."""
        return (self.key_scales[layer], self.value_scales[layer]) if self.quantized else ()

    def store(self, layer: int, blocks: Array, offsets: Array, keys: Array, values: Array) -> None:
        """Write ``keys`` and ``values`` [T, kv_heads, head_dim] at ``offsets`` [T] of ``blocks`` [T]."""
        if self.quantized:
            both = quantise_heads(keys, values) if available() else (quantise(keys), quantise(values))
            (keys, key_scales), (values, value_scales) = both
            self.key_scales[layer][blocks, offsets] = key_scales
            self.value_scales[layer][blocks, offsets] = value_scales
        self.keys[layer][blocks, offsets] = keys
        self.values[layer][blocks, offsets] = values

    def copy_blocks(self, source: Array, target: Array) -> None:
        """Copy whole blocks, ``source`` and ``target`` int32 [C]; all are read before any is written.

        Runs at once, and only while no step is under way: a read still queued would turn the write into a copy.
        """
        copied = [pool[source] for pool in self.arrays]
        mx.eval(copied)
        for pool, blocks in zip(self.arrays, copied, strict=True):
            pool[target] = blocks
        del copied
        mx.eval(self.arrays)

    def read(self, slots: Array) -> Keys:
        """``slots`` int32 [G, L], prepared once for all layers that read them."""
        heads = mx.arange(self.kv_heads, dtype=mx.int32)
        return Keys(slots, slots[:, None, :] * self.kv_heads + heads[None, :, None])

    def gather(self, layer: int, keys: Keys) -> tuple[Array, Array]:
        """Keys and values of ``keys`` in the pool's ``dtype``, both [G, KV, L, hd]: no more of the pool is decoded."""
        found = self._gather(self.keys[layer], keys), self._gather(self.values[layer], keys)
        if not self.quantized:
            return found
        scales = (self._gather(pool, keys) for pool in self.scales(layer))
        k, v = (self._decode(codes, scale[..., None]) for codes, scale in zip(found, scales, strict=True))
        return k, v

    def _gather(self, pool: Array, keys: Keys) -> Array:
        """[G, KV, L, hd]; of scales [G, KV, L]."""
        return mx.take(pool.reshape(-1, *pool.shape[3:]), keys.rows, axis=0)

    def free(self) -> None:
        """Let go of the memory."""
        for pools in (self.keys, self.values, self.key_scales, self.value_scales):
            pools.clear()


def quantise(x: Array) -> tuple[Array, Array]:
    """Codes int8 [..., D] and float32 scales [...] of ``x`` [..., D], the numbers that ``backends.cuda.kv`` defines."""
    x = x.astype(mx.float32)
    scales = mx.maximum(mx.abs(x).max(-1) / LARGEST, LEAST_SCALE)
    scales = mx.where(mx.isfinite(scales), scales, float("nan"))
    codes = mx.round(x / scales[..., None])
    return mx.where(mx.isnan(codes), 0.0, codes).astype(mx.int8), scales


def _decoder(dtype: Array) -> Callable[[Array, Array], Array]:
    """What makes codes int8 [..., D] and scales float32 [..., 1] values in ``dtype``, with nothing in between."""

    def decode(codes: Array, scales: Array) -> Array:
        return (codes.astype(mx.float32) * scales).astype(dtype)

    compiled: Callable[[Array, Array], Array] = mx.compile(decode, shapeless=True) if on_metal() else decode
    return compiled


def _zeros(shape: tuple[int, ...], dtype: Array, count: int) -> list[Array]:
    return [mx.zeros(shape, dtype) for _ in range(count)]
