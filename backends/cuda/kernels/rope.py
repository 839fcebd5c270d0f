"""From the projection's output to attention's input: split, norm q and k, rotate, store k and v. One launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..kv import LARGEST
from .e4m3 import narrow
from .variant import Variant

HEADS = 4  # heads a program takes: few enough that one token's heads still spread over many programs


@triton.jit
def _quantise(x, LARGEST: tl.constexpr):
    """Codes (int8, or e4m3 in uint8) [R, BLOCK] and float32 scales [R, 1] of the rows of x, as ``kv.quantise``."""
    wide = x.to(tl.float32)
    most = tl.max(tl.where(wide == wide, tl.abs(wide), float("inf")), 1)[:, None]
    scale = tl.maximum(tl.div_rn(most, tl.full(most.shape, LARGEST, tl.float32)), 1.1754943508222875e-38)
    finite = most < float("inf")
    wide = tl.where(finite, wide, 0.0)
    codes = tl.div_rn(wide, tl.broadcast_to(scale, wide.shape))
    scale = tl.where(finite, scale, float("nan"))
    if LARGEST == 127:
        return (codes + 12582912.0 - 12582912.0).to(tl.int8), scale  # 1.5 * 2^23: to even
    else:
        return narrow(codes), scale


@triton.jit
def rope_and_store_kernel(
    qkv, q_out, keys, values, key_scales, value_scales, q_norm, k_norm, cos, sin, positions, slots, eps,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    LARGEST: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (t, h): heads ``h * HEADS`` and on of token t, whichever of q, k and v they are.

    An element meets its partner (HALF further on or back) by a second load, which the L1 cache answers.
    """
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dim = tl.arange(0, BLOCK)[None, :]
    is_q = head < Q_HEADS
    inside = (head < Q_HEADS + 2 * KV_HEADS) & (dim < DIM)
    partner = tl.where(dim < HALF, dim + HALF, tl.where(dim < 2 * HALF, dim - HALF, dim))
    row = qkv + token * (Q_HEADS + 2 * KV_HEADS) * DIM + head * DIM
    given = tl.load(row + dim, mask=inside, other=0.0)
    value, other = given.to(tl.float32), tl.load(row + partner, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, 1) / DIM + eps)[:, None]
        gain_q, gain_k = (
            tl.load(q_norm + dim, mask=dim < DIM, other=0.0),
            tl.load(k_norm + dim, mask=dim < DIM, other=0.0),
        )
        value = value * scale * tl.where(is_q, gain_q, gain_k).to(tl.float32)
        gain_q, gain_k = (
            tl.load(q_norm + partner, mask=dim < DIM, other=0.0),
            tl.load(k_norm + partner, mask=dim < DIM, other=0.0),
        )
        other = other * scale * tl.where(is_q, gain_q, gain_k).to(tl.float32)
        # rounded as the reference rounds between the norm and the rotation
        value, other = value.to(given.dtype).to(tl.float32), other.to(given.dtype).to(tl.float32)
    position = tl.load(positions + token)
    turned = dim < 2 * HALF
    angle = position * HALF + dim % HALF
    c = tl.load(cos + angle, mask=turned, other=1.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    rotated = (value * c + tl.where(dim < HALF, -other, other) * s).to(given.dtype)
    tl.store(q_out + token * Q_HEADS * DIM + head * DIM + dim, rotated, mask=inside & is_q)
    slot = tl.load(slots + token)
    stored = slot >= 0  # a row that only pads a captured batch has no slot
    head_k = stored & (head >= Q_HEADS) & (head < Q_HEADS + KV_HEADS)
    head_v = stored & (head >= Q_HEADS + KV_HEADS) & (head < Q_HEADS + 2 * KV_HEADS)
    place = slot * KV_HEADS * DIM + dim
    is_k, is_v = head_k & (dim < DIM), head_v & (dim < DIM)
    if LARGEST > 0:  # the largest code of a quantised pool
        codes, scale = _quantise(rotated, LARGEST)
        tl.store(keys + place + (head - Q_HEADS) * DIM, codes, mask=is_k)
        tl.store(key_scales + slot * KV_HEADS + head - Q_HEADS, scale, mask=head_k)
        codes, scale = _quantise(given, LARGEST)
        tl.store(values + place + (head - Q_HEADS - KV_HEADS) * DIM, codes, mask=is_v)
        tl.store(value_scales + slot * KV_HEADS + head - Q_HEADS - KV_HEADS, scale, mask=head_v)
    else:
        tl.store(keys + place + (head - Q_HEADS) * DIM, rotated.to(keys.dtype.element_ty), mask=is_k)
        tl.store(values + place + (head - Q_HEADS - KV_HEADS) * DIM, given.to(values.dtype.element_ty), mask=is_v)


def rope_and_store(
    qkv: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    table: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    num_heads: int,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """As ``TorchOps.rope_and_store``.

    Args:
        qkv: [T, (H + 2 KV) * hd], contiguous.
        norms: the weights [hd] of the norms of q and k; None: no norms.
        table: cos and sin, float32 [positions, rotary_dim / 2].
        positions, slots: int64 [T]; a negative slot stores nothing.
        keys, values: the layer's pools [num_blocks, block_size, KV, hd].
        scales: for int8 and e4m3 pools, those of keys and values, float32 [num_blocks, block_size, KV].
    Returns:
        q [T, H, hd].
    """
    kv_heads, dim = keys.shape[2:]
    tokens, heads = len(qkv), num_heads + 2 * kv_heads
    q = torch.empty((tokens, num_heads, dim), dtype=qkv.dtype, device=qkv.device)
    if not tokens:
        return q
    q_norm, k_norm = norms or (qkv, qkv)
    key_scales, value_scales = scales or (qkv, qkv)
    largest = LARGEST[keys.dtype] if scales else 0
    if keys.dtype == torch.float8_e4m3fn:
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    rope_and_store_kernel[(tokens, triton.cdiv(heads, HEADS))](
        qkv, q, keys, values, key_scales, value_scales, q_norm, k_norm, *table, positions, slots, eps,
        Q_HEADS=num_heads, KV_HEADS=kv_heads, DIM=dim, HALF=table[0].shape[1], NORM=norms is not None,
        LARGEST=largest, HEADS=HEADS, BLOCK=triton.next_power_of_2(dim), num_warps=1 if dim <= 128 else 2,
    )  # fmt: skip
    return q


def variants() -> list[Variant]:
    types = dict.fromkeys(("qkv", "q_out", "keys", "values", "q_norm", "k_norm"), "*bf16")
    types |= {"cos": "*fp32", "sin": "*fp32", "positions": "*i64", "slots": "*i64", "eps": "fp32"}
    types |= {"key_scales": "*fp32", "value_scales": "*fp32"}
    found = []
    for dim, norm, kept in (
        (64, 0, ""), (80, 0, ""), (96, 0, ""), (128, 0, ""), (256, 0, ""), (128, 1, ""), (128, 0, "int8"),
        (128, 1, "e4m3"), (64, 0, "e4m3"), (256, 1, ""),
    ):  # fmt: skip
        block = triton.next_power_of_2(dim)
        constants = {"Q_HEADS": 32, "KV_HEADS": 8, "DIM": dim, "HALF": dim // 2, "NORM": bool(norm), "HEADS": HEADS}
        constants |= {"BLOCK": block, "LARGEST": {"": 0, "int8": 127, "e4m3": 448}[kept]}
        pools = {"": "*bf16", "int8": "*i8", "e4m3": "*u8"}[kept]
        norms = dict.fromkeys(("q_norm", "k_norm"), "*fp32") if (dim, norm) == (256, 1) else {}  # Gemma 3's
        name = ", ".join(filter(None, (str(dim), "norm" * norm, kept)))
        found.append(
            Variant(f"rope_and_store[{name}]", rope_and_store_kernel, types | {"keys": pools, "values": pools} | norms,
                    constants, 1 if dim <= 128 else 2)
        )  # fmt: skip
    return found
