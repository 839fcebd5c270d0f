"""Rotary embedding tables on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...models.config import RopeConfig
from ...models.rope import frequencies


@dataclass(frozen=True, slots=True)
class RopeTable:
    """``cos`` and ``sin`` by position: float32 [positions, rotary_dim / 2], the magnitude already in them."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def build(cls, rope: RopeConfig, head_dim: int, positions: int, device: torch.device) -> RopeTable:
        """Angles are taken in float64: float32 would lose whole degrees at position 100,000."""
        inverse, magnitude = frequencies(rope, head_dim)
        angles = np.arange(positions, dtype=np.float64)[:, None] * inverse
        cos, sin = (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)
        return cls(torch.from_numpy(cos).to(device), torch.from_numpy(sin).to(device))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first dims of ``x`` [T, H, hd] by ``cos``, ``sin`` [T, r / 2], half-split layout, in float32."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)
