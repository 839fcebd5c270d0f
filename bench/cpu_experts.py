"""What a layer of experts costs on the CPU beside a plain one of the size that works on a token:
``python -m bireme.bench.cpu_experts``.

Random Q4_K weights. Both kinds go round more layers than a cache holds, and every step has new tokens, so that weights
come from memory as in a model. Each figure is the best of many steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..backends.cpu.ops import CpuOps
from ..backends.cpu.threads import pool
from ..backends.cpu.weights import QuantizedLoader
from ..backends.cuda.kv import KVPool
from ..backends.cuda.rope import RopeTable
from ..models.config import ModelConfig, MoeConfig
from ..models.decoder import FeedForward, load_mlp
from ..models.ggml_types import BY_NAME
from ..models.names import expected_shapes
from ..models.weight import Weight
from .machine import describe, line

HIDDEN = 1024
MOE = MoeConfig(num_experts=64, top_k=8, intermediate_size=512)
LAYERS = 4  # of experts; of plain ones as many as weigh the same
ROWS = (1, 2, 4, 8, 16, 64, 256)
SECONDS = 1.0  # per figure
KIND = "Q4_K"


class Cost(NamedTuple):
    """Microseconds a layer."""

    rows: int
    experts: float
    plain: float

    @property
    def touched(self) -> float:
        """Experts that have tokens, were they drawn evenly, over those of one token."""
        return MOE.num_experts / MOE.top_k * (1 - (1 - MOE.top_k / MOE.num_experts) ** self.rows)


class RandomCheckpoint:
    """A checkpoint of random blocks; matrices of one shape are the same."""

    name, weight_bytes = "random", 1

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._shapes = expected_shapes(config)
        self._made: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}
        self._rng = np.random.default_rng(0)

    def names(self) -> Iterator[str]:
        return iter(self._shapes)

    def weight(self, name: str) -> Weight:
        shape = self._shapes[name]
        if name.endswith("mlp.gate.weight"):
            return Weight(name, shape, "F32", self._rng.standard_normal(shape).astype(np.float32))
        if shape not in self._made:
            block = BY_NAME[KIND]
            raw = self._rng.integers(0, 256, (shape[0], shape[1] // block.block, block.size), dtype=np.uint8)
            raw[..., :4] = np.array([1e-3, 1e-3], np.float16).view(np.uint8)
            self._made[shape] = raw.reshape(shape[0], -1)
        return Weight(name, shape, KIND, self._made[shape])


def model(moe: MoeConfig | None) -> ModelConfig:
    """Of experts, or of plain layers as wide as a token's experts together."""
    count = LAYERS if moe else LAYERS * MOE.num_experts // MOE.top_k
    return ModelConfig("llama", 256, HIDDEN, MOE.top_k * MOE.intermediate_size, count, 1, 1, 8, 8, 1e-5, moe=moe)


def layers(config: ModelConfig) -> list[FeedForward]:
    loader: Any = QuantizedLoader(RandomCheckpoint(config))  # type: ignore[arg-type]
    return [load_mlp(config, index, f"model.layers.{index}.", loader) for index in range(config.num_layers)]


def seconds(ops: CpuOps, parts: Sequence[FeedForward], rows: int) -> float:
    """Of one layer."""
    for part in parts:
        part(ops, torch.randn(rows, HIDDEN))  # kernels are compiled once
    best, end = float("inf"), time.perf_counter() + SECONDS
    while best == float("inf") or time.perf_counter() < end:
        x = torch.randn(rows, HIDDEN)
        start = time.perf_counter()
        for part in parts:
            part(ops, x)
        best = min(best, time.perf_counter() - start)
    return best / len(parts)


def measure(rows: Sequence[int] = ROWS) -> Iterator[Cost]:
    torch.set_num_threads(1)
    config, cpu = model(MOE), torch.device("cpu")
    ops = CpuOps(config, KVPool(config, 1, 4, torch.float32, cpu), RopeTable.build(config.rope, 8, 8, cpu))
    experts, plain = layers(config), layers(model(None))
    for count in rows:
        yield Cost(count, *(1e6 * seconds(ops, parts, count) for parts in (experts, plain)))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bireme.bench.cpu_experts", description=__doc__)
    parser.add_argument("--threads", type=int, help="threads of the CPU's pool")
    pool().resize(parser.parse_args().threads)
    print(line(describe()), f"{pool().threads} threads, {KIND}, {HIDDEN} hidden, {MOE}", sep="\n")
    print(f"{'tokens':>7}{'experts us':>12}{'plain us':>10}{'ratio':>7}{'weights read':>14}")
    for cost in measure():
        ratio = cost.experts / cost.plain
        print(f"{cost.rows:>7}{cost.experts:>12.0f}{cost.plain:>10.0f}{ratio:>7.2f}{cost.touched:>13.1f}x")


if __name__ == "__main__":
    main()
