"""``Ops`` in plain torch: the reference that every kernel is tested against.

Exact float32 on a CPU; on a GPU it runs in the weights' dtype with norms, rotations and softmax in float32.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ...core.step import StepBatch
from ...models.config import ModelConfig
from ...models.decoder import Layer
from .experts import Experts, route
from .kv import KVPool
from .rope import RopeTable, rotate
from .step import Group, TorchStep
from .weights import Embedding, Linear


class TorchOps:
    """The operations of ``backends.base.Ops`` over torch tensors, with the KV pool they read and write."""

    #: What a KV cache of kind "auto" keeps for these operations; None: the dtype of the arithmetic.
    kept: ClassVar[torch.dtype | None] = None

    def __init__(self, config: ModelConfig, kv: KVPool, *ropes: RopeTable) -> None:
        """``ropes``: the tables of ``config.ropes``."""
        self.config = config
        self.kv = kv
        self.ropes = ropes

    def host_arrays(self, batch: StepBatch, dtype: torch.dtype, device: torch.device) -> dict[str, NDArray[np.int32]]:
        """What attention needs of a step beside its own arrays, made on the host to be sent with them: it comes back as
        the step's ``extra``. ``dtype`` is that of the activations."""
        return {}

    def embedding(self, weight: Embedding, token_ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        rows = weight(token_ids)
        return rows if scale == 1.0 else rows * _rounded(scale, rows.dtype)

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        return weight(x)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * weight.float()).to(x.dtype)

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        own: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x if own is None else self.rms_norm(x, own, eps)
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rope_and_store(self, qkv: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = qkv.view(len(qkv), -1, self.config.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self.rms_norm(q, layer.q_norm, layer.eps), self.rms_norm(k, layer.k_norm, layer.eps)
        rope = self.ropes[layer.rope]
        cos, sin = rope.cos[step.positions], rope.sin[step.positions]
        self.kv.store(layer.index, step.slots, rotate(k, cos, sin), v)
        return rotate(q, cos, sin)

    def attention(self, q: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        out = torch.empty_like(q)
        gathered = 2 * self.config.num_kv_heads * self.config.head_dim
        for group in step.attention_groups(layer.window, gathered, self.config.num_heads):
            out[group.tokens] = self._attend(q[group.tokens], layer, group)
        return out.flatten(1)

    def _attend(self, q: torch.Tensor, layer: Layer, group: Group) -> torch.Tensor:
        """Attention of ``q`` [G * Q, H, hd] over the group's blocks, in float32: [G * Q, H, hd]."""
        (sequences, queries, _), kv_heads = group.mask.shape, self.config.num_kv_heads
        k, v = self.kv.gather(layer.index, group.blocks)  # [G, L, KV, hd]
        seen = group.mask.any(1)[:, :, None, None]
        v = torch.where(seen, v, 0.0)  # what nobody may see can be NaN, and 0 * NaN is NaN
        grouped = q.float().view(sequences, queries, kv_heads, -1, q.shape[-1]) * layer.scale  # [G, Q, KV, R, hd]
        scores = torch.einsum("gqkrd,glkd->gkrql", grouped, k)
        scores = scores.masked_fill(~group.mask[:, None, None], float("-inf"))
        if layer.sinks is None:
            shares = scores.softmax(-1)
        else:  # as a last key whose value is zero
            sinks = layer.sinks.float().view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            shares = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        mixed = torch.einsum("gkrql,glkd->gqkrd", shares, v)
        return mixed.reshape(q.shape).to(q.dtype)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up

    def moe(self, x: torch.Tensor, router: Linear, experts: Experts, top_k: int, normalise: bool) -> torch.Tensor:
        return experts(x, *route(router(x), top_k, normalise), self.swiglu)

    def take_rows(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index]


@cache
def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=dtype))
