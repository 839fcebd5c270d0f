"""Which instructions a device has."""

from __future__ import annotations

from functools import cache

import torch


@cache
def architecture(device: torch.device) -> int:
    """The compute capability of ``device``, as one of those that variants are compiled for; 80 for a CPU."""
    if device.type != "cuda":
        return 80
    major, _ = torch.cuda.get_device_capability(device)
    return {9: 90, 10: 100, 12: 120}.get(major, 80)


def readable(pool: torch.Tensor) -> torch.Tensor:
    """``pool`` as a kernel may take it: e4m3 as bytes where the processor has no conversion for it."""
    if pool.dtype == torch.float8_e4m3fn and architecture(pool.device) < 90:
        return pool.view(torch.uint8)
    return pool
