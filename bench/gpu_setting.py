"""What every section of the GPU benchmark is told: the device, the sizes, and how a figure is written down."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..backends.cuda.ops import TorchOps
from ..backends.cuda.road import Road
from ..backends.cuda.runner import TorchBackend
from ..backends.cuda.sampler import Sampler
from ..core.config import EngineConfig
from .gpu_models import checkpoint, loader
from .gpu_time import Timer


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    section: str
    what: str
    value: float
    unit: str
    share: float | None = None  # of ``of``: what would be the most
    of: str = ""
    note: str = ""

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Setting:
    """``tiny`` replaces every model and length by the least that runs each line; for CPUs."""

    device: torch.device
    tiny: bool = False
    quick: bool = False
    seconds: float = field(init=False)  # a figure's

    def __post_init__(self) -> None:
        self.seconds = 0.0 if self.tiny else 0.1 if self.quick else 0.3

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def kernels(self) -> bool:
        """Whether Triton's kernels can run: on a GPU, or in its interpreter."""
        there = importlib.util.find_spec("triton") is not None
        return there and (self.on_gpu or os.environ.get("TRITON_INTERPRET") == "1")

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.on_gpu else torch.float32

    @cached_property
    def timer(self) -> Timer:
        return Timer(self.device, self.seconds)

    @cached_property
    def bandwidth(self) -> float:
        """Bytes per second of the device's own copy."""
        return self.timer.copy_bandwidth(1 << 20 if self.tiny else 1 << 30)

    def model(self, name: str) -> str:
        return "tiny" if self.tiny else name

    def ops(self) -> type[TorchOps]:
        """Our kernels, where they can run."""
        if not self.kernels:
            return TorchOps
        from ..backends.cuda.triton_ops import TritonOps

        return TritonOps

    def backend(self, model: str, quantized: bool, config: EngineConfig) -> TorchBackend:
        """``model`` with random weights, by the road that serves; between quantised products a CPU takes plain torch,
        for the interpreter is slow."""
        torch.manual_seed(0)
        sampler: type[Sampler] = Sampler
        if self.on_gpu and self.kernels:
            from ..backends.cuda.triton_sampler import TritonSampler

            sampler = TritonSampler
        source = checkpoint(self.model(model), quantized)
        weights = loader(source, quantized, self.dtype, self.device)
        road = Road(
            weights,
            str(self.dtype).removeprefix("torch."),
            ops=self.ops() if self.on_gpu else TorchOps,
            sampler=sampler,
            quantized=quantized,
            captures=self.on_gpu and self.kernels,
        )
        return TorchBackend(source, config, road)
