"""Build an engine from its specification; runs in the engine process, on the thread that will own the device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from .settings import EngineSpec

if TYPE_CHECKING:
    from ..core.engine import Engine

Progress = Callable[[int, int], None]
Loader = Callable[[EngineSpec, Progress], "Engine"]


def find_loader(path: str) -> Loader:
    """The function that ``module:name`` means."""
    module, _, name = path.partition(":")
    return cast(Loader, getattr(importlib.import_module(module), name))


def load_engine(spec: EngineSpec, progress: Progress) -> Engine:
    """Open the checkpoint at ``spec.model`` and load it onto the device.

    Raises:
        ValueError: the files or settings can't be used (``CheckpointError`` and the like).
    """
    from ..backends.options import BackendOptions
    from ..backends.select import load_backend, resolve_device
    from ..core.engine import Engine
    from ..models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(spec.model)
    options = BackendOptions(cpu_precision=spec.cpu_precision, threads=spec.threads)
    backend = load_backend(resolve_device(spec.device), checkpoint, spec.config, options, progress)
    return Engine(backend, spec.config)
