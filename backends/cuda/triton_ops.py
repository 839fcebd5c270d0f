"""``Ops`` on an NVIDIA GPU: Triton kernels for all that lies between the linear layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...models.config import ModelConfig
from ...models.decoder import Layer
from .kernels import activation, decode, extend, norm, rope
from .kv import KVPool
from .ops import TorchOps
from .rope import RopeTable
from .step import TorchStep


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one step's attention is launched; made once, used by every layer."""

    singles: torch.Tensor | None  # int32 [N], the sequences with one query
    splits: int
    tiles: torch.Tensor | None  # int32 [M, 2], of the sequences with several


class TritonOps(TorchOps):
    """``TorchOps`` with kernels. Tensors it is given are contiguous, as its own results are."""

    def __init__(self, config: ModelConfig, kv: KVPool, rope: RopeTable) -> None:
        super().__init__(config, kv, rope)
        self._step: TorchStep | None = None
        self._plan = _Plan(None, 1, None)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return norm.add_rms_norm(x, residual, weight, eps)

    def rope_and_store(self, qkv: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        return rope.rope_and_store(
            qkv,
            norms,
            layer.eps,
            (self.rope.cos, self.rope.sin),
            step.positions,
            step.slots,
            self.kv.keys[layer.index],
            self.kv.values[layer.index],
            self.config.num_heads,
            self._scales(layer),
        )

    def attention(self, q: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        plan, out = self._planned(q, step), torch.empty_like(q)
        pools = self.kv.keys[layer.index], self.kv.values[layer.index], self._scales(layer)
        where = step.query_start, step.context_lens, step.block_tables
        if plan.singles is not None:
            decode.decode_attention(
                q, *pools, plan.singles, *where, out, scale=layer.scale, window=layer.window, splits=plan.splits
            )
        if plan.tiles is not None:
            extend.extend_attention(q, *pools, plan.tiles, *where, out, scale=layer.scale, window=layer.window)
        return out.flatten(1)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return activation.swiglu(gate_up)

    def _scales(self, layer: Layer) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not self.kv.quantized:
            return None
        return self.kv.key_scales[layer.index], self.kv.value_scales[layer.index]

    def _planned(self, q: torch.Tensor, step: TorchStep) -> _Plan:
        if self._step is step:
            return self._plan
        batch, kv_heads = step.host, self.config.num_kv_heads
        lengths = np.diff(batch.query_start)
        singles, several = np.flatnonzero(lengths == 1), np.flatnonzero(lengths > 1)
        splits, on_device, tiles = 1, None, None
        if len(singles):
            splits = decode.splits_for(len(singles), kv_heads, int(batch.context_lens[singles].max()))
            on_device = torch.from_numpy(singles.astype(np.int32)).to(q.device, non_blocking=True)
        if len(several):
            cut = extend.query_tiles(batch.query_start, batch.context_lens, several, extend.tile_tokens(q, kv_heads))
            tiles = torch.from_numpy(cut).to(q.device, non_blocking=True)
        self._step, self._plan = step, _Plan(on_device, splits, tiles)
        return self._plan
