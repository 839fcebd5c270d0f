"""MLX backends over tiny models, with every choice that the backend has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backend_kinds import MLX_MISSING
from steps import Driver

if MLX_MISSING:
    collect_ignore_glob = ["test_*.py"]  # tests/backends says so by skipping


@pytest.fixture
def on_mlx() -> Iterator[Callable[..., Driver]]:
    """``on_mlx(path, options={}, max_in_flight=1, **EngineConfig fields)``: a driver over an MLX backend."""
    from bireme.backends.mlx.runner import MlxBackend
    from bireme.backends.options import BackendOptions
    from bireme.core.config import EngineConfig
    from bireme.models.checkpoint import open_checkpoint

    closing: list[Any] = []

    def load(
        path: Path, options: dict[str, Any] | None = None, max_in_flight: int | None = None, **config: Any
    ) -> Driver:
        settings = EngineConfig(**{"max_num_seqs": 8, "kv_cache_memory": 16 << 20, **config})
        checkpoint = open_checkpoint(path)
        chosen = BackendOptions(**(options or {}))
        backend = MlxBackend(checkpoint, settings, chosen, max_in_flight=max_in_flight)
        closing.append((backend, checkpoint))
        return Driver(backend)

    yield load
    for backend, checkpoint in closing:
        backend.close()
        checkpoint.close()
