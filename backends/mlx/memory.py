"""How much memory MLX may take, what a model will take of it, and the limits that MLX is told."""

from __future__ import annotations

import logging

from ...core.config import EngineConfig
from ...core.memory import MemoryPlan, kv_bytes_per_token, kv_element_bytes, plan_memory
from ...models.weight import Checkpoint
from ..host_memory import free_bytes, kv_allowance
from .library import mx, on_metal
from .weights import MlxLoader
from .work import WORKING_SET_SHARE, longest_context, work_bytes

logger = logging.getLogger(__name__)

#: Without a given size, a pool on a Linux CPU takes no more: MLX fills it at once, and it is for tests and comparisons.
LINUX_POOL = 1 << 30
#: What is reserved for a step, as a multiple of what the largest took when it was measured: how far MLX runs ahead of
#: the device, and so how much it holds, differs a little from one run of a step to the next.
MEASURED_MARGIN = 1.25


class Planner:
    """Splits the memory that there was when it was made: before loading by the ``derived`` work memory of a step, and
    again by what the largest step was measured to take."""

    def __init__(self, checkpoint: Checkpoint, engine: EngineConfig, loader: MlxLoader) -> None:
        config, itemsize = checkpoint.config, int(loader.dtype.size)
        self.name = checkpoint.name
        self.engine = engine
        self.weights = loader.planned_bytes()
        self.derived = work_bytes(config, engine, itemsize)
        element = kv_element_bytes(engine.kv_cache_dtype, config.head_dim, itemsize)
        self.kv_bytes_per_token = kv_bytes_per_token(config, element)
        self.context = longest_context(config, engine)
        if on_metal():
            recommended = int(mx.device_info()["max_recommended_working_set_size"])
            self.source = f"{WORKING_SET_SHARE:.0%} of the {_gib(recommended)} that Metal recommends"
            self.available, self._modest = int(recommended * WORKING_SET_SHARE), None
        else:
            self.available, self._modest = free_bytes(), min(kv_allowance(), LINUX_POOL)
            self.source = f"{_gib(self.available)} are free"

    def plan(self, measured: int | None = None) -> MemoryPlan:
        """``measured``: bytes that the largest step took; None: not known yet.

        Raises:
            ValueError: the model does not fit; the message carries the numbers and what would help.
        """
        work, available = self.derived if measured is None else round(measured * MEASURED_MARGIN), self.available
        self._check(work)
        if self._modest is not None:
            available = min(available, self.weights + work + self._modest)
        return plan_memory(
            weight_bytes=self.weights,
            buffer_bytes=work,
            kv_bytes_per_token=self.kv_bytes_per_token,
            block_size=self.engine.block_size,
            available_bytes=available,
            kv_cache_memory=self.engine.kv_cache_memory,
            max_tokens=self.engine.max_num_seqs * self.context,
        )

    def _check(self, work: int) -> None:
        left, wanted = self.available - self.weights - work, self.engine.kv_cache_memory
        if left < self.engine.block_size * self.kv_bytes_per_token:
            raise ValueError(
                f"{self.name} does not fit: its weights take {_gib(self.weights)} and a step's work memory "
                f"{_gib(work)}, and there are {_gib(self.available)} ({self.source}); use a smaller quantisation of "
                "it, a smaller model, or fewer max_num_seqs or max_num_batched_tokens"
            )
        if wanted is not None and wanted > left:
            raise ValueError(
                f"kv_cache_memory is {_gib(wanted)}, and {_gib(left)} are left of {_gib(self.available)} "
                f"({self.source}) beside weights of {_gib(self.weights)} and work memory of {_gib(work)}; use a "
                "smaller kv_cache_memory or a smaller quantisation"
            )

    def report(self, found: MemoryPlan, measured: int | None) -> None:
        """Say where the memory goes."""
        how = "derived"
        if measured is not None:
            how = f"the largest step took {_gib(measured)}; derived before loading: {_gib(self.derived)}"
        logger.info(
            "memory: %s of weights, %s of work memory (%s), %s of KV cache (%s tokens, %s conversations of 4,096) "
            "of %s, %s",
            _gib(found.weight_bytes),
            _gib(found.buffer_bytes),
            how,
            _gib(found.kv_bytes),
            f"{found.tokens:,}",
            f"{found.conversations:,}",
            _gib(self.available),
            self.source,
        )
        if found.tokens < self.context:
            smaller = "" if self.engine.kv_cache_dtype == "int8" else ", kv_cache_dtype 'int8'"
            logger.warning(
                "the KV cache holds %s tokens, fewer than one context of %s: longer requests will be refused; use a "
                "smaller quantisation of the model, a shorter max_model_len%s, or more kv_cache_memory",
                f"{found.tokens:,}",
                f"{self.context:,}",
                smaller,
            )


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
