"""``TorchBackend``: a decoder, its KV pool and its sampler on one torch device, run step by step."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import torch

from ...core.config import EngineConfig
from ...core.memory import MemoryPlan, buffer_bytes, kv_bytes_per_token, kv_element_bytes, plan_memory
from ...core.step import StepBatch, StepLogprobs, StepResult
from ...models.decoder import Decoder
from ...models.weight import Checkpoint
from ..base import BackendInfo
from ..host_memory import kv_allowance
from .kv import KVPool
from .ops import TorchOps
from .rope import RopeTable
from .sampler import Sampled, Sampler
from .step import TorchStep
from .weights import DenseLoader

#: Share of a GPU's free memory that may be planned for; the rest is the allocator's and the libraries'.
GPU_SHARE = 0.9


class TorchBackend:
    """A ``Backend`` over torch. One thread makes it, runs it and closes it.

    On a CPU a step runs inside ``submit`` and one step is in flight: the step's kernels take every core, so a worker
    thread could only make them wait for the host's share of a percent. On a GPU ``submit`` queues the work and returns.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        loader: DenseLoader,
        ops: type[TorchOps] = TorchOps,
        arithmetic: str = "float32",
    ) -> None:
        """``arithmetic`` is for people: how the linear layers compute."""
        self._owner = threading.get_ident()
        model = checkpoint.config
        self._device, self._block_size = loader.device, config.block_size
        context = min(config.max_model_len or model.max_position, model.max_position)
        self._decoder: Decoder | None = Decoder(model, loader)
        plan = _plan(checkpoint, config, loader, context)
        kv_dtype = torch.int8 if config.kv_cache_dtype == "int8" else loader.dtype
        kv = KVPool(model, plan.num_blocks, config.block_size, kv_dtype, loader.device)
        rope = RopeTable.build(model.rope, model.head_dim, context, loader.device)
        self._ops: TorchOps | None = ops(model, kv, rope)
        self._sampler: Sampler | None = Sampler(config.max_num_seqs, model.vocab_size, loader.device)
        self._last_tokens = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=loader.device)
        self._info = BackendInfo(
            device=loader.device.type,
            model_name=checkpoint.name,
            quantization=f"{checkpoint.quantization} ({arithmetic})",
            vocab_size=model.vocab_size,
            max_model_len=model.max_position,
            end_ids=checkpoint.end_ids,
            num_blocks=plan.num_blocks,
            block_size=config.block_size,
            weight_bytes=plan.weight_bytes,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            max_in_flight=1 if loader.device.type == "cpu" else 2,
            kv_cache_dtype=str(kv_dtype).removeprefix("torch."),
        )
        self._warm_up()

    @property
    def info(self) -> BackendInfo:
        return self._info

    @torch.inference_mode()
    def submit(self, batch: StepBatch) -> TorchTicket:
        """See ``Backend.submit``."""
        self._check_thread()
        assert self._decoder is not None and self._ops is not None and self._sampler is not None, (
            "the backend is closed"
        )
        clock = _clock(self._device)
        if len(batch.copies):
            self._ops.kv.copy_blocks(torch.from_numpy(batch.copies.astype(np.int64)).to(self._device))
        for init in batch.new_rows:
            self._sampler.begin(init)
        sampled = None
        if batch.num_tokens:
            step = TorchStep.build(batch, self._last_tokens, self._block_size)
            logits = self._decoder.forward(self._ops, step.token_ids, step.logit_rows, step)
            if logits is not None:
                sampled = self._sample(logits, batch)
        return TorchTicket(batch.step_id, sampled, clock)

    def _sample(self, logits: torch.Tensor, batch: StepBatch) -> Sampled:
        assert self._sampler is not None
        rows = batch.rows[batch.samples]
        sampled = self._sampler.sample(logits, rows, batch.context_lens[batch.samples].astype(np.int64))
        self._last_tokens[torch.from_numpy(rows.astype(np.int64)).to(self._device)] = sampled.tokens
        return sampled

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Run ``batch``; the logits after every one of its tokens, [T, V]. Nothing is sampled. For measuring."""
        self._check_thread()
        assert self._decoder is not None and self._ops is not None, "the backend is closed"
        step = TorchStep.build(batch, self._last_tokens, self._block_size)
        every = torch.arange(batch.num_tokens, device=self._device)
        logits = self._decoder.forward(self._ops, step.token_ids, every, step)
        assert isinstance(logits, torch.Tensor)
        return logits

    def _warm_up(self) -> None:
        """Run one small step, a chunk and a decode, so that no request waits for a kernel to be compiled.

        It writes into block 0, which no sequence holds yet, and leaves no trace in the rows that a sequence could see.
        """
        positions = np.array([0, 1, 0], np.int32) % self._block_size
        batch = StepBatch(
            step_id=-1,
            token_ids=np.zeros(3, np.int32),
            positions=positions,
            slots=positions.astype(np.int64),
            query_start=np.array([0, 2, 3], np.int32),
            context_lens=np.array([2, 1], np.int32) if self._block_size > 1 else np.ones(2, np.int32),
            block_tables=np.zeros((2, 1), np.int32),
            rows=np.zeros(2, np.int32),
            samples=np.ones(2, np.bool_),
            copies=np.zeros((0, 2), np.int32),
        )
        self.submit(batch).wait()

    def close(self) -> None:
        """Free the weights and the KV pool. Safe to call twice."""
        self._check_thread()
        self._decoder = self._ops = self._sampler = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _check_thread(self) -> None:
        assert threading.get_ident() == self._owner, "a backend is used from the thread that made it"


class TorchTicket:
    """A submitted step; its results are on their way to the host."""

    def __init__(self, step_id: int, sampled: Sampled | None, clock: _Clock) -> None:
        self._step_id = step_id
        self._host = _to_host(sampled) if sampled else None
        self._clock = clock.stop()

    def done(self) -> bool:
        return self._clock.passed()

    def wait(self) -> StepResult:
        elapsed = self._clock.elapsed()
        if self._host is None:
            return StepResult(self._step_id, np.zeros(0, np.int32), np.zeros(0, np.bool_), None, elapsed)
        host = self._host
        tokens = host.tokens.numpy().astype(np.int32)
        return StepResult(self._step_id, tokens, host.nan.numpy(), _spread(host, len(tokens)), elapsed)


def _to_host(sampled: Sampled) -> Sampled:
    """Start copying the results; on a CPU they are there already."""

    def fetch(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return target.copy_(tensor, non_blocking=True)

    logprobs = sampled.logprobs
    if logprobs is not None:
        chosen, ids, values = (fetch(t) for t in (logprobs.chosen, logprobs.top_ids, logprobs.top_logprobs))
        logprobs = type(logprobs)(logprobs.asked, chosen, ids, values)
    return Sampled(fetch(sampled.tokens), fetch(sampled.nan), logprobs)


def _spread(host: Sampled, count: int) -> StepLogprobs | None:
    """Log-probabilities as [N] arrays: zero and -1 for the rows that didn't ask."""
    if host.logprobs is None:
        return None
    asked, width = host.logprobs.asked, host.logprobs.top_ids.shape[1]
    chosen = np.zeros(count, np.float32)
    top_ids = np.full((count, width), -1, np.int32)
    top_logprobs = np.zeros((count, width), np.float32)
    chosen[asked] = host.logprobs.chosen.numpy()
    top_ids[asked] = host.logprobs.top_ids.numpy()
    top_logprobs[asked] = host.logprobs.top_logprobs.numpy()
    return StepLogprobs(chosen, top_ids, top_logprobs)


class _Clock:
    """Times a step on the host, which on a CPU is where it runs."""

    def __init__(self) -> None:
        self._start = self._end = time.perf_counter()

    def stop(self) -> _Clock:
        self._end = time.perf_counter()
        return self

    def passed(self) -> bool:
        return True

    def elapsed(self) -> float:
        """Seconds; waits for the step."""
        return self._end - self._start


class _GpuClock(_Clock):
    """Times a step on the GPU, between two events in its stream."""

    def __init__(self) -> None:
        self._first: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._last: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._first.record()

    def stop(self) -> _Clock:
        self._last.record()
        return self

    def passed(self) -> bool:
        return bool(self._last.query())

    def elapsed(self) -> float:
        self._last.synchronize()
        return float(self._first.elapsed_time(self._last)) / 1000


def _clock(device: torch.device) -> _Clock:
    return _GpuClock() if device.type == "cuda" else _Clock()


def _plan(checkpoint: Checkpoint, config: EngineConfig, loader: DenseLoader, context: int) -> MemoryPlan:
    """Size the KV pool, once the weights are in place."""
    model = checkpoint.config
    buffers = buffer_bytes(model, config.max_num_batched_tokens, config.max_num_seqs)
    element = kv_element_bytes(config.kv_cache_dtype, model.head_dim, loader.dtype.itemsize)
    if loader.device.type == "cuda":
        available = loader.nbytes + int(torch.cuda.mem_get_info(loader.device)[0] * GPU_SHARE)
    else:
        available = loader.nbytes + buffers + kv_allowance()
    return plan_memory(
        weight_bytes=loader.nbytes,
        buffer_bytes=buffers,
        kv_bytes_per_token=kv_bytes_per_token(model, element),
        block_size=config.block_size,
        available_bytes=available,
        kv_cache_memory=config.kv_cache_memory,
        max_tokens=config.max_num_seqs * context,
    )
