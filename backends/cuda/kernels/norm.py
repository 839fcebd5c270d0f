"""RMSNorm, with or without the residual's addition before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .variant import Variant


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per row: ``out = norm(x [+ residual]) * weight``; ``total`` takes the sum when ADD."""
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row + column, mask=inside, other=0.0)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        other = tl.load(residual + row + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + row + column, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    tl.store(out + row + column, (wide * scale * gain).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As ``TorchOps.rms_norm``, for contiguous ``x`` [..., D]."""
    out, width = torch.empty_like(x), x.shape[-1]
    if x.numel():
        _launch(x, x, weight, out, out, width, eps, False)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``TorchOps.add_rms_norm``, for contiguous ``x`` and ``residual`` [T, D]."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    if x.numel():
        _launch(x, residual, weight, out, total, x.shape[-1], eps, True)
    return out, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    width: int,
    eps: float,
    add: bool,
) -> None:
    block = triton.next_power_of_2(width)
    rms_norm_kernel[(x.numel() // width,)](
        x, residual, weight, out, total, width, eps, ADD=add, BLOCK=block, num_warps=warps(block)
    )


def warps(block: int) -> int:
    """Sixteen elements a thread: two 16-byte loads of 16-bit numbers."""
    return min(max(block // 512, 1), 16)


def variants() -> list[Variant]:
    types = dict.fromkeys(("x", "residual", "weight", "out", "total"), "*bf16") | {"width": "i32", "eps": "fp32"}
    return [
        Variant(f"rms_norm[{width}{', add' if add else ''}]", rms_norm_kernel, types,
                {"ADD": add, "BLOCK": triton.next_power_of_2(width)}, warps(triton.next_power_of_2(width)))
        for width in (1024, 4096) for add in (False, True)
    ]  # fmt: skip
