"""Tiny models, built once per session, and backends over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from steps import Driver
from tiny_models import TinyModel, make_tiny

from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """``tiny(variant)``: a tiny random model with its two kinds of file."""
    folder = tmp_path_factory.mktemp("tiny")
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = make_tiny(name, folder)
        return made[name]

    return make


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    """``drive(path, **EngineConfig fields)``: a driver over the exact CPU backend of that model."""
    closing = []

    def load(path: Path, **config: Any) -> Driver:
        settings = EngineConfig(**{"max_num_seqs": 8, "kv_cache_memory": 16 << 20, **config})
        checkpoint = open_checkpoint(path)
        backend = load_backend("cpu", checkpoint, settings, BackendOptions(cpu_precision="exact", threads=1))
        closing.append((backend, checkpoint))
        return Driver(backend)

    yield load
    for backend, checkpoint in closing:
        backend.close()
        checkpoint.close()
