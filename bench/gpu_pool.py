"""What the GPU benchmark's kernels run over: a step, its queries, and a pool of random keys and values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..backends.cuda.buffers import Sender
from ..backends.cuda.device import device_for
from ..backends.cuda.kv import KVPool
from ..backends.cuda.ops import TorchOps
from ..backends.cuda.rope import RopeTable
from ..backends.cuda.step import TorchStep
from ..core.step import StepBatch
from ..models.config import ModelConfig
from ..models.decoder import Layer
from .gpu_models import MODELS
from .gpu_setting import Setting
from .gpu_time import COLD_BYTES, Work

SHAPE = "Llama-3.1-8B"
BLOCK = 16
#: The quantised types whose products are looked at.
TYPES = ("Q4_K", "Q6_K")


@dataclass(frozen=True, slots=True)
class Pool:
    """Ops of both kinds over one pool of random keys and values, and a step of ``sequences`` over it."""

    ours: TorchOps
    plain: TorchOps
    step: TorchStep
    layers: list[Layer]
    q: torch.Tensor
    qkv: torch.Tensor

    @classmethod
    def make(cls, setting: Setting, sequences: int, new: int, context: int, cold: bool = False) -> Pool:
        """``cold``: so many layers that going round them finds none in a cache."""
        config, device, dtype = shape(setting), setting.device, setting.dtype
        blocks = -(-context // BLOCK)
        per_layer = 2 * sequences * context * config.num_kv_heads * config.head_dim * dtype.itemsize
        count = 1 if not cold or setting.tiny else max(1, min(config.num_layers, -(-COLD_BYTES // per_layer)))
        config = dataclasses.replace(config, num_layers=count)
        kv = KVPool(config, sequences * blocks, BLOCK, dtype, device)
        for array in kv.arrays:
            array.normal_()
        rope = RopeTable.build(config.rope, config.head_dim, context, device)
        ours, plain = setting.ops()(config, kv, rope), TorchOps(config, kv, rope)
        batch = make_step(sequences, new, context)
        extra = ours.host_arrays(batch, dtype, device)
        last = torch.zeros(sequences, dtype=torch.int64, device=device)
        step = TorchStep.build(batch, last, BLOCK, Sender(device_for(device)).send, extra)
        heads = config.num_heads + 2 * config.num_kv_heads
        q = normal(setting, sequences * new, config.num_heads, config.head_dim)
        qkv = normal(setting, sequences * new, heads * config.head_dim)
        return cls(ours, plain, step, [layer_of(config, n) for n in range(count)], q, qkv)

    def attention(self) -> list[Work]:
        def run(layer: Layer) -> Work:
            return lambda: self.ours.attention(self.q, layer, self.step)

        return [run(layer) for layer in self.layers]


def shape(setting: Setting) -> ModelConfig:
    return MODELS[setting.model(SHAPE)]


def layer_of(config: ModelConfig, index: int, **given: Any) -> Layer:
    """What attention must know of a layer; it has no weights."""
    required = {f.name: None for f in dataclasses.fields(Layer) if f.default is dataclasses.MISSING}
    known = {"index": index, "scale": config.head_dim**-0.5, "eps": config.rms_norm_eps}
    return Layer(**{**required, **known, **given})


def make_step(sequences: int, new: int, context: int) -> StepBatch:
    """``new`` tokens at the end of each of ``sequences`` contexts, whose blocks lie scattered over the pool."""
    blocks = -(-context // BLOCK)
    tables = np.random.default_rng(0).permutation(sequences * blocks).reshape(sequences, blocks)
    positions = np.arange(context - new, context)
    slots = tables[:, positions // BLOCK] * BLOCK + positions % BLOCK
    return StepBatch(
        step_id=0,
        token_ids=np.zeros(sequences * new, np.int32),
        positions=np.tile(positions, sequences).astype(np.int32),
        slots=slots.reshape(-1).astype(np.int64),
        query_start=(np.arange(sequences + 1) * new).astype(np.int32),
        context_lens=np.full(sequences, context, np.int32),
        block_tables=tables.astype(np.int32),
        rows=np.arange(sequences, dtype=np.int32),
        samples=np.ones(sequences, np.bool_),
        copies=np.zeros((0, 2), np.int32),
    )


def normal(setting: Setting, *size: int) -> torch.Tensor:
    """Random numbers of the setting's dtype, on its device."""
    return torch.randn(size, dtype=setting.dtype, device=setting.device)
