"""What a step on MLX takes of its memory, and ids to step over. Import it only where MLX is installed."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np

from bireme.backends.mlx.library import mx


def ids(count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(count).integers(0, 320, count)]


def extra_bytes(work: Callable[[], object]) -> int:
    """The most memory held at once during ``work`` beyond what was held before it."""
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    mx.synchronize()
    return max(0, mx.get_peak_memory() - before)
