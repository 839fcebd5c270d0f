"""Every backend that can run here, each put to the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backend_kinds import DEVICES
from steps import Driver

from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The exact CPU backend, and MLX."""
    return str(request.param)


@pytest.fixture
def drive(device: str) -> Iterator[Callable[..., Driver]]:
    """``drive(path, **EngineConfig fields)``: a driver over a backend of that model."""
    closing = []

    def load(path: Path, **config: Any) -> Driver:
        settings = EngineConfig(**{"max_num_seqs": 8, "kv_cache_memory": 16 << 20, **config})
        checkpoint = open_checkpoint(path)
        backend = load_backend(device, checkpoint, settings, BackendOptions(cpu_precision="exact", threads=1))
        closing.append((backend, checkpoint))
        return Driver(backend)

    yield load
    for backend, checkpoint in closing:
        backend.close()
        checkpoint.close()
