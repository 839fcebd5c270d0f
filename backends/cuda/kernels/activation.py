"""Gated activations: SwiGLU, and GeGLU in both of its forms (Shazeer, arXiv:2002.05202)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ....models.gelu import GELU_CUBE, GELU_SLOPE
from .variant import Variant

BLOCK = 1024
#: The function of the gate, by number.
SILU, GELU, GELU_TANH = range(3)
TWICE_SLOPE, CUBE = tl.constexpr(2 * GELU_SLOPE), tl.constexpr(GELU_CUBE)


@triton.jit
def gated_kernel(gate_up, out, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """Program (t, b): ``activation(gate) * up`` for BLOCK columns of row t."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == 0:
        active = gate / (1 + tl.exp(-gate))
    elif ACTIVATION == 1:
        active = gate * 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    else:  # (1 + tanh(z)) / 2 is the logistic function of 2 z, here without exponentials that overflow
        twice = TWICE_SLOPE * (gate + CUBE * gate * gate * gate)
        small = tl.exp(-tl.abs(twice))
        active = gate * tl.where(twice > 0, 1.0, small) / (1 + small)
    tl.store(out + row * width + column, (active * up).to(out.dtype.element_ty), mask=inside)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """As ``TorchOps.swiglu``, for contiguous ``gate_up`` [T, 2 F]; rounded once, at the end."""
    return _gated(gate_up, SILU)


def geglu(gate_up: torch.Tensor, approximate: Literal["none", "tanh"]) -> torch.Tensor:
    """As ``geglu_reference``, for contiguous ``gate_up``; rounded once, at the end."""
    return _gated(gate_up, GELU if approximate == "none" else GELU_TANH)


def geglu_reference(gate_up: torch.Tensor, approximate: Literal["none", "tanh"]) -> torch.Tensor:
    """``gelu(gate) * up`` of [T, 2 F], gate first: [T, F]. "tanh" is Gemma's form, "none" the exact one with erf."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate=approximate) * up


def _gated(gate_up: torch.Tensor, activation: int) -> torch.Tensor:
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = rows, triton.cdiv(width, BLOCK)
        gated_kernel[grid](gate_up, out, width, ACTIVATION=activation, BLOCK=BLOCK, num_warps=4)
    return out


def variants() -> list[Variant]:
    types = {"gate_up": "*bf16", "out": "*bf16", "width": "i32"}
    names = {"swiglu": SILU, "geglu": GELU, "geglu[tanh]": GELU_TANH}
    return [
        Variant(name, gated_kernel, types, {"ACTIVATION": activation, "BLOCK": BLOCK})
        for name, activation in names.items()
    ]
