"""``python -m bireme.bench.cpu_attention``: what a decoder step costs outside its linear layers, beside plain torch.

Keys and values rotate through as many layers as the model has, so that they come from memory as in a real step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ..backends.cpu.ops import CpuOps
from ..backends.cuda.kv import KVPool
from ..backends.cuda.ops import TorchOps
from ..backends.cuda.rope import RopeTable
from ..backends.cuda.step import TorchStep
from ..models.config import ModelConfig
from ..models.decoder import GatedMlp, Layer
from .batches import make_batch

#: SmolLM2-135M.
CONFIG = ModelConfig("llama", 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5)
BLOCK = 16

#: (sequences, new tokens each, context each with them)
CASES = (
    (1, 1, 16),
    (1, 1, 300),
    (1, 1, 1000),
    (1, 1, 8000),
    (4, 1, 300),
    (16, 1, 300),
    (64, 1, 300),
    (1, 128, 1000),
    (1, 256, 256),
    (1, 1000, 1000),
)


class Case:
    """One shape of step, over a pool that ``kinds`` of Ops share."""

    def __init__(self, sequences: int, new: int, context: int, layers: int) -> None:
        batch = make_batch(sequences, new, context, BLOCK)
        config = replace(CONFIG, num_layers=layers)
        cpu = torch.device("cpu")
        self.kv = KVPool(config, batch.block_tables.size, BLOCK, CpuOps.kept, cpu)
        for pool in (*self.kv.keys, *self.kv.values):
            pool.normal_()
        rope = RopeTable.build(config.rope, config.head_dim, context, cpu)
        self.ops: tuple[TorchOps, TorchOps] = CpuOps(config, self.kv, rope), TorchOps(config, self.kv, rope)
        self.step = TorchStep.build(batch, torch.zeros(sequences, dtype=torch.int64), BLOCK)
        mlp = GatedMlp(None, None)
        self.layers = [Layer(i, None, 0.125, 1e-5, None, None, None, None, None, None, mlp) for i in range(layers)]
        tokens, heads = sequences * new, config.num_heads
        self.x = torch.randn(tokens, config.hidden_size)
        self.weight = torch.ones(config.hidden_size)
        self.qkv = torch.randn(tokens, (heads + 2 * config.num_kv_heads) * config.head_dim)
        self.gate_up = torch.randn(tokens, 2 * config.intermediate_size)
        self.q = torch.randn(tokens, heads, config.head_dim)

    def work(self, ops: TorchOps) -> dict[str, Callable[[Layer], object]]:
        """What one layer does, by name."""
        return {
            "attention": lambda layer: ops.attention(self.q, layer, self.step),
            "rope_and_store": lambda layer: ops.rope_and_store(self.qkv, layer, self.step),
            "2 add_rms_norm": lambda layer: [ops.add_rms_norm(self.x, self.x, self.weight, 1e-5) for _ in range(2)],
            "swiglu": lambda layer: ops.swiglu(self.gate_up),
        }


def per_layer(run: Callable[[Layer], object], layers: list[Layer], seconds: float) -> float:
    """Microseconds a layer, the best of the passes that fit into ``seconds`` (three at least)."""
    best, start, passes = float("inf"), time.perf_counter(), 0
    while passes < 3 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        for layer in layers:
            run(layer)
        best, passes = min(best, time.perf_counter() - begin), passes + 1
    return best / len(layers) * 1e6


def figures(seconds: float, quick: bool = False) -> Iterator[dict[str, object]]:
    """Microseconds a layer of every case (``quick``: the two smallest) and operation, ours and torch's; one flat
    record each."""
    for sequences, new, context in CASES[:2] if quick else CASES:
        layers = max(2, min(CONFIG.num_layers, 400_000 // (sequences * context)))
        case = Case(sequences, new, context, layers)
        for name in case.work(case.ops[0]):
            ours, theirs = (per_layer(case.work(ops)[name], case.layers, seconds) for ops in case.ops)
            what = f"{name}, {sequences} x {new} new tokens, context {context}"
            yield {"kernel": what, "us": ours, "torch us": theirs}


def report(sequences: int, new: int, context: int, seconds: float) -> None:
    layers = max(2, min(CONFIG.num_layers, 400_000 // (sequences * context)))
    case = Case(sequences, new, context, layers)
    print(f"\n{sequences} x {new} new tokens, context {context}: us per layer, kernel / torch")
    sums = [0.0, 0.0]
    for name in case.work(case.ops[0]):
        times = [per_layer(case.work(ops)[name], case.layers, seconds) for ops in case.ops]
        sums = [total + own for total, own in zip(sums, times, strict=True)]
        print(f"  {name:15} {times[0]:10.1f} / {times[1]:10.1f}")
    print(f"  {CONFIG.num_layers} layers      {sums[0] * 0.03:8.2f} ms / {sums[1] * 0.03:8.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="time per measurement")
    seconds = parser.parse_args().seconds
    for case in CASES:
        report(*case, seconds)


if __name__ == "__main__":
    main()
