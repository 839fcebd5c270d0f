"""Which backends the shared tests run over, and their samplers behind one face."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.backends.base import Backend
from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.core.config import EngineConfig
from bireme.core.step import StepMasks
from bireme.models.checkpoint import open_checkpoint

MLX_MISSING = importlib.util.find_spec("mlx") is None
NO_MLX = pytest.mark.skipif(MLX_MISSING, reason="mlx is not installed: pip install 'mlx[cpu]'")
MLX = pytest.param("mlx", marks=[pytest.mark.mlx, NO_MLX])
DEVICES = ["cpu", MLX]
#: The CPU's arithmetic by the GPU's road: captured decode steps, packed inputs, two steps in flight.
GRAPHS = "graphs"


def load(device: str, path: Path, config: EngineConfig) -> Backend:
    """A backend of the model at ``path`` in exact arithmetic: of a device, or GRAPHS."""
    checkpoint = open_checkpoint(path)
    if device != GRAPHS:
        options = BackendOptions(cpu_precision="exact", threads=1) if device == "cpu" else None
        return load_backend(device, checkpoint, config, options)
    import torch
    from fake_gpu import CPU, FakeGpu

    from bireme.backends.cuda.road import Road
    from bireme.backends.cuda.runner import TorchBackend
    from bireme.backends.cuda.weights import DenseLoader

    torch.set_num_threads(1)
    road = Road(DenseLoader(checkpoint, torch.float32, CPU), captures=True)
    return TorchBackend(checkpoint, config, road, FakeGpu(), capture_seconds=0.0)


def new_sampler(device: str, rows: int, vocab: int) -> Any:
    """A backend's own sampler."""
    if device == "mlx":
        from bireme.backends.mlx.sampler import Sampler as MlxSampler

        return MlxSampler(rows, vocab)
    import torch

    from bireme.backends.cuda.sampler import Sampler as TorchSampler

    return TorchSampler(rows, vocab, torch.device("cpu"))


def draw(sampler: Any, logits: Any, rows: Any, positions: Any, masks: StepMasks | None = None) -> Any:
    """What ``sampler.sample`` gives, its arrays as NumPy's."""
    given = np.array(logits, np.float32)
    if type(sampler).__module__.endswith("mlx.sampler"):
        from bireme.backends.mlx.library import mx

        array = mx.array(given)
    else:
        import torch

        array = torch.from_numpy(given)
    sampled = sampler.sample(array, np.array(rows, np.int32), np.array(positions, np.int64), masks)
    found = sampled.logprobs
    if found is not None:
        on_host = (host(array) for array in (found.chosen, found.top_ids, found.top_logprobs))
        found = type(found)(found.asked, *on_host)
    return type(sampled)(host(sampled.tokens), host(sampled.nan), found)


def host(array: Any) -> Any:
    """A torch or MLX array as NumPy's."""
    return array.numpy() if hasattr(array, "numpy") else np.array(array)
