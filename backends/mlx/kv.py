"""The paged KV pool in MLX arrays: allocated once, written in place, read by slot.

MLX arrays are values. A write makes a new array, and reuses the old one's memory ("donation") only where nothing else
holds it: no second name, no view, no queued kernel that still has to read it. So each pool is held here alone, is
rebound by every write, and the runner evaluates a step's writes only when the step before has finished.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.config import ModelConfig
from .library import Array, mx, on_metal
from .metal.attention import Geometry
from .metal.kernel import available, dtype_name


@dataclass(frozen=True, slots=True)
class Keys:
    """Which cached tokens a group of G sequences reads, L each.

    ``slots`` int32 [G, L]; ``rows`` int32 [G, KV, L], the same as rows of a pool seen as [slots * KV, hd], on Metal.
    """

    slots: Array
    rows: Array | None


class KVPool:
    """Keys and values of every layer, each ``[num_blocks, block_size, kv_heads, head_dim]``."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: Array) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        geometry = Geometry(config.num_heads, self.kv_heads, self.head_dim, block_size, dtype_name(dtype))
        self.paged = geometry if available() and geometry.fits else None  # how our kernel reads it where it lies
        self.by_head = on_metal()  # how ``gather`` reads: the fewest bytes moved there, the fastest copies on a CPU
        self.keys = [mx.zeros(shape, dtype) for _ in range(config.num_layers)]
        self.values = [mx.zeros(shape, dtype) for _ in range(config.num_layers)]
        mx.eval(self.keys, self.values)

    @property
    def arrays(self) -> list[Array]:
        """Every pool, to be evaluated with each step so that no chain of writes grows."""
        return [*self.keys, *self.values]

    def store(self, layer: int, blocks: Array, offsets: Array, keys: Array, values: Array) -> None:
        """Write ``keys`` and ``values`` [T, kv_heads, head_dim] at ``offsets`` [T] of ``blocks`` [T]."""
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
        if not self.by_head:
            return Keys(slots, None)
        heads = mx.arange(self.kv_heads, dtype=mx.int32)
        return Keys(slots, slots[:, None, :] * self.kv_heads + heads[None, :, None])

    def gather(self, layer: int, keys: Keys) -> tuple[Array, Array]:
        """Keys and values of ``keys``, both [G, KV, L, hd]."""
        return self._gather(self.keys[layer], keys), self._gather(self.values[layer], keys)

    def _gather(self, pool: Array, keys: Keys) -> Array:
        if keys.rows is not None:
            return mx.take(pool.reshape(-1, self.head_dim), keys.rows, axis=0)
        tokens = mx.take(pool.reshape(-1, self.kv_heads * self.head_dim), keys.slots, axis=0)
        tokens = tokens.reshape(*keys.slots.shape, self.kv_heads, self.head_dim)
        return mx.contiguous(tokens.swapaxes(1, 2))

    def free(self) -> None:
        """Let go of the memory."""
        self.keys.clear()
        self.values.clear()
