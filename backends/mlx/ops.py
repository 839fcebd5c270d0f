"""``Ops`` over MLX arrays: level 0, pure MLX, the same on a Mac and on Linux.

Arithmetic is in one dtype (float32 on Linux); where that is float16 the residual stream is kept in float32, because
some models' residuals leave float16's range.
"""

from __future__ import annotations

from ...models.config import ModelConfig
from ...models.decoder import Layer
from ...models.gelu import GELU_CUBE, GELU_SLOPE
from . import cpu
from .experts import Experts, route
from .kv import KVPool
from .library import Array, mx, on_metal
from .linear import DenseLinear, Embedding, Linear
from .metal.attention import paged_attention
from .metal.kernel import available
from .metal.norm_rope import norm_rope
from .rope import turn
from .step import Group, MlxStep, PagedGroup
from .work import QUEUED_ELEMENTS


class MlxOps:
    """The operations of ``backends.base.Ops`` over MLX arrays, with the KV pool they read and write."""

    def __init__(self, config: ModelConfig, kv: KVPool, dtype: Array) -> None:
        self.config = config
        self.kv = kv
        self.dtype = dtype
        self.residual = mx.float32 if dtype == mx.float16 else dtype
        metal = on_metal()  # elementwise chains become one kernel there; on a CPU that would need a compiler
        self._on_cpu = not metal and dtype == mx.float32
        self._turn = mx.compile(turn, shapeless=True) if metal else turn
        self._swiglu = cpu.swiglu if self._on_cpu else mx.compile(swiglu, shapeless=True) if metal else swiglu
        self._geglu = cpu.geglu if self._on_cpu else mx.compile(geglu, shapeless=True) if metal else geglu

    def embedding(self, weight: Embedding, token_ids: Array, scale: float = 1.0) -> Array:
        rows = weight(token_ids).astype(self.residual)
        return rows if scale == 1.0 else rows * scale  # MLX rounds a number to the dtype of the array beside it

    def linear(self, x: Array, weight: Linear) -> Array:
        return cpu.multiply(x, weight) if self._on_cpu and isinstance(weight, DenseLinear) else weight(x)

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        return mx.fast.rms_norm(x, weight, eps).astype(self.dtype)

    def add_rms_norm(
        self, x: Array, residual: Array, weight: Array, eps: float, own: Array | None = None
    ) -> tuple[Array, Array]:
        if own is not None:
            x = mx.fast.rms_norm(x.astype(self.residual), own, eps)
        total = (x + residual).astype(self.residual)
        return self.rms_norm(total, weight, eps), total

    def rope_and_store(self, qkv: Array, layer: Layer, step: MlxStep) -> Array:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = qkv.reshape(qkv.shape[0], -1, self.config.head_dim)
        v = qkv[:, heads + kv_heads :]
        rotation = step.rotations[layer.rope]
        if available():
            q, k = norm_rope(qkv, rotation, heads, layer.q_norm, layer.k_norm, layer.eps)
        elif layer.q_norm is not None and layer.k_norm is not None:
            q = self.rms_norm(qkv[:, :heads], layer.q_norm, layer.eps)
            k = self.rms_norm(qkv[:, heads : heads + kv_heads], layer.k_norm, layer.eps)
            q, k = rotation(q, self._turn), rotation(k, self._turn)
        else:
            both = rotation(qkv[:, : heads + kv_heads], self._turn)
            q, k = both[:, :heads], both[:, heads:]
        self.kv.store(layer.index, step.blocks, step.offsets, k, v)
        return q

    def attention(self, q: Array, layer: Layer, step: MlxStep) -> Array:
        groups = step.attention_groups(layer.window, self.config.num_heads, tiled=not self._on_cpu)
        outs, queued = [], 0
        for group in groups.parts:
            if isinstance(group, PagedGroup):
                pools = self.kv.keys[layer.index], self.kv.values[layer.index]
                scales = self.kv.scales(layer.index)
                outs.append(paged_attention(q[group.tokens], *pools, group.paged, layer.scale, scales=scales))
                continue
            outs.append(self._attend(q[group.tokens], layer, group))
            queued += group.keys.slots.size * 2 * self.config.num_kv_heads * self.config.head_dim
            if queued > QUEUED_ELEMENTS:  # a long prompt's tiles must not all be in memory at once
                step.settle()
                mx.eval(outs)
                queued = 0
        out = outs[0] if len(outs) == 1 else mx.concatenate(outs)
        return out if groups.order is None else out[groups.order]

    def _attend(self, q: Array, layer: Layer, group: Group) -> Array:
        """Attention of ``q`` [G * Q, H, hd] over the group's keys: [G * Q, H * hd]."""
        total, heads, dim = q.shape
        k, v = self.kv.gather(layer.index, group.keys)
        if self._on_cpu:
            if group.sequences == total:
                return cpu.attend_decodes(q, k, v, layer.scale, group.mask)
            return cpu.attend_chunk(q, k, v, layer.scale, layer.window)
        q = q.reshape(group.sequences, -1, heads, dim).swapaxes(1, 2)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=layer.scale, mask=group.mask)
        return out.swapaxes(1, 2).reshape(total, heads * dim)

    def swiglu(self, gate_up: Array) -> Array:
        gate, up = mx.split(gate_up, 2, axis=-1)
        return self._swiglu(gate, up)

    def geglu(self, gate_up: Array) -> Array:
        gate, up = mx.split(gate_up, 2, axis=-1)
        return self._geglu(gate, up)

    def moe(self, x: Array, router: Linear, experts: Experts, top_k: int, normalise: bool) -> Array:
        return experts(x, *route(self.linear(x, router), top_k, normalise), self.swiglu)

    def take_rows(self, x: Array, index: Array) -> Array:
        return x[index]


def swiglu(gate: Array, up: Array) -> Array:
    """``gate * sigmoid(gate) * up``"""
    return gate * mx.sigmoid(gate) * up


def geglu(gate: Array, up: Array) -> Array:
    """``gelu(gate) * up``, GELU by tanh, which is the logistic function of twice its argument."""
    wide = gate.astype(mx.float32)
    turned = wide * (2 * GELU_SLOPE) * (1 + GELU_CUBE * wide * wide)
    return (wide * mx.sigmoid(turned)).astype(gate.dtype) * up
