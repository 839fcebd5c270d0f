"""Which loader, operations and sampler a torch device is served with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...models.config import ModelConfig
from ...models.weight import Checkpoint, Progress
from .ops import TorchOps
from .sampler import Sampler
from .weights import DenseLoader, Loader


@dataclass(frozen=True, slots=True)
class Road:
    """Plain torch in float32, where nothing else is said."""

    loader: Loader
    arithmetic: str = "float32"  # for people: how the linear layers compute
    ops: type[TorchOps] = TorchOps
    sampler: Callable[[int, int, torch.device], Sampler] = Sampler
    quantized: bool = False  # whether the loader keeps quantised weights so: to know what will fit before it loads
    captures: bool = False  # decode steps as graphs, where the device can; ``ops`` must launch alike for each of a size


def road_for(device: torch.device, checkpoint: Checkpoint, progress: Progress | None = None) -> Road:
    """Float32 throughout on a CPU. On a GPU bfloat16 where it has that, by kernels where Triton is."""
    if device.type != "cuda":
        return Road(DenseLoader(checkpoint, torch.float32, device, progress), "float32")
    dtype = gpu_dtype(checkpoint.config, torch.cuda.is_bf16_supported(including_emulation=False))
    arithmetic = str(dtype).removeprefix("torch.")
    if importlib.util.find_spec("triton") is None:  # Windows; plain torch is slow and right
        return Road(DenseLoader(checkpoint, dtype, device, progress), arithmetic)
    from .quantized import PlanarLoader
    from .triton_ops import TritonOps
    from .triton_sampler import TritonSampler

    loader = PlanarLoader(checkpoint, dtype, device, progress)
    return Road(loader, arithmetic, TritonOps, TritonSampler, quantized=True, captures=True)


def gpu_dtype(config: ModelConfig, has_bfloat16: bool) -> torch.dtype:
    """Of matrices and activations. Gemma's residual stream leaves float16's range: 104,049 in the 270M model."""
    if has_bfloat16:
        return torch.bfloat16
    return torch.float32 if config.post_norms else torch.float16
