"""Which device to run on, and the backend for it."""

from __future__ import annotations

import importlib.util
import os
import platform
from typing import TYPE_CHECKING

import psutil

from ..core.config import EngineConfig
from ..models.weight import Checkpoint, Progress
from .base import Backend
from .options import BackendOptions

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "mlx", "cuda", "cpu")
#: What the KV cache may keep on a CPU, which computes no faster with fp8 than with int8.
CPU_KV_CACHE_DTYPES = ("auto", "int8")


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
) -> Backend:
    """Load ``checkpoint`` onto ``device`` (any name ``resolve_device`` takes), on the calling thread.

    Raises:
        ValueError, DeviceUnavailableError: as ``resolve_device``; ValueError also when the KV cache doesn't fit.
        CheckpointError: the weights can't be used.
    """
    options = options or BackendOptions()
    resolved = resolve_device(device)
    if resolved == "mlx":
        from .mlx.runner import MlxBackend

        return MlxBackend(checkpoint, config, options, progress)
    problem = _torch_problem()
    if problem is not None:
        raise DeviceUnavailableError(f"device {resolved!r} can't be used: {problem}")
    import torch

    if resolved == "cpu" and config.kv_cache_dtype not in CPU_KV_CACHE_DTYPES:
        known = ", ".join(CPU_KV_CACHE_DTYPES)
        raise ValueError(f"kv_cache_dtype is {config.kv_cache_dtype!r}; on the CPU it must be one of {known}")
    threads = options.threads or usable_cores()
    if resolved == "cpu" and options.cpu_precision == "fast":
        torch.set_num_threads(1)  # the kernels have their own pool; torch's threads would spin in its way
        return _fast_cpu(checkpoint, config, threads, progress)
    torch.set_num_threads(threads)
    return _dense(torch.device(resolved), checkpoint, config, progress)


def usable_cores() -> int:
    """Physical cores, as far as this process may run on them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def _dense(device: torch.device, checkpoint: Checkpoint, config: EngineConfig, progress: Progress | None) -> Backend:
    import torch

    from .cuda.runner import TorchBackend
    from .cuda.weights import DenseLoader

    if device.type == "cuda":
        return _cuda(device, checkpoint, config, progress)
    loader = DenseLoader(checkpoint, torch.float32, device, progress)
    return TorchBackend(checkpoint, config, loader, arithmetic="float32")


def _cuda(device: torch.device, checkpoint: Checkpoint, config: EngineConfig, progress: Progress | None) -> Backend:
    import torch

    from .cuda.runner import TorchBackend
    from .cuda.weights import DenseLoader

    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    arithmetic = str(dtype).removeprefix("torch.")
    if importlib.util.find_spec("triton") is None:  # Windows; plain torch is slow and right
        return TorchBackend(checkpoint, config, DenseLoader(checkpoint, dtype, device, progress), arithmetic=arithmetic)
    from .cuda.quantized import PlanarLoader
    from .cuda.triton_ops import TritonOps
    from .cuda.triton_sampler import TritonSampler

    loader = PlanarLoader(checkpoint, dtype, device, progress)
    return TorchBackend(
        checkpoint,
        config,
        loader,
        ops=TritonOps,
        sampler=TritonSampler,
        arithmetic=arithmetic,
        quantized=True,
        captures=True,
    )


def _fast_cpu(checkpoint: Checkpoint, config: EngineConfig, threads: int, progress: Progress | None) -> Backend:
    from .cpu.ops import CpuOps
    from .cpu.threads import pool
    from .cpu.weights import QuantizedLoader
    from .cuda.runner import TorchBackend

    pool().resize(threads)
    loader = QuantizedLoader(checkpoint, progress)
    return TorchBackend(checkpoint, config, loader, ops=CpuOps, arithmetic="int8 activations")


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
