"""Which device to run on, and the backend for it."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Collection
from typing import TYPE_CHECKING

import psutil

from ..core.config import EngineConfig
from ..models.weight import Checkpoint, Progress
from .base import Backend
from .options import BackendOptions
from .uses import check_options

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "mlx", "cuda", "cpu")


class DeviceUnavailableError(RuntimeError):
    """The device asked for can't be used here; the message says what to do."""


def resolve_device(device: str = "auto") -> str:
    """The device's real name: ``auto`` is mlx on Apple silicon, cuda where torch sees an NVIDIA GPU, else cpu.

    Raises:
        ValueError: no such device.
        DeviceUnavailableError: the device is known and can't be used on this machine.
    """
    if device not in DEVICES:
        raise ValueError(f"device is {device!r}; it must be one of {', '.join(DEVICES)}")
    if device == "auto":
        if platform.system() == "Darwin" and platform.machine() == "arm64" and _mlx_problem() is None:
            return "mlx"
        return "cuda" if _cuda_problem() is None else "cpu"
    problem = {"mlx": _mlx_problem, "cuda": _cuda_problem, "cpu": _torch_problem}[device]()
    if problem is not None:
        raise DeviceUnavailableError(f"device {device!r} can't be used: {problem}")
    return device


def load_backend(
    device: str,
    checkpoint: Checkpoint,
    config: EngineConfig,
    options: BackendOptions | None = None,
    progress: Progress | None = None,
    given: Collection[str] = (),
) -> Backend:
    """Load ``checkpoint`` onto ``device`` (any name ``resolve_device`` takes), on the calling thread.

    ``given``: names of options that were named, with whatever value, so that one of no use is said; ``uses.py``.

    Raises:
        ValueError, DeviceUnavailableError: as ``resolve_device``; ValueError also when the KV cache doesn't fit, or the
            device can't do what an option asks.
        CheckpointError: the weights can't be used.
    """
    options = options or BackendOptions()
    resolved = resolve_device(device)
    check_options(resolved, config, options, given)
    if resolved == "mlx":
        from .mlx.runner import MlxBackend

        return MlxBackend(checkpoint, config, options, progress)
    problem = _torch_problem()
    if problem is not None:
        raise DeviceUnavailableError(f"device {resolved!r} can't be used: {problem}")
    import torch

    if options.tensor_parallel > 1:
        return _parallel(resolved, checkpoint, config, options, progress)
    threads = options.threads or usable_cores()
    if resolved == "cpu" and options.cpu_precision == "fast":
        torch.set_num_threads(1)  # the kernels have their own pool; torch's threads would spin in its way
        return _fast_cpu(checkpoint, config, threads, progress)
    torch.set_num_threads(threads)
    return _torch(torch.device(resolved), checkpoint, config, progress)


def usable_cores() -> int:
    """Physical cores, as far as this process may run on them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def _torch(device: torch.device, checkpoint: Checkpoint, config: EngineConfig, progress: Progress | None) -> Backend:
    from .cuda.road import road_for
    from .cuda.runner import TorchBackend

    return TorchBackend(checkpoint, config, road_for(device, checkpoint, progress))


def _parallel(
    device: str, checkpoint: Checkpoint, config: EngineConfig, options: BackendOptions, progress: Progress | None
) -> Backend:
    import torch

    from .cuda.tensor_parallel.backend import ParallelBackend
    from .cuda.tensor_parallel.workers import Workers

    size = options.tensor_parallel
    if device == "cuda" and size > (there := torch.cuda.device_count()):
        raise ValueError(f"tensor_parallel is {size}, and PyTorch sees {there} GPU{'s' if there != 1 else ''} here")
    if device == "cpu" and options.cpu_precision != "exact":
        raise ValueError(
            f"tensor_parallel is {size}; on a CPU it works with cpu_precision 'exact' only, to try it out: one process "
            "uses every core as it is"
        )
    threads = None
    if device == "cpu" or options.threads is not None:
        threads = max(1, (options.threads or usable_cores()) // size)
    if threads is not None:
        torch.set_num_threads(threads)
    return ParallelBackend(checkpoint, config, lambda: Workers(size, device, threads), size, progress)


def _fast_cpu(checkpoint: Checkpoint, config: EngineConfig, threads: int, progress: Progress | None) -> Backend:
    from .cpu.ops import CpuOps
    from .cpu.threads import pool
    from .cpu.weights import QuantizedLoader
    from .cuda.road import Road
    from .cuda.runner import TorchBackend

    pool().resize(threads)
    loader = QuantizedLoader(checkpoint, progress)
    backend = TorchBackend(checkpoint, config, Road(loader, "int8 activations", ops=CpuOps))
    loader.report()
    return backend


def _torch_problem() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed; install bireme[cpu], or bireme[cuda] for an NVIDIA GPU"
    return None


def _cuda_problem() -> str | None:
    problem = _torch_problem()
    if problem is not None:
        return problem
    import torch

    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA; install bireme[cuda], or use --device cpu"
    return "PyTorch sees no NVIDIA GPU (does nvidia-smi list one?); use --device cpu"


def _mlx_problem() -> str | None:
    if importlib.util.find_spec("mlx") is None:
        return "MLX is not installed; install bireme[mlx], or use --device cpu"
    return None
