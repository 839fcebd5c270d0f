"""SwiGLU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .variant import Variant

BLOCK = 1024


@triton.jit
def swiglu_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    """Program (t, b): ``silu(gate) * up`` for BLOCK columns of row t."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """As ``TorchOps.swiglu``, for contiguous ``gate_up`` [T, 2 F]; rounded once, at the end."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        swiglu_kernel[(rows, triton.cdiv(width, BLOCK))](gate_up, out, width, BLOCK=BLOCK, num_warps=4)
    return out


def variants() -> list[Variant]:
    return [Variant("swiglu", swiglu_kernel, {"gate_up": "*bf16", "out": "*bf16", "width": "i32"}, {"BLOCK": BLOCK})]
