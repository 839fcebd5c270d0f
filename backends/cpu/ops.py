"""``Ops`` on a CPU: quantised linear layers, and kernels for what lies between them.

Float32 throughout. Shapes that the kernels don't take (widths that aren't multiples of eight) go to plain torch.
"""

from __future__ import annotations

from typing import Any

import torch

from ...models.config import ModelConfig
from ...models.decoder import Layer
from ..cuda.kv import KVPool
from ..cuda.ops import TorchOps
from ..cuda.rope import RopeTable
from ..cuda.step import TorchStep
from . import elementwise
from .attention import Plan, attend
from .simd import WIDTH


class CpuOps(TorchOps):
    """``TorchOps`` with kernels. Tensors it is given are contiguous float32, as its own results are."""

    def __init__(self, config: ModelConfig, kv: KVPool, rope: RopeTable) -> None:
        super().__init__(config, kv, rope)
        self._step: TorchStep | None = None
        self._plans: dict[int | None, Plan] = {}  # of the current step, by window

    def linear(self, x: torch.Tensor, weight: Any) -> torch.Tensor:
        """``weight`` is a ``QuantizedLinear``, or a ``DenseLinear`` on the exact road."""
        result: torch.Tensor = weight(x) if callable(weight) else super().linear(x, weight)
        return result

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(x)
        width = x.shape[-1]
        elementwise.rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // width, width, eps)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, total = torch.empty_like(x), torch.empty_like(x)
        elementwise.add_rms_norm(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), total.data_ptr(), *x.shape, eps
        )
        return out, total

    def rope_and_store(self, qkv: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        heads, dim = self.config.num_heads, self.config.head_dim
        q = torch.empty((len(qkv), heads, dim), dtype=torch.float32)
        elementwise.rope_and_store(
            qkv.data_ptr(),
            step.positions.data_ptr(),
            step.slots.data_ptr(),
            self.rope.cos.data_ptr(),
            self.rope.sin.data_ptr(),
            0 if layer.q_norm is None else layer.q_norm.data_ptr(),
            0 if layer.k_norm is None else layer.k_norm.data_ptr(),
            q.data_ptr(),
            self.kv.keys[layer.index].data_ptr(),
            self.kv.values[layer.index].data_ptr(),
            len(qkv),
            heads,
            self.config.num_kv_heads,
            dim,
            self.rope.cos.shape[1],
            layer.eps,
        )
        return q

    def attention(self, q: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        if self.config.head_dim % WIDTH:
            return super().attention(q, layer, step)
        keys, values = self.kv.keys[layer.index], self.kv.values[layer.index]
        return attend(self._plan(step, layer.window), q, keys, values, layer.scale, layer.window)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        if width % WIDTH:
            return super().swiglu(gate_up)
        out = torch.empty((rows, width), dtype=torch.float32)
        elementwise.swiglu(gate_up.data_ptr(), out.data_ptr(), rows, width)
        return out

    def _plan(self, step: TorchStep, window: int | None) -> Plan:
        """How ``step`` is cut: made by the first layer with ``window``, kept for the others."""
        if self._step is not step:
            self._step, self._plans = step, {}
        if window not in self._plans:
            config = self.config
            self._plans[window] = Plan.build(step.host, window, config.num_heads, config.num_kv_heads, config.head_dim)
        return self._plans[window]
