"""How much memory MLX may take, what a model will take of it, and the limits that MLX is told."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ...core.config import EngineConfig
from ...core.memory import MemoryPlan, buffer_bytes, kv_bytes_per_token, kv_element_bytes, plan_memory
from ...models.config import ModelConfig
from ...models.weight import Checkpoint
from ..host_memory import free_bytes, kv_allowance
from .library import mx, on_metal
from .ops import QUEUED_ELEMENTS
from .step import GROUP_ELEMENTS
from .weights import MlxLoader

logger = logging.getLogger(__name__)

#: Share of the working set Metal recommends that is planned for; the rest is other programs' and Metal's own.
WORKING_SET_SHARE = 0.85
#: Without a given size, a pool on a Linux CPU takes no more: MLX fills it at once, and it is for tests and comparisons.
LINUX_POOL = 1 << 30


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes this engine may take in all, and where the number comes from."""

    nbytes: int
    source: str


def budget(weight_bytes: int, buffers: int, info: dict[str, Any] | None = None) -> Budget:
    """On Metal a share of the recommended working set; on a CPU what is free, the pool being modest unless named.

    ``info``: ``mx.device_info()``'s, where Metal is.
    """
    if info is not None:
        recommended = int(info["max_recommended_working_set_size"])
        source = f"{WORKING_SET_SHARE:.0%} of the {_gib(recommended)} that Metal recommends"
        return Budget(int(recommended * WORKING_SET_SHARE), source)
    free = free_bytes()
    return Budget(min(free, weight_bytes + buffers + min(kv_allowance(), LINUX_POOL)), f"{_gib(free)} are free")


def work_bytes(config: ModelConfig, engine: EngineConfig, itemsize: int) -> int:
    """The most that a step holds beside weights and pool: activations, logits, and one group of the attention with
    those queued behind it."""
    attention = min(
        GROUP_ELEMENTS + QUEUED_ELEMENTS,
        # what a step of this size could gather at most: every token its own context
        engine.max_num_batched_tokens * 2 * config.num_kv_heads * config.head_dim * config.max_position,
    )
    element: float = itemsize
    if engine.kv_cache_dtype != "auto":  # gathered codes and scales are there while they are made values
        element += kv_element_bytes(engine.kv_cache_dtype, config.head_dim, itemsize)
    buffers = buffer_bytes(config, engine.max_num_batched_tokens, engine.max_num_seqs)
    return buffers + round(attention * element)


def plan(checkpoint: Checkpoint, engine: EngineConfig, loader: MlxLoader) -> MemoryPlan:
    """Split the budget, before anything is loaded.

    Raises:
        ValueError: the model does not fit; the message carries the numbers and what would help.
    """
    config, itemsize = checkpoint.config, int(loader.dtype.size)
    weights, buffers = loader.planned_bytes(), work_bytes(config, engine, itemsize)
    per_token = kv_bytes_per_token(config, kv_element_bytes(engine.kv_cache_dtype, config.head_dim, itemsize))
    have = budget(weights, buffers, mx.device_info() if on_metal() else None)
    context = min(engine.max_model_len or config.max_position, config.max_position)
    if weights + buffers + engine.block_size * per_token > have.nbytes:
        raise ValueError(
            f"{checkpoint.name} does not fit: its weights take {_gib(weights)} and a step's work memory "
            f"{_gib(buffers)}, and there are {_gib(have.nbytes)} ({have.source}); use a smaller quantisation of it, "
            "a smaller model, or fewer max_num_batched_tokens"
        )
    if engine.kv_cache_memory is not None and weights + buffers + engine.kv_cache_memory > have.nbytes:
        raise ValueError(
            f"kv_cache_memory is {_gib(engine.kv_cache_memory)}, and {_gib(have.nbytes - weights - buffers)} are left "
            f"of {_gib(have.nbytes)} ({have.source}) beside weights of {_gib(weights)} and work memory of "
            f"{_gib(buffers)}; use a smaller kv_cache_memory or a smaller quantisation"
        )
    found = plan_memory(
        weight_bytes=weights,
        buffer_bytes=buffers,
        kv_bytes_per_token=per_token,
        block_size=engine.block_size,
        available_bytes=have.nbytes,
        kv_cache_memory=engine.kv_cache_memory,
        max_tokens=engine.max_num_seqs * context,
    )
    logger.info(
        "memory: %s of weights, %s of work memory, %s of KV cache (%s tokens, %s conversations of 4,096) of %s, %s",
        *(_gib(size) for size in (found.weight_bytes, found.buffer_bytes, found.kv_bytes)),
        f"{found.tokens:,}",
        f"{found.conversations:,}",
        _gib(have.nbytes),
        have.source,
    )
    return found


def set_limits(found: MemoryPlan) -> None:
    """Tell MLX: freed buffers kept for reuse are work memory, the rest stays resident, and beyond it MLX waits."""
    mx.set_cache_limit(found.buffer_bytes)
    if on_metal():
        recommended = int(mx.device_info()["max_recommended_working_set_size"])
        mx.set_memory_limit(found.total_bytes)
        mx.set_wired_limit(min(found.total_bytes, recommended))


def release() -> None:
    """After a model's arrays are gone: give the memory back."""
    mx.clear_cache()
    if on_metal():
        mx.set_wired_limit(0)


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
