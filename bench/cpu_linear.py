"""Speed of the CPU's quantised linear layers beside torch's float32: ``python -m bireme.bench.cpu_linear``.

Every figure is the best of many short runs, since the machine may be shared. "Cold" runs go
round so many copies of the weights that none is still in a cache, as in a model whose layers follow each other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants

from ..backends.cpu.qlinear import QuantizedLinear
from ..backends.cpu.threads import pool
from ..models.weight import Weight
from .machine import describe, line

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576), (2048, 2048))  # (outputs, inputs)
ROWS = (1, 2, 4, 8, 16, 64, 256)
COLD_BYTES = 128 << 20
SECONDS = 0.2  # per figure


class Speed(NamedTuple):
    """One shape at one number of rows."""

    micros: float
    gflops: float  # a multiplication and an addition count two
    gigabytes: float  # of weights read per second


def random_weight(kind: str, outputs: int, inputs: int) -> Weight:
    values = np.random.default_rng(0).normal(0, 0.05, (outputs, inputs)).astype(np.float32)
    return Weight("w", values.shape, kind, quants.quantize(values, GGMLQuantizationType[kind]))


def best_of(runs: Sequence[Callable[[], object]]) -> float:
    """Seconds of the fastest call, going round ``runs`` for at least ``SECONDS`` and each once."""
    best, end, turn = float("inf"), time.perf_counter() + SECONDS, 0
    while turn < len(runs) or time.perf_counter() < end:
        start = time.perf_counter()
        runs[turn % len(runs)]()
        best = min(best, time.perf_counter() - start)
        turn += 1
    return best


def speed(seconds: float, outputs: int, inputs: int, rows: int, nbytes: int) -> Speed:
    return Speed(seconds * 1e6, 2e-9 * outputs * inputs * rows / seconds, nbytes * 1e-9 / seconds)


class Contest:
    """Our layer and torch's of one shape, in as many copies as it takes to outgrow the caches."""

    def __init__(self, kind: str, outputs: int, inputs: int, cold: bool) -> None:
        weight = random_weight(kind, outputs, inputs)
        layer, dense = QuantizedLinear([weight]), torch.from_numpy(weight.dequantize())
        copies = COLD_BYTES // layer.nbytes if cold else 0
        self.layers = [layer, *(QuantizedLinear([weight]) for _ in range(copies))]
        self.matrices = [dense, *(dense.clone() for _ in range(COLD_BYTES // dense.nbytes if cold else 0))]

    def measure(self, rows: int) -> tuple[Speed, Speed]:
        """Ours and torch's."""
        outputs, inputs = self.layers[0].shape
        x = torch.randn(rows, inputs)
        ours = best_of([partial(layer, x) for layer in self.layers])
        theirs = best_of([partial(torch.nn.functional.linear, x, matrix) for matrix in self.matrices])
        return (
            speed(ours, outputs, inputs, rows, self.layers[0].nbytes),
            speed(theirs, outputs, inputs, rows, self.matrices[0].nbytes),
        )


def figures(kinds: Sequence[str], rows: Sequence[int], quick: bool = False) -> Iterator[dict[str, object]]:
    """Every shape (``quick``: the two smallest) of every kind at each number of rows, warm; one flat record each."""
    for kind in kinds:
        for outputs, inputs in SHAPES[:2] if quick else SHAPES:
            contest = Contest(kind, outputs, inputs, cold=False)
            for count in rows:
                ours, theirs = contest.measure(count)
                yield {
                    "kernel": f"linear {kind} {outputs} x {inputs}, {count} rows",
                    "us": ours.micros,
                    "torch us": theirs.micros,
                    "GFLOP/s": ours.gflops,
                    "GB/s": ours.gigabytes,
                }


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantised linear layers on the CPU beside torch's float32 ones")
    parser.add_argument("--kinds", default="Q4_1,Q4_0,Q8_0", help="GGML types, by comma")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="rows of x, by comma")
    parser.add_argument("--threads", type=int, help="threads for both (default: one per CPU)")
    parser.add_argument("--cold", action="store_true", help="read weights from memory, not from a cache")
    args = parser.parse_args()
    pool().resize(args.threads)
    torch.set_num_threads(pool().threads)
    print(line(describe()))
    print(f"{pool().threads} threads; times are the best of many runs")
    print(f"{'kind':6} {'N x K':>12} {'M':>4} | {'us':>8} {'GFLOP/s':>8} {'GB/s':>6} | torch {'us':>8} {'GFLOP/s':>8}")
    for kind in args.kinds.split(","):
        for outputs, inputs in SHAPES:
            contest = Contest(kind, outputs, inputs, args.cold)
            for rows in map(int, args.rows.split(",")):
                ours, theirs = contest.measure(rows)
                print(
                    f"{kind:6} {outputs:>5} x {inputs:<4} {rows:>4} | {ours.micros:8.1f} {ours.gflops:8.0f}"
                    f" {ours.gigabytes:6.1f} |       {theirs.micros:8.1f} {theirs.gflops:8.0f}"
                )


if __name__ == "__main__":
    main()
