"""Where a step's time goes on the CPU: ``python -m bireme.bench.cpu_step``.

Runs whole steps of a real model through the CPU backend, decodes at several numbers of sequences and one prompt chunk,
and times each kind of operation inside them. The figure of each operation is the median over the steps; what is left
of the step's own median is sampling, building the step and Python between the operations.
"""

from __future__ import annotations

import argparse
import statistics
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
from .batches import make_batch
from .machine import describe, line


class TimedOps(CpuOps):
    """``CpuOps`` that notes what each operation of the current step took."""

    spent: ClassVar[dict[str, float]] = defaultdict(float)  # seconds

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.spent[name] += time.perf_counter() - start

    def embedding(self, weight: Any, token_ids: torch.Tensor) -> torch.Tensor:
        with self._timed("embedding"):
            return super().embedding(weight, token_ids)

    def linear(self, x: torch.Tensor, weight: Any) -> torch.Tensor:
        outputs, inputs = weight.shape
        with self._timed(f"linear, {inputs} to {outputs}"):
            return super().linear(x, weight)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        with self._timed("norms"):
            return super().rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self._timed("norms"):
            return super().add_rms_norm(x, residual, weight, eps)

    def rope_and_store(self, qkv: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        with self._timed("rotation, K/V store"):
            return super().rope_and_store(qkv, layer, step)

    def attention(self, q: torch.Tensor, layer: Layer, step: TorchStep) -> torch.Tensor:
        with self._timed("attention"):
            return super().attention(q, layer, step)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        with self._timed("SwiGLU"):
            return super().swiglu(gate_up)


def profile(backend: TorchBackend, sequences: int, new: int, context: int, steps: int) -> dict[str, float]:
    """Median milliseconds by operation, and of the "step" itself."""
    batch = make_batch(sequences, new, context, backend.info.block_size)
    seen: dict[str, list[float]] = defaultdict(list)
    for turn in range(steps + 2):
        TimedOps.spent.clear()
        start = time.perf_counter()
        backend.submit(batch).wait()
        whole = time.perf_counter() - start
        if turn >= 2:  # the first ones meet new shapes
            for name, seconds in {**TimedOps.spent, "step": whole}.items():
                seen[name].append(seconds * 1000)
    return {name: statistics.median(values) for name, values in seen.items()}


def table(columns: dict[str, dict[str, float]]) -> str:
    """Markdown: a row per operation, a column per kind of step, milliseconds and shares."""
    names = sorted({name for column in columns.values() for name in column} - {"step"})
    lines = ["| ms | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        cells = [f"{c.get(name, 0.0):.2f} ({c.get(name, 0.0) / c['step']:.0%})" for c in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    rest = {title: c["step"] - sum(v for n, v in c.items() if n != "step") for title, c in columns.items()}
    cells = [f"{value:.2f} ({value / columns[title]['step']:.0%})" for title, value in rest.items()]
    lines.append("| sampling, building the step, Python | " + " | ".join(cells) + " |")
    lines.append("| whole step | " + " | ".join(f"{c['step']:.2f}" for c in columns.values()) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=265, help="tokens of each decoding sequence")
    parser.add_argument("--chunk", type=int, default=200, help="tokens of the prompt chunk")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pool().resize(options.threads)
    checkpoint = open_checkpoint(resolve(options.model))
    config = EngineConfig(max_num_seqs=max(options.sequences))
    backend = TorchBackend(checkpoint, config, Road(QuantizedLoader(checkpoint), ops=TimedOps))
    with torch.inference_mode():
        columns = {f"{n} decoding": profile(backend, n, 1, options.context, options.steps) for n in options.sequences}
        columns[f"a prompt chunk of {options.chunk}"] = profile(backend, 1, options.chunk, options.chunk, options.steps)
    backend.close()
    print(line(describe()) + "\n")
    print(table(columns))


if __name__ == "__main__":
    main()
