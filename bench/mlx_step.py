"""Where a step's time goes on MLX: ``python -m bireme.bench.mlx_step``.

Runs whole steps of a real model through the MLX backend: decodes at several numbers of sequences, and prompt chunks.
Each kind of operation is then timed in steps that evaluate one operation after the other; what that costs beyond the
plain step is the price of looking. On a Linux CPU the weights are the file's decoded to float32.
"""

from __future__ import annotations

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
from . import step_times
from .machine import describe, line


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

    def embedding(self, weight: Any, token_ids: Array, scale: float = 1.0) -> Array:
        return self._timed("embedding", lambda: MlxOps.embedding(self, weight, token_ids, scale))

    def linear(self, x: Array, weight: Any) -> Array:
        return self._timed("linear layers", lambda: MlxOps.linear(self, x, weight))

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        return self._timed("norms", lambda: MlxOps.rms_norm(self, x, weight, eps))

    def add_rms_norm(
        self, x: Array, residual: Array, weight: Array, eps: float, own: Array | None = None
    ) -> tuple[Array, Array]:
        normed, total = self._timed("norms", lambda: MlxOps.add_rms_norm(self, x, residual, weight, eps, own))
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

    def geglu(self, gate_up: Array) -> Array:
        return self._timed("GeGLU", lambda: MlxOps.geglu(self, gate_up))

    def take_rows(self, x: Array, index: Array) -> Array:
        return self._timed("rows that sample", lambda: MlxOps.take_rows(self, x, index))


def _look(looking: bool) -> None:
    TimedOps.looking = looking


def measure(arguments: Sequence[str] | None = None) -> dict[str, step_times.Column]:
    """As the command's ``arguments`` ask."""
    parser = step_times.parser(__doc__, sequences=[1, 4, 8], context=200, chunks=[64, 256], steps=10)
    asked = parser.parse_args(arguments)
    config = EngineConfig(max_num_seqs=max([1, *asked.sequences]))
    backend = MlxBackend(open_checkpoint(resolve(asked.model)), config, ops=TimedOps)
    try:
        return step_times.profile(backend, TimedOps.spent, asked, _look)
    finally:
        backend.close()


def main(arguments: Sequence[str] | None = None) -> None:
    columns = measure(arguments)
    print(line(describe()) + "\n")
    print(step_times.table(columns))


if __name__ == "__main__":
    main()
