"""Every backend that can run here, each put to the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backend_kinds import DEVICES, load
from steps import Driver

from bireme.core.config import EngineConfig


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The exact CPU backend, and MLX."""
    return str(request.param)


@pytest.fixture
def drive(device: str) -> Iterator[Callable[..., Driver]]:
    """``drive(path, **EngineConfig fields)``: a driver over a backend of that model."""
    closing = []

    def make(path: Path, **config: Any) -> Driver:
        settings = EngineConfig(**{"max_num_seqs": 8, "kv_cache_memory": 16 << 20, **config})
        closing.append(load(device, path, settings))
        return Driver(closing[-1])

    yield make
    for backend in closing:
        backend.close()
