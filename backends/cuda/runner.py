"""``TorchBackend``: a decoder, its KV pool and its sampler on one torch device, run step by step."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from ...core.config import EngineConfig
from ...core.memory import MemoryPlan
from ...core.step import StepBatch
from ...models.decoder import Decoder
from ...models.weight import Checkpoint
from ..base import BackendInfo
from . import memory
from .buffers import DecodeInputs, Sender, share
from .device import Device, Tensors, device_for
from .graphs import CAPTURE_SECONDS, DecodeGraphs, batch_sizes
from .kv import KEPT, KVPool
from .ops import TorchOps
from .reading import Reading, read
from .road import Road
from .rope import RopeTable
from .sampler import Sampled, Sampler
from .step import TorchStep
from .tickets import TorchTicket
from .trial import TRIAL_CONTEXT, largest_step, small_step

if TYPE_CHECKING:
    from .triton_sampler import Launch, TritonSampler

logger = logging.getLogger(__name__)


class TorchBackend:
    """A ``Backend`` over torch. One thread makes it, runs it and closes it.

    On a CPU a step runs inside ``submit`` and one step is in flight: the step's kernels take every core, so a worker
    thread could only make them wait for the host's share of a percent. On a GPU ``submit`` queues the work and returns:
    the step's arrays go up in one copy, the results come back on a stream of their own, and nothing between them waits
    for the device. There a step in which every sequence decodes is replayed from a captured graph.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        road: Road,
        device: Device | None = None,
        capture_seconds: float = CAPTURE_SECONDS,
    ) -> None:
        """
        Args:
            device: None: the device that ``road`` loads onto.
            capture_seconds: what loading may spend on capturing decode steps; what is left is captured when it is first
                needed.
        """
        self._owner = threading.get_ident()
        self._model, self._config = checkpoint.config, config
        self._device = device or device_for(road.loader.device)
        self._dtype = road.loader.dtype
        self._kept = KEPT.get(config.kv_cache_dtype, road.ops.kept or self._dtype)
        self._context = min(config.max_model_len or self._model.max_position, self._model.max_position)
        self._sender = Sender(self._device)
        self._send = self._sender.send if self._device.asynchronous else share
        self._last_tokens = torch.zeros(config.max_num_seqs + 1, dtype=torch.int64, device=self._device.device)
        # one row more than sequences: that of the rows that pad a captured step
        self._sampler: Sampler | None = road.sampler(
            config.max_num_seqs + 1, self._model.vocab_size, self._device.device
        )
        self._drawer = cast("TritonSampler | None", self._sampler if hasattr(self._sampler, "draw") else None)
        self._ops: TorchOps | None = None
        self._decoder: Decoder | None = None
        self._graphs: DecodeGraphs | None = None
        self._reading: Reading | None = None  # of the step being submitted
        wants_graphs = road.captures and self._device.captures
        plan = self._load(checkpoint, road, wants_graphs)
        self._info = self._describe(checkpoint, plan, road.arithmetic)
        self.submit(small_step(config.block_size)).wait()  # so that no request waits for a kernel to be compiled
        if wants_graphs:
            self._prepare_graphs(plan.num_blocks, capture_seconds)

    @property
    def info(self) -> BackendInfo:
        return self._info

    @torch.inference_mode()
    def submit(self, batch: StepBatch) -> TorchTicket:
        """See ``Backend.submit``."""
        self._check_thread()
        assert self._ops is not None and self._sampler is not None, "the backend is closed"
        clock = self._device.clock()
        if len(batch.copies):
            self._ops.kv.copy_blocks(self._send({"copies": batch.copies.astype(np.int64)})["copies"])
        for init in batch.new_rows:
            self._sampler.begin(init)
        self._reading = None
        sampled = self._run(batch) if batch.num_tokens else None
        clock.stop()
        return TorchTicket(batch.step_id, sampled, clock, self._device, self._reading)

    def _run(self, batch: StepBatch) -> Sampled | None:
        size, kind = self._graph_for(batch)
        if size is not None:
            return self._replay(batch, size, kind)
        step, decoder = self._step(batch), self._decoder
        assert decoder is not None
        if batch.tells_nothing:
            logits = decoder.forward(self._ops_(), step.token_ids, step.logit_rows, step)
        else:
            logits, self._reading = read(decoder, self._ops_(), step, batch)
        if logits is None:
            return None
        assert step.rows is not None and step.next_positions is not None
        if self._drawer is None or batch.masks is not None:
            return self._sample(logits, batch, step.rows)
        launch = self._drawer.launch(batch.rows[batch.samples])
        tokens, nan = self._drawer.draw(logits, step.rows, step.next_positions, self._last_tokens, launch)
        return self._drawn(logits, batch, tokens, nan)

    def _step(self, batch: StepBatch) -> TorchStep:
        extra = self._ops_().host_arrays(batch, self._dtype, self._device.device)
        return TorchStep.build(batch, self._last_tokens, self._config.block_size, self._send, extra)

    def _graph_for(self, batch: StepBatch) -> tuple[int | None, Launch | None]:
        """The captured size that serves ``batch``, if every sequence decodes one token and samples the next. A graph
        that draws the tokens too goes with its launch; masks come from the host, and are applied outside."""
        if self._graphs is None or batch.num_tokens != batch.num_seqs or not batch.samples.all():
            return None, None
        if not batch.tells_nothing:
            return None, None
        kind = self._any_launch() if batch.masks is None else None
        return self._graphs.size_for(batch.num_seqs, kind), kind

    def _any_launch(self) -> Launch | None:
        """The launch that serves rows whatever they ask; None for a sampler that can't be captured."""
        if self._drawer is None:
            return None
        return dataclasses.replace(self._drawer.launch(np.zeros(1, np.int32)), plain=False)

    def _replay(self, batch: StepBatch, size: int, kind: Launch | None) -> Sampled:
        assert self._graphs is not None
        count = batch.num_seqs
        logits, *drawn = (each[:count] for each in self._graphs.replay(batch, size, kind))
        if not drawn:
            return self._sample(logits, batch, self._graphs.inputs.rows[:count])
        tokens, nan = drawn
        return self._drawn(logits, batch, tokens.clone(), nan.clone())  # the next replay may come before they are read

    def _sample(self, logits: torch.Tensor, batch: StepBatch, rows: torch.Tensor) -> Sampled:
        """``rows``: those of the sequences that sample, on the device."""
        assert self._sampler is not None
        on_host = batch.rows[batch.samples]
        positions = batch.context_lens[batch.samples].astype(np.int64)
        sampled = self._sampler.sample(logits, on_host, positions, batch.masks)
        self._last_tokens.index_copy_(0, rows, sampled.tokens.to(torch.int64))
        return sampled

    def _drawn(self, logits: torch.Tensor, batch: StepBatch, tokens: torch.Tensor, nan: torch.Tensor) -> Sampled:
        """What was drawn for ``batch``, which the rows' last tokens know of already."""
        assert self._drawer is not None
        rows = batch.rows[batch.samples]
        self._drawer.count(rows)
        return Sampled(tokens, nan.bool(), self._drawer.logprobs(logits, rows, tokens))

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Run ``batch``; the logits after every one of its tokens, [T, V]. Nothing is sampled. For measuring."""
        self._check_thread()
        assert self._decoder is not None, "the backend is closed"
        step = self._step(batch)
        every = torch.arange(batch.num_tokens, device=self._device.device)
        logits = self._decoder.forward(self._ops_(), step.token_ids, every, step)
        assert isinstance(logits, torch.Tensor)
        return logits

    def _ops_(self) -> TorchOps:
        assert self._ops is not None, "the backend is closed"
        return self._ops

    def _load(self, checkpoint: Checkpoint, road: Road, wants_graphs: bool) -> MemoryPlan:
        """Load the weights and make the pool: on a GPU if they fit, and as large as what was measured leaves."""
        config, device, loader = self._config, self._device, road.loader
        itemsize = loader.dtype.itemsize
        ropes = [RopeTable.build(r, self._model.head_dim, self._context, device.device) for r in self._model.ropes]
        if not device.asynchronous:
            self._decoder = Decoder(self._model, loader)
            plan = self._agreed(memory.plan_host(checkpoint, config, self._context, self._kept.itemsize, loader.nbytes))
            self._ops = road.ops(self._model, self._pool(plan.num_blocks), *ropes)
            return plan
        budget = memory.Budget(device.total_bytes(), device.free_bytes(), config.gpu_memory_fraction)
        expected = memory.expected_use(checkpoint, config, itemsize, road.quantized)
        memory.plan_gpu(checkpoint, config, self._context, itemsize, budget, expected)
        self._decoder = Decoder(self._model, loader)
        use = self._measure(road.ops(self._model, self._pool(1), *ropes), budget, loader.nbytes, wants_graphs)
        plan = self._agreed(memory.plan_gpu(checkpoint, config, self._context, itemsize, budget, use))
        # one block more than the plan's: the null block, where rows that pad a captured step leave their keys
        self._ops = road.ops(self._model, self._pool(plan.num_blocks + 1), *ropes)
        memory.report(plan, use, budget)
        return plan

    def _agreed(self, plan: MemoryPlan) -> MemoryPlan:
        """``plan`` with as many blocks as the device says."""
        blocks = self._device.agree(plan.num_blocks)
        return dataclasses.replace(plan, num_blocks=blocks, kv_bytes=blocks * plan.block_size * plan.kv_bytes_per_token)

    @torch.inference_mode()
    def _measure(self, ops: TorchOps, budget: memory.Budget, weights: int, wants_graphs: bool) -> memory.Use:
        """What the largest steps hold, found by running them over a pool of one block."""
        config, size, device = self._config, self._config.block_size, self._device
        self._ops, tokens, context = ops, config.max_num_batched_tokens, min(self._context, TRIAL_CONTEXT)
        for array in ops.kv.arrays:
            array.zero_()  # NaN would take short ways
        work = device.peak_bytes(lambda: self.submit(largest_step(config.max_num_seqs, tokens, context, size)).wait())
        graphs = 0
        if wants_graphs:  # their memory is apart from the other steps', and they share it
            decode = largest_step(config.max_num_seqs, config.max_num_seqs, context, size)
            shared = device.peak_bytes(lambda: self.submit(decode).wait())
            tables = 2 * 4 * config.max_num_seqs * -(-self._context // size)  # on the way, and in their place
            graphs = shared + tables + memory.GRAPH_BYTES * len(batch_sizes(config.max_num_seqs))
        self._ops = None
        device.release()
        held = max(weights, budget.free - device.free_bytes())  # libraries' own memory included
        return memory.Use(weights, work + held - weights, graphs)

    def _pool(self, num_blocks: int) -> KVPool:
        return KVPool(self._model, num_blocks, self._config.block_size, self._kept, self._device.device)

    @torch.inference_mode()
    def _prepare_graphs(self, null_block: int, seconds: float) -> None:
        config, size = self._config, self._config.block_size
        width = -(-self._context // size)
        inputs = DecodeInputs(
            self._sender, self._device.device, config.max_num_seqs, width, size, null_block=null_block
        )
        self._graphs = DecodeGraphs(
            self._device, inputs, partial(self._decode_work, inputs), batch_sizes(config.max_num_seqs)
        )
        self._graphs.capture_all(seconds, self._any_launch())
        sizes = ", ".join(map(str, sorted(self._graphs.captured))) or "no number of"
        logger.info("graphs: decode steps of %s sequences, %s of memory", sizes, memory.gib(self._graphs.nbytes))

    def _decode_work(self, inputs: DecodeInputs, size: int, kind: Hashable) -> Callable[[], Tensors]:
        """One decode step of ``size`` sequences over ``inputs``; of a kind that isn't None it draws the tokens too."""
        step = TorchStep.static_decode(inputs, size, self._context, self._config.block_size)
        decoder, ops, rows = self._decoder, self._ops_(), step.rows
        drawer, last_tokens = self._drawer, self._last_tokens
        assert decoder is not None and rows is not None

        def work() -> Tensors:
            token_ids = torch.where(step.token_ids < 0, last_tokens[rows], step.token_ids)
            logits = decoder.forward(ops, token_ids, step.logit_rows, step)
            assert isinstance(logits, torch.Tensor)
            if drawer is None or kind is None:
                return (logits,)
            return logits, *drawer.draw(logits, rows, step.context_lens, last_tokens, cast("Launch", kind))

        return work

    def _describe(self, checkpoint: Checkpoint, plan: MemoryPlan, arithmetic: str) -> BackendInfo:
        kv_dtype = self._ops_().kv.keys[0].dtype
        return BackendInfo(
            device=self._device.device.type,
            model_name=checkpoint.name,
            quantization=f"{checkpoint.quantization} ({arithmetic})",
            vocab_size=self._model.vocab_size,
            max_model_len=self._model.max_position,
            end_ids=checkpoint.end_ids,
            num_blocks=plan.num_blocks,
            block_size=self._config.block_size,
            weight_bytes=plan.weight_bytes,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            max_in_flight=2 if self._device.asynchronous else 1,
            kv_cache_dtype=str(kv_dtype).removeprefix("torch."),
        )

    def close(self) -> None:
        """Free the weights and the KV pool. Safe to call twice."""
        self._check_thread()
        self._graphs = self._decoder = self._ops = self._sampler = self._drawer = None
        self._device.release()

    def _check_thread(self) -> None:
        assert threading.get_ident() == self._owner, "a backend is used from the thread that made it"
