"""What the other ranks' processes are told to build in tests, in place of a plain share of the model."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import torch
from fake_gpu import FakeGpu

from bireme.backends.cuda.road import Road
from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.tensor_parallel.build import bound, build_rank
from bireme.backends.cuda.tensor_parallel.checkpoint import RankCheckpoint
from bireme.backends.cuda.tensor_parallel.device import ParallelDevice
from bireme.backends.cuda.tensor_parallel.shares import Shares


class PromptGpu(FakeGpu):
    """Whose results come once they are waited for, however often that is asked."""

    def fetch(self, tensors: Any) -> Any:
        found = super().fetch(tensors)
        found.done = lambda: True
        return found

    def clock(self) -> Any:
        found = super().clock()
        found.passed = lambda: True
        return found


def less_room(checkpoint: Any, config: Any, ranks: Any, control: Any, progress: Any = None) -> TorchBackend:
    """Rank 1 has room for half as much."""
    if ranks.rank:
        config = dataclasses.replace(config, kv_cache_memory=config.kv_cache_memory // 2)
    return build_rank(checkpoint, config, ranks, control, progress)


def no_room(checkpoint: Any, config: Any, ranks: Any, control: Any, progress: Any = None) -> TorchBackend:
    """Rank 1 has room for nothing."""
    if ranks.rank:
        config = dataclasses.replace(config, kv_cache_memory=1)
    return build_rank(checkpoint, config, ranks, control, progress)


def breaks(checkpoint: Any, config: Any, ranks: Any, control: Any, progress: Any = None) -> TorchBackend:
    """Rank 1 fails in its third step."""
    made = build_rank(checkpoint, config, ranks, control, progress)
    submit, left = made.submit, iter(range(3))

    def failing(batch: Any) -> Any:
        if ranks.rank and next(left, None) is None:
            raise RuntimeError("the third step is too much")
        return submit(batch)

    made.submit = failing
    return made


def drifts(checkpoint: Any, config: Any, ranks: Any, control: Any, progress: Any = None) -> TorchBackend:
    """Rank 1 would draw other tokens."""
    return _drifting(build_rank(checkpoint, config, ranks, control, progress), ranks)


def _drifting(made: TorchBackend, ranks: Any) -> TorchBackend:
    decoder: Any = made._decoder
    if ranks.rank:
        head = decoder.head
        decoder.head = lambda x: -head(x)
    return made


def graphs(checkpoint: Any, config: Any, ranks: Any, control: Any, progress: Any = None) -> TorchBackend:
    """The GPU's road over a stand-in for one: captured steps, in plain torch."""
    from bireme.backends.cuda.weights import DenseLoader

    return _over(PromptGpu(), DenseLoader, checkpoint, config, ranks, control)


def refuses_graphs(checkpoint: Any, config: Any, ranks: Any, control: Any, progress: Any = None) -> TorchBackend:
    """The same, but rank 1 can't capture its first step."""
    from bireme.backends.cuda.weights import DenseLoader

    device, refused = PromptGpu(), iter([bool(ranks.rank)])
    capture = device.capture

    def refusing(work: Any) -> Any:
        graph = capture(work)  # a stand-in's work is done while it is recorded, and all ranks must do it
        if next(refused, False):
            raise RuntimeError("operation not permitted when stream is capturing")
        return graph

    device.capture = refusing
    return _over(device, DenseLoader, checkpoint, config, ranks, control)


def kernels(checkpoint: Any, config: Any, ranks: Any, control: Any, progress: Any = None) -> TorchBackend:
    """The GPU's road with its kernels, in Triton's interpreter: planes, and steps captured with the draw inside.

    Rank 1 would draw other tokens.
    """
    os.environ.setdefault("TRITON_INTERPRET", "1")
    from bireme.backends.cuda.quantized import PlanarLoader
    from bireme.backends.cuda.triton_ops import TritonOps
    from bireme.backends.cuda.triton_sampler import TritonSampler

    parts = {"ops": TritonOps, "sampler": TritonSampler, "quantized": True}
    return _drifting(_over(PromptGpu(), PlanarLoader, checkpoint, config, ranks, control, **parts), ranks)


def _over(device: Any, loader: Any, checkpoint: Any, config: Any, ranks: Any, control: Any, **parts: Any) -> Any:
    shares = Shares.of(checkpoint, ranks.size)
    mine = RankCheckpoint(checkpoint, shares, ranks.rank)
    road = Road(loader(mine, torch.float32, torch.device("cpu")), captures=True, **parts)
    return TorchBackend(
        mine, config, bound(road, ranks, shares), ParallelDevice(device, control), capture_seconds=math.inf
    )
