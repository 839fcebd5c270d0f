"""Small steps, pools and the reference operations for the kernels' tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import torch

from bireme.backends.cuda.kv import LARGEST, KVPool
from bireme.backends.cuda.ops import TorchOps
from bireme.backends.cuda.rope import RopeTable
from bireme.backends.cuda.step import TorchStep
from bireme.core.step import StepBatch
from bireme.models.config import ModelConfig, RopeConfig
from bireme.models.ggml_types import BY_NAME
from bireme.models.weight import Weight

CPU = torch.device("cpu")
BLOCK = 4
BLOCKS = 64
#: Where a block's float16 numbers lie, if not only in its first two bytes.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "MXFP4": ()}


def shape(heads: int = 2, kv_heads: int = 1, dim: int = 64, rotary: int | None = None) -> ModelConfig:
    """A model of one layer."""
    rope = RopeConfig(rotary_dim=rotary)
    return ModelConfig("llama", 32, heads * dim, 16, 1, heads, kv_heads, dim, 256, 1e-5, rope)


def pool(config: ModelConfig, dtype: torch.dtype = torch.float32, block: int = BLOCK) -> KVPool:
    return KVPool(config, BLOCKS * BLOCK // block, block, dtype, CPU)


class Reference(TorchOps):
    """The reference with its own pool; ``layer`` makes what it must know of one."""

    def layer(self, window: int | None = None, norms: Any = None, scale: float = 0.3, sinks: Any = None) -> Any:
        q_norm, k_norm = norms or (None, None)
        return SimpleNamespace(
            index=0, window=window, scale=scale, eps=1e-5, q_norm=q_norm, k_norm=k_norm, sinks=sinks, rope=0
        )


def reference_ops(
    config: ModelConfig | None = None, dtype: torch.dtype = torch.float32, block: int = BLOCK
) -> Reference:
    config = config or shape()
    rope = RopeTable.build(config.rope, config.head_dim, 128, CPU)
    return Reference(config, pool(config, dtype, block), rope)


def step_of(work: list[tuple[int, int]], block: int = BLOCK, seed: int = 0) -> TorchStep:
    """Sequences of (computed, new) tokens, their blocks scattered over the pool; tables end in -1."""
    rng = np.random.default_rng(seed)
    counts = [-(-(done + new) // block) for done, new in work]
    taken = np.split(rng.permutation(BLOCKS * BLOCK // block)[: sum(counts)], np.cumsum(counts)[:-1])
    tables = np.full((len(work), max(counts)), -1, np.int32)
    for row, blocks in zip(tables, taken, strict=True):
        row[: len(blocks)] = blocks
    spans = [np.arange(done, done + new) for done, new in work]
    slots = [row[at // block] * block + at % block for row, at in zip(tables, spans, strict=True)]
    total = sum(new for _, new in work)
    batch = StepBatch(
        step_id=0,
        token_ids=np.zeros(total, np.int32),
        positions=np.concatenate(spans).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int64),
        query_start=np.cumsum([0] + [new for _, new in work]).astype(np.int32),
        context_lens=np.array([done + new for done, new in work], np.int32),
        block_tables=tables,
        rows=np.arange(len(work), dtype=np.int32),
        samples=np.ones(len(work), bool),
        copies=np.zeros((0, 2), np.int32),
    )
    return TorchStep.build(batch, torch.zeros(len(work), dtype=torch.int64), block)


def fill(kv: KVPool, step: TorchStep, seed: int = 0) -> None:
    """Random keys and values for every token of the step's contexts; NaN wherever no sequence has written."""
    torch.manual_seed(seed)
    for array in kv.arrays:
        array.fill_(float("nan") if array.is_floating_point() else 77)
    wide = kv.keys[0].dtype not in LARGEST
    for length, table in zip(step.host.context_lens, step.host.block_tables, strict=True):
        at = np.arange(length)
        slots = torch.from_numpy(
            (table[at // step.block_size] * step.block_size + at % step.block_size).astype(np.int64)
        )
        kept = kv.keys[0].dtype if wide else torch.float32
        keys, values = torch.randn(2, int(length), *kv.keys[0].shape[2:]).to(kept)
        kv.store(0, slots, keys, values)


def block_weight(kind: str, rows: int, columns: int) -> tuple[Weight, np.ndarray]:
    """Random bits in every field, but for the float16 scales; with what gguf-py makes of them."""
    rng = np.random.default_rng(rows)
    raw = rng.integers(0, 256, (rows * columns // BY_NAME[kind].block, BY_NAME[kind].size), dtype=np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = rng.integers(0, 140, len(raw))  # powers of two, the least of them too
    for at in HALVES.get(kind, (0,)):
        raw[:, at : at + 2] = rng.standard_normal((len(raw), 1)).astype("<f2").view(np.uint8)
    data = raw.reshape(rows, -1)
    return Weight("w", (rows, columns), kind, data), gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])


def close(found: torch.Tensor, wanted: torch.Tensor, scale: float = 1.0) -> None:
    """Equal within a few roundings of their dtype, relative to the largest wanted value."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    step = torch.finfo(wanted.dtype).eps
    bound = 4 * scale * step * max(1.0, float(wanted.float().abs().max()))
    assert torch.allclose(found.float(), wanted.float(), rtol=4 * step, atol=bound), float(
        (found.float() - wanted.float()).abs().max()
    )


def check_product(
    found: torch.Tensor, x: torch.Tensor, values: np.ndarray, bias: torch.Tensor | None, roundings: int = 1
) -> None:
    """``found`` is ``x`` times ``values`` transposed, within so many roundings of the sums' size."""
    wanted = x.double().numpy() @ values.astype(np.float64).T
    if bias is not None:
        wanted += bias.double().numpy()
    size = np.abs(x.double().numpy()) @ np.abs(values.astype(np.float64)).T
    step = torch.finfo(found.dtype).eps
    assert (np.abs(found.double().numpy() - wanted) <= roundings * step * (size + np.abs(wanted))).all()
