"""What a model will take of a GPU, how much of it is left for keys and values, and what to do if it does not fit."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from ...core.config import EngineConfig
from ...core.memory import MemoryPlan, buffer_bytes, kv_bytes_per_token, kv_element_bytes, plan_memory
from ...models.ggml_types import DENSE
from ...models.weight import Checkpoint
from ..host_memory import kv_allowance

logger = logging.getLogger(__name__)

#: What a captured graph keeps beside the memory that it shares with the others: its list of launches.
GRAPH_BYTES = 8 << 20
#: What the sampler's kernels hold beside each logit: the logit as it was adjusted, then its weight; the weights that a
#: bound is looked for in; and, for penalties, how often the token was put out.
SAMPLER_BYTES = 4 + 4 + 4
LEVERS = "use a smaller quantisation of it, a smaller model, or fewer max_num_batched_tokens or max_num_seqs"


@dataclass(frozen=True, slots=True)
class Budget:
    """A GPU before anything is loaded, in bytes, and the share of it that this engine may take."""

    total: int
    free: int
    fraction: float

    @property
    def nbytes(self) -> int:
        return int(self.free * self.fraction)

    @property
    def source(self) -> str:
        return f"{self.fraction:.0%} of the {gib(self.free)} that were free of {gib(self.total)}"


@dataclass(frozen=True, slots=True)
class Use:
    """What is taken before the KV pool, in bytes."""

    weights: int
    work: int  # the most a step holds beside weights and pool
    graphs: int = 0

    @property
    def nbytes(self) -> int:
        return self.weights + self.work + self.graphs


def planned_weights(checkpoint: Checkpoint, itemsize: int, quantized: bool) -> int:
    """Bytes that the weights will take, from the files' headers alone; ``quantized``: what is quantised stays so."""
    total = 0
    for name in checkpoint.names():
        stored = checkpoint.stored(name)
        elements = int(np.prod(stored.shape, dtype=np.int64))
        if checkpoint.config.wide_norms and name.endswith("norm.weight"):
            total += 4 * elements
            continue
        total += stored.nbytes if quantized and stored.kind not in DENSE else elements * itemsize
    return total


def expected_use(checkpoint: Checkpoint, engine: EngineConfig, itemsize: int, quantized: bool) -> Use:
    """Before loading: the weights by the headers, a step's work by arithmetic."""
    work = buffer_bytes(
        checkpoint.config, engine.max_num_batched_tokens, engine.max_num_seqs, itemsize, itemsize + SAMPLER_BYTES
    )
    return Use(planned_weights(checkpoint, itemsize, quantized), work)


def plan_gpu(
    checkpoint: Checkpoint, engine: EngineConfig, context: int, itemsize: int, budget: Budget, use: Use
) -> MemoryPlan:
    """Size the pool by what ``use`` leaves of ``budget``.

    Raises:
        ValueError: it does not fit; the message has the numbers and what would help.
    """
    config = checkpoint.config
    per_token = kv_bytes_per_token(config, kv_element_bytes(engine.kv_cache_dtype, config.head_dim, itemsize))
    left = budget.nbytes - use.nbytes
    if left < engine.block_size * per_token:
        raise ValueError(
            f"{checkpoint.name} does not fit: its weights take {gib(use.weights)} and a step's work memory "
            f"{gib(use.work + use.graphs)}, and there are {gib(budget.nbytes)} ({budget.source}); {LEVERS}, or raise "
            "gpu_memory_fraction"
        )
    if engine.kv_cache_memory is not None and engine.kv_cache_memory > left:
        raise ValueError(
            f"kv_cache_memory is {gib(engine.kv_cache_memory)}, and {gib(left)} are left of {gib(budget.nbytes)} "
            f"({budget.source}) beside weights of {gib(use.weights)} and work memory of {gib(use.work + use.graphs)}; "
            "use a smaller kv_cache_memory, a smaller quantisation of the model, or raise gpu_memory_fraction"
        )
    return plan_memory(
        weight_bytes=use.weights,
        buffer_bytes=use.work + use.graphs,
        kv_bytes_per_token=per_token,
        block_size=engine.block_size,
        available_bytes=budget.nbytes,
        kv_cache_memory=engine.kv_cache_memory,
        max_tokens=engine.max_num_seqs * context,
    )


def plan_host(
    checkpoint: Checkpoint, engine: EngineConfig, context: int, itemsize: int, weight_bytes: int
) -> MemoryPlan:
    """Size a pool in main memory, once the weights are in place. ``itemsize``: of what the cache keeps unquantised."""
    config = checkpoint.config
    buffers = buffer_bytes(config, engine.max_num_batched_tokens, engine.max_num_seqs)
    return plan_memory(
        weight_bytes=weight_bytes,
        buffer_bytes=buffers,
        kv_bytes_per_token=kv_bytes_per_token(
            config, kv_element_bytes(engine.kv_cache_dtype, config.head_dim, itemsize)
        ),
        block_size=engine.block_size,
        available_bytes=weight_bytes + buffers + kv_allowance(),
        kv_cache_memory=engine.kv_cache_memory,
        max_tokens=engine.max_num_seqs * context,
    )


def report(plan: MemoryPlan, use: Use, budget: Budget) -> None:
    """Say where the memory goes."""
    logger.info(
        "memory: %s of weights, %s of work memory, %s for graphs, %s of KV cache (%s tokens, %s conversations of "
        "4,096) of %s, %s",
        *(gib(size) for size in (use.weights, use.work, use.graphs, plan.kv_bytes)),
        f"{plan.tokens:,}",
        f"{plan.conversations:,}",
        gib(budget.nbytes),
        budget.source,
    )


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
