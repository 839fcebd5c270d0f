"""Where a step's time goes on the CPU: ``python -m bireme.bench.cpu_step``.

Runs whole steps of a real model through the CPU backend, decodes at several numbers of sequences and one prompt chunk,
and times each kind of operation inside them. The figure of each operation is the median over the steps; what is left
of the step's own median is sampling, building the step and Python between the operations.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from ..backends.cpu.ops import CpuOps
from ..backends.cpu.threads import pool
from ..backends.cpu.weights import QuantizedLoader
from ..backends.cuda.road import Road
from ..backends.cuda.runner import TorchBackend
from ..backends.cuda.step import TorchStep
from ..core.config import EngineConfig
from ..models.checkpoint import open_checkpoint
from ..models.decoder import Layer
from ..models.hub import resolve
from . import step_times
from .machine import describe, line


class TimedOps(CpuOps):
    """``CpuOps`` that notes what each operation of the current step took."""

    spent: ClassVar[dict[str, float]] = defaultdict(float)  # seconds

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.spent[name] += time.perf_counter() - start

    def embedding(self, weight: Any, token_ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        with self._timed("embedding"):
            return super().embedding(weight, token_ids, scale)

    def linear(self, x: torch.Tensor, weight: Any) -> torch.Tensor:
        outputs, inputs = weight.shape
        with self._timed(f"linear, {inputs} to {outputs}"):
            return super().linear(x, weight)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        with self._timed("norms"):
            return super().rms_norm(x, weight, eps)

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        own: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self._timed("norms"):
            return super().add_rms_norm(x, residual, weight, eps, own)

    def rope_and_store(self, qkv: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        with self._timed("rotation, K/V store"):
            return super().rope_and_store(qkv, layer, step)

    def attention(self, q: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        with self._timed("attention"):
            return super().attention(q, layer, step)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        with self._timed("SwiGLU"):
            return super().swiglu(gate_up)

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        with self._timed("GeGLU"):
            return super().geglu(gate_up)


def fill(backend: TorchBackend, tokens: int) -> None:
    """Write the pool's first ``tokens``: fresh memory would be one page of zeros, again and again out of the cache."""
    assert backend._ops is not None
    for array in backend._ops.kv.arrays:
        array[: -(-tokens // backend.info.block_size)].normal_()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = step_times.parser(__doc__, sequences=[1, 4, 16], context=265, chunks=[200], steps=30)
    parser.add_argument("--threads", type=int, default=None)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pool().resize(asked.threads)
    checkpoint = open_checkpoint(resolve(asked.model))
    config = EngineConfig(max_num_seqs=max([1, *asked.sequences]))
    backend = TorchBackend(checkpoint, config, Road(QuantizedLoader(checkpoint), ops=TimedOps))
    with torch.inference_mode():
        size = backend.info.block_size
        fill(backend, max([*asked.chunks, *(count * (asked.context + size) for count in asked.sequences)]))
        columns = step_times.profile(backend, TimedOps.spent, asked)
    backend.close()
    print(line(describe()) + "\n")
    print(step_times.table(columns))


if __name__ == "__main__":
    main()
