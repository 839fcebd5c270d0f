"""``Ops`` on an NVIDIA GPU: Triton kernels for all that lies between the linear layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.step import StepBatch
from ...models.decoder import Layer
from .experts import Experts
from .kernels import activation, decode, extend, norm, rope
from .kernels.experts import route
from .ops import TorchOps
from .step import TorchStep
from .weights import Linear


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one step's attention is launched; made once, used by every layer."""

    singles: torch.Tensor | None  # int32 [N], the sequences with one query
    splits: int
    tiles: torch.Tensor | None  # int32 [M, 2], of the sequences with several


class TritonOps(TorchOps):
    """``TorchOps`` with kernels. Tensors it is given are contiguous, as its own results are."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        own: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x if own is None else self.rms_norm(x, own, eps)
        return norm.add_rms_norm(x, residual, weight, eps)

    def rope_and_store(self, qkv: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        table = self.ropes[layer.rope]
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        return rope.rope_and_store(
            qkv,
            norms,
            layer.eps,
            (table.cos, table.sin),
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
                q, *pools, plan.singles, *where, out,
                scale=layer.scale, window=layer.window, sinks=layer.sinks, splits=plan.splits,
            )  # fmt: skip
        if plan.tiles is not None:
            extend.extend_attention(
                q, *pools, plan.tiles, *where, out, scale=layer.scale, window=layer.window, sinks=layer.sinks
            )
        return out.flatten(1)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return activation.swiglu(gate_up)

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return activation.geglu(gate_up, "tanh")

    def moe(self, x: torch.Tensor, router: Linear, experts: Experts, top_k: int, normalise: bool) -> torch.Tensor:
        return experts(x, *route(router(x), top_k, normalise), self.swiglu)

    def _scales(self, layer: Layer) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not self.kv.quantized:
            return None
        return self.kv.key_scales[layer.index], self.kv.value_scales[layer.index]

    def host_arrays(self, batch: StepBatch, dtype: torch.dtype, device: torch.device) -> dict[str, NDArray[np.int32]]:
        lengths, config = np.diff(batch.query_start), self.config
        like = torch.empty((0, config.num_heads, config.head_dim), dtype=dtype, device=device)
        tokens = extend.tile_tokens(like, config.num_kv_heads)
        return {
            "singles": np.flatnonzero(lengths == 1).astype(np.int32),
            "tiles": extend.query_tiles(batch.query_start, batch.context_lens, np.flatnonzero(lengths > 1), tokens),
        }

    def _planned(self, q: torch.Tensor, step: TorchStep) -> _Plan:
        """Kept with the step, so that what a captured launch reads lives as long as its graph."""
        if "attention" not in step.memo:
            arrays = step.extra
            if "singles" not in arrays:
                made = self.host_arrays(step.host, q.dtype, q.device)
                arrays = {name: torch.from_numpy(made[name]).to(q.device) for name in ("singles", "tiles")}
            singles, tiles, splits = arrays["singles"], arrays["tiles"], 1
            if len(singles):
                longest = int(step.host.context_lens[np.diff(step.host.query_start) == 1].max())
                splits = decode.splits_for(len(singles), self.config.num_kv_heads, longest)
            step.memo["attention"] = _Plan(singles if len(singles) else None, splits, tiles if len(tiles) else None)
        plan: _Plan = step.memo["attention"]
        return plan
