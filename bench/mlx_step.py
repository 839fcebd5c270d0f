"""Where a step's time goes on MLX: ``python -m bireme.bench.mlx_step``.

Runs whole steps of a real model through the MLX backend: decodes at several numbers of sequences, and prompt chunks.
Each kind of operation is then timed in steps that evaluate one operation after the other; what that costs beyond the
plain step is the price of looking. On a Linux CPU the weights are the file's decoded to float32.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..backends.mlx.library import Array, mx
from ..backends.mlx.ops import MlxOps
from ..backends.mlx.runner import MlxBackend
from ..backends.mlx.step import MlxStep
from ..core.config import EngineConfig
from ..models.checkpoint import open_checkpoint
from ..models.decoder import Layer
from ..models.hub import resolve
from .batches import make_batch
from .machine import describe, line

WARM_UP = 2  # steps that meet new shapes


class TimedOps(MlxOps):
    """``MlxOps`` that, where ``looking`` is set, evaluates each operation as it comes and notes what it took."""

    looking: ClassVar[bool] = False
    spent: ClassVar[dict[str, float]] = defaultdict(float)  # seconds

    def _timed(self, name: str, run: Callable[[], Any]) -> Any:
        if not self.looking:
            return run()
        start = time.perf_counter()
        result = run()
        mx.eval(result)
        self.spent[name] += time.perf_counter() - start
        return result

    def embedding(self, weight: Any, token_ids: Array) -> Array:
        return self._timed("embedding", lambda: MlxOps.embedding(self, weight, token_ids))

    def linear(self, x: Array, weight: Any) -> Array:
        return self._timed("linear layers", lambda: MlxOps.linear(self, x, weight))

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        return self._timed("norms", lambda: MlxOps.rms_norm(self, x, weight, eps))

    def add_rms_norm(self, x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
        normed, total = self._timed("norms", lambda: MlxOps.add_rms_norm(self, x, residual, weight, eps))
        return normed, total

    def rope_and_store(self, qkv: Array, layer: Layer, step: MlxStep) -> Array:
        def run() -> Array:
            q = MlxOps.rope_and_store(self, qkv, layer, step)
            if self.looking:
                mx.eval(self.kv.keys[layer.index], self.kv.values[layer.index])
            return q

        return self._timed("rotation, K/V store", run)

    def attention(self, q: Array, layer: Layer, step: MlxStep) -> Array:
        return self._timed("attention", lambda: MlxOps.attention(self, q, layer, step))

    def swiglu(self, gate_up: Array) -> Array:
        return self._timed("SwiGLU", lambda: MlxOps.swiglu(self, gate_up))

    def take_rows(self, x: Array, index: Array) -> Array:
        return self._timed("rows that sample", lambda: MlxOps.take_rows(self, x, index))


def profile(backend: MlxBackend, sequences: int, new: int, context: int, steps: int) -> dict[str, float]:
    """Median milliseconds: of the plain "step", by operation, and of the step that is "seen" operation by operation."""
    batch = make_batch(sequences, new, context, backend.info.block_size)
    found: dict[str, list[float]] = defaultdict(list)
    for looking in (False, True):
        TimedOps.looking = looking
        for turn in range(steps + WARM_UP):
            TimedOps.spent.clear()
            start = time.perf_counter()
            backend.submit(batch).wait()
            whole = time.perf_counter() - start
            times = {**TimedOps.spent, "seen": whole} if looking else {"step": whole}
            for name, seconds in times.items() if turn >= WARM_UP else ():
                found[name].append(seconds * 1000)
    TimedOps.looking = False
    return {name: statistics.median(values) for name, values in found.items()}


def table(columns: dict[str, dict[str, float]]) -> str:
    """Markdown: a row per operation, a column per kind of step, milliseconds."""
    names = sorted({name for column in columns.values() for name in column} - {"step", "seen"})
    lines = ["| ms | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{c.get(name, 0.0):.1f}" for c in columns.values()) + " |")
    rest = [c["seen"] - sum(v for n, v in c.items() if n in names) for c in columns.values()]
    lines.append("| sampling, building the step, Python | " + " | ".join(f"{each:.1f}" for each in rest) + " |")
    for name, title in (("seen", "all of it, one by one"), ("step", "a plain step")):
        lines.append(f"| {title} | " + " | ".join(f"{c[name]:.1f}" for c in columns.values()) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--context", type=int, default=200, help="tokens of each decoding sequence")
    parser.add_argument("--chunks", type=int, nargs="*", default=[64, 256], help="tokens of prompt chunks")
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args(arguments)
    config = EngineConfig(max_num_seqs=max([1, *asked.sequences]))
    backend = MlxBackend(open_checkpoint(resolve(asked.model)), config, ops=TimedOps)
    columns = {f"{n} decoding": profile(backend, n, 1, asked.context, asked.steps) for n in asked.sequences}
    for count in asked.chunks:
        columns[f"a chunk of {count}"] = profile(backend, 1, count, count, asked.steps)
    backend.close()
    print(line(describe()) + "\n")
    print(table(columns))


if __name__ == "__main__":
    main()
