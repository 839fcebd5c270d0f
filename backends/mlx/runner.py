"""``MlxBackend``: a decoder, its KV pool and its sampler in MLX, run step by step by one thread."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from typing import Any

import numpy as np

from ...core.config import EngineConfig
from ...core.step import StepBatch, StepLogprobs, StepResult
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...models.weight import Checkpoint, Progress
from ..base import BackendInfo
from ..options import BackendOptions
from . import cpu, memory, rehearsal
from .kv import KVPool
from .library import BLAS_PROBLEM, Array, mx, on_metal
from .ops import MlxOps
from .reading import Reading, read
from .rope import RotaryTables
from .sampled import Sampled
from .sampler import Sampler
from .step import MlxStep, put
from .storage import choose_storage
from .weights import MlxLoader
from .work import scored_at_once

logger = logging.getLogger(__name__)


class MlxBackend:
    """A ``Backend`` over MLX. One thread makes it, runs it and closes it: streams and arrays are that thread's own.

    ``submit`` builds a step's graph, on the last step's tokens where they aren't computed yet; the graph is handed to
    the device when the step before has finished, because only then can the KV pool be written in place.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        options: BackendOptions | None = None,
        progress: Progress | None = None,
        *,
        max_in_flight: int | None = None,
        ops: type[MlxOps] = MlxOps,
    ) -> None:
        self._owner = threading.get_ident()
        self._make_ops = ops
        model = checkpoint.config
        storage = choose_storage(checkpoint, options or BackendOptions())
        loader = MlxLoader(checkpoint, storage.dtype, storage.quantized, progress)
        if not on_metal():
            cpu.keep_freed_memory()
        planner = memory.Planner(checkpoint, config, loader)
        memory.set_limits(planner.plan())  # a model that does not fit is refused here, before a weight is read
        self._decoder: Decoder | None = Decoder(model, loader)
        self._rope = RotaryTables(model)
        self._unfinished: deque[MlxTicket] = deque()  # in the order of submission; only the first is on the device
        self._begin(model, config, storage.dtype, num_blocks=1)
        measured = self._rehearse(model, config)
        plan = planner.plan(measured)
        memory.set_limits(plan)
        planner.report(plan, measured)
        self._begin(model, config, storage.dtype, plan.num_blocks)
        how = storage.describe(loader)
        if BLAS_PROBLEM is not None:
            logger.warning("%s", BLAS_PROBLEM)
        logger.info("weights: %s", how)
        self._info = BackendInfo(
            device="mlx",
            model_name=checkpoint.name,
            quantization=f"{checkpoint.quantization} ({how})",
            vocab_size=model.vocab_size,
            max_model_len=model.max_position,
            end_ids=checkpoint.end_ids,
            num_blocks=plan.num_blocks,
            block_size=config.block_size,
            weight_bytes=loader.nbytes,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            kv_cache_dtype=self._kv.stored_dtype,
            max_in_flight=max_in_flight or (2 if on_metal() else 1),
        )

    def _begin(self, model: ModelConfig, config: EngineConfig, dtype: Array, num_blocks: int) -> None:
        """Make all that steps leave their traces in."""
        self._kv = KVPool(model, num_blocks, config.block_size, dtype, config.kv_cache_dtype == "int8")
        self._ops: MlxOps | None = self._make_ops(model, self._kv, dtype)
        self._sampler: Sampler | None = Sampler(config.max_num_seqs, model.vocab_size)
        self._last_tokens: Array = mx.zeros((config.max_num_seqs,), mx.int32)

    def _rehearse(self, model: ModelConfig, config: EngineConfig) -> int | None:
        """Run steps of every kind, so that no request waits for a kernel to be compiled.

        Returns:
            The bytes that the largest step took beside weights and pool; None where it would take too long to run.
        """
        for batch in rehearsal.small_steps(model, config):
            self.submit(batch).wait()
        if not rehearsal.measurable(model, config):
            return None
        whole = self._decoder
        assert whole is not None
        self._decoder, largest = rehearsal.few_layers(whole), rehearsal.largest_step(model, config)
        try:
            return rehearsal.extra_bytes(lambda: self.submit(largest).wait())
        finally:
            self._decoder = whole

    @property
    def info(self) -> BackendInfo:
        return self._info

    def submit(self, batch: StepBatch) -> MlxTicket:
        """See ``Backend.submit``."""
        self.check_thread()
        assert self._decoder is not None and self._ops is not None and self._sampler is not None, (
            "the backend is closed"
        )
        self.start_next()
        if len(batch.copies):
            self.settle()
            self._kv.copy_blocks(put(batch.copies[:, 0]), put(batch.copies[:, 1]))
        for init in batch.new_rows:
            self._sampler.begin(init)
        sampled, reading = None, None
        if batch.num_tokens:
            step = MlxStep.build(batch, self._last_tokens, self._kv, self._rope, self.settle)
            if batch.tells_nothing:
                logits = self._decoder.forward(self._ops, step.token_ids, step.logit_rows, step)
            else:
                at_once = scored_at_once(self._sampler.table.vocab_size, self._sampler.table.rows)
                logits, reading = read(self._decoder, self._ops, step, batch, at_once)
            if logits is not None:
                sampled = self._sample(logits, batch)
        state = [*self._kv.arrays, *self._sampler.arrays, self._last_tokens, *(sampled.arrays if sampled else ())]
        state += [] if reading is None else reading.arrays
        ticket = MlxTicket(self, batch.step_id, sampled, [_alias(each) for each in state], reading)
        self._unfinished.append(ticket)
        self.start_next()
        return ticket

    def _sample(self, logits: Array, batch: StepBatch) -> Sampled:
        assert self._sampler is not None
        rows = batch.rows[batch.samples]
        positions = batch.context_lens[batch.samples].astype(np.int64)
        sampled = self._sampler.sample(logits, rows, positions, batch.masks)
        self._last_tokens[put(rows)] = sampled.tokens
        return sampled

    def start_next(self) -> None:
        """Hand the first unfinished step to the device, unless it is there already."""
        if self._unfinished:
            self._unfinished[0].start()

    def finish(self, ticket: MlxTicket) -> None:
        """Run steps to their end, in order, up to ``ticket``."""
        self.check_thread()
        while not ticket.finished:
            self.start_next()
            self._unfinished.popleft().finish()

    def settle(self) -> None:
        """Wait until nothing is under way."""
        if self._unfinished:
            self.finish(self._unfinished[-1])

    def close(self) -> None:
        """Free the weights and the KV pool. Safe to call twice."""
        self.check_thread()
        if self._decoder is None:
            return
        mx.synchronize()
        for ticket in self._unfinished:
            ticket.drop()
        self._unfinished.clear()
        self._decoder = self._ops = self._sampler = self._last_tokens = None
        self._kv.free()
        gc.collect()
        memory.release()

    def check_thread(self) -> None:
        assert threading.get_ident() == self._owner, "an MLX backend is used from the thread that made it"


class MlxTicket:
    """A submitted step. Its arrays are let go of once it is finished."""

    def __init__(
        self,
        backend: MlxBackend,
        step_id: int,
        sampled: Sampled | None,
        state: list[Array],
        reading: Reading | None = None,
    ) -> None:
        self._reading = reading
        self._backend = backend
        self._step_id = step_id
        self._sampled = sampled
        self._state = state
        self._started = 0.0
        self._elapsed = 0.0
        self.finished = False

    def start(self) -> None:
        """Hand the step to the device, once."""
        if not self._started:
            self._started = time.perf_counter()
            mx.async_eval(self._state)

    def finish(self) -> None:
        """Wait for the device."""
        mx.eval(self._state)
        mx.synchronize()  # what the device still holds of the pools is let go of by then
        self._elapsed = time.perf_counter() - self._started
        self._state = []
        self.finished = True

    def drop(self) -> None:
        """Let go of everything; there will be no result."""
        self._state, self._sampled, self._reading = [], None, None

    def done(self) -> bool:
        """MLX can't be asked; but a step that waits for its turn is started, now that the last one's tokens are out."""
        self._backend.start_next()
        return self.finished

    def wait(self) -> StepResult:
        self._backend.finish(self)
        read: tuple[Any, StepLogprobs | None] = (None, None)
        if self._reading is not None:
            read = self._reading.on_host()
        if self._sampled is None:
            return StepResult(self._step_id, np.zeros(0, np.int32), np.zeros(0, np.bool_), None, self._elapsed, *read)
        tokens = np.array(self._sampled.tokens)
        scores = _spread(self._sampled, len(tokens))
        return StepResult(self._step_id, tokens, np.array(self._sampled.nan), scores, self._elapsed, *read)


def _alias(array: Array) -> Array:
    """Another name for what ``array`` stands for now. Item assignment makes a name stand for something new, and a step
    that kept only the pools' own names would run the step after it with it."""
    return array.astype(array.dtype)


def _spread(sampled: Sampled, count: int) -> StepLogprobs | None:
    """Log-probabilities as [N] arrays: zero and -1 for the rows that didn't ask."""
    found = sampled.logprobs
    if found is None:
        return None
    width = found.top_ids.shape[1]
    chosen = np.zeros(count, np.float32)
    top_ids = np.full((count, width), -1, np.int32)
    top_logprobs = np.zeros((count, width), np.float32)
    chosen[found.asked] = np.array(found.chosen)
    top_ids[found.asked] = np.array(found.top_ids)
    top_logprobs[found.asked] = np.array(found.top_logprobs)
    return StepLogprobs(chosen, top_ids, top_logprobs)
