"""``Ops`` on a CPU: kernels for what lies between the linear layers, which are handles of their own.

Float32 throughout, but for what is kept of keys and values: float16, float32 or int8. Shapes that the kernels don't
take (widths that aren't multiples of eight) go to plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from ...core.step import StepBatch
from ...models.config import ModelConfig
from ...models.decoder import GatedMlp, Layer
from ..cuda.experts import Experts
from ..cuda.kv import KVPool
from ..cuda.ops import TorchOps
from ..cuda.rope import RopeTable
from ..cuda.step import TorchStep
from ..cuda.weights import DenseLinear, Linear
from . import elementwise, routing
from .attention import attend
from .attention_plan import Plan
from .kv_store import rope_and_store
from .simd import WIDTH


@cache
def warm_up() -> None:
    """Load every kernel (the first time on a machine: compile them), so that no request has to wait for it."""
    config = ModelConfig("llama", 1, 8, 8, 1, 1, 1, 8, 4, 1e-5)
    cpu = torch.device("cpu")
    kv, rope = KVPool(config, 1, 4, CpuOps.kept, cpu), RopeTable.build(config.rope, 8, 4, cpu)
    ops, x = CpuOps(config, kv, rope, warm=False), torch.ones(1, 8)
    layer = Layer(0, None, 1.0, 1e-5, x, None, None, None, None, x, GatedMlp(None, None))
    zero = np.zeros(1, np.int32)
    batch = StepBatch(
        step_id=0,
        token_ids=zero,
        positions=zero,
        slots=zero.astype(np.int64),
        query_start=np.array([0, 1], np.int32),
        context_lens=np.array([1], np.int32),
        block_tables=zero[None],
        rows=zero,
        samples=np.ones(1, np.bool_),
        copies=np.empty((0, 2), np.int32),
    )
    step = TorchStep.build(batch, torch.zeros(1, dtype=torch.int64), 4)
    ops.attention(ops.rope_and_store(torch.ones(1, 24), layer, step), layer, step)
    normed = torch.cat(ops.add_rms_norm(x, ops.rms_norm(x, x[0], 1e-5), x[0], 1e-5), dim=1)
    ops.swiglu(normed)
    ops.geglu(normed)


class CpuOps(TorchOps):
    """``TorchOps`` with kernels. Tensors it is given are contiguous float32, as its own results are."""

    kept = torch.float16

    def __init__(self, config: ModelConfig, kv: KVPool, *ropes: RopeTable, warm: bool = True) -> None:
        super().__init__(config, kv, *ropes)
        if warm:
            warm_up()
        self._step: TorchStep | None = None
        self._plans: dict[int | None, Plan] = {}  # of the current step, by window

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(x)
        width = x.shape[-1]
        elementwise.rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // width, width, eps)
        return out

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        own: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x if own is None else self.rms_norm(x, own, eps)
        out, total = torch.empty_like(x), torch.empty_like(x)
        elementwise.add_rms_norm(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), total.data_ptr(), *x.shape, eps
        )
        return out, total

    def rope_and_store(self, qkv: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        heads, dim = self.config.num_heads, self.config.head_dim
        keys, values, scales = self.kv.keys[layer.index], self.kv.values[layer.index], self._scales(layer)
        if keys.dtype != torch.float32 and dim % WIDTH:
            return super().rope_and_store(qkv, layer, step)
        rope = self.ropes[layer.rope]
        q = torch.empty((len(qkv), heads, dim), dtype=torch.float32)
        rope_and_store(
            qkv.data_ptr(),
            step.positions.data_ptr(),
            step.slots.data_ptr(),
            rope.cos.data_ptr(),
            rope.sin.data_ptr(),
            0 if layer.q_norm is None else layer.q_norm.data_ptr(),
            0 if layer.k_norm is None else layer.k_norm.data_ptr(),
            q.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            0 if scales is None else scales[0].data_ptr(),
            0 if scales is None else scales[1].data_ptr(),
            keys.element_size(),
            len(qkv),
            heads,
            self.config.num_kv_heads,
            dim,
            rope.cos.shape[1],
            layer.eps,
        )
        return q

    def attention(self, q: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        if self.config.head_dim % WIDTH or layer.sinks is not None:
            return super().attention(q, layer, step)
        keys, values = self.kv.keys[layer.index], self.kv.values[layer.index]
        plan = self._plan(step, layer.window)
        return attend(plan, q, keys, values, layer.scale, layer.window, self._scales(layer))

    def _scales(self, layer: Layer) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of the layer's keys and values, where the pool keeps codes."""
        if not self.kv.quantized:
            return None
        return self.kv.key_scales[layer.index], self.kv.value_scales[layer.index]

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        if gate_up.shape[1] // 2 % WIDTH:
            return super().swiglu(gate_up)
        return _gated(elementwise.swiglu, gate_up)

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        if gate_up.shape[1] // 2 % WIDTH:
            return super().geglu(gate_up)
        return _gated(elementwise.geglu, gate_up)

    def moe(self, x: torch.Tensor, router: Linear, experts: Experts, top_k: int, normalise: bool) -> torch.Tensor:
        if not isinstance(router, DenseLinear) or x.shape[1] % WIDTH:
            return super().moe(x, router, experts, top_k, normalise)
        (rows, width), count = x.shape, len(router.weight)
        shares, chosen = torch.empty((rows, top_k)), torch.empty((rows, top_k), dtype=torch.int64)
        places = shares.data_ptr(), chosen.data_ptr()
        routing.route(x.data_ptr(), router.weight.data_ptr(), *places, rows, width, count, top_k, normalise)
        return experts(x, shares, chosen, self.swiglu)

    def _plan(self, step: TorchStep, window: int | None) -> Plan:
        """How ``step`` is cut: made by the first layer with ``window``, kept for the others."""
        if self._step is not step:
            self._step, self._plans = step, {}
        if window not in self._plans:
            config = self.config
            self._plans[window] = Plan.build(
                step.host, window, config.num_heads, config.num_kv_heads, config.head_dim, self.kv.keys[0].shape[1]
            )
        return self._plans[window]


def _gated(kernel: Callable[[int, int, int, int], None], gate_up: torch.Tensor) -> torch.Tensor:
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=torch.float32)
    kernel(gate_up.data_ptr(), out.data_ptr(), rows, width)
    return out
