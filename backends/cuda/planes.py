"""A checkpoint's weight as planes, whatever quantised it."""

from __future__ import annotations

import torch

from ...models.weight import Weight
from .ggml_planes import TYPES, ggml_planes
from .grouped_planes import grouped, grouped_planes
from .plane_form import Planes


def has_planes(weight: Weight) -> bool:
    """Whether ``planes`` knows the weight's type."""
    return weight.kind in TYPES or grouped(weight)


def planes(weight: Weight, device: torch.device) -> Planes:
    """Take ``weight``, for which ``has_planes``, apart on ``device``, some rows at a time."""
    return ggml_planes(weight, device) if weight.kind in TYPES else grouped_planes(weight, device)
