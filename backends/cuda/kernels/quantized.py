"""Products with weights that stay quantised: for a few rows, for some, and decoding for many.

All three decode with one function, ``plane_values.decode_tile``.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ..ggml_planes import TYPES
from ..plane_form import Form, Planes
from .plane_values import decode_tile
from .variant import Variant

VECTOR_ROWS = 8  # of the weight, a program
VECTOR_TILES = 8  # of 64 columns, side by side in a program; half as many where registers hold 4 rows of x
FEW = 4  # rows of x up to which the vector kernel is used
WEIGHT_ROWS = 64
PROGRAMS = 2 * 132
MOST_SPLITS = 8
#: The forms that are compiled ahead.
FORMS = {kind: blocks.form for kind, blocks in TYPES.items()} | {
    "AWQ": Form(scales="group, minimum", group=128),
    "GPTQ 8-bit": Form(8, scales="group, minimum", group=128),
    "MLX 4-bit": Form(scales="group, minimum", group=64),
    "MLX mxfp8": Form(8, meaning="e4m3", scales="power"),
    "fp8 blocks": Form(8, meaning="e4m3", scales="group", group=128, shared=128),
    "fp8 rows": Form(8, meaning="e4m3", scales="group"),
}
GROUP_TYPES = {kind: {"low": "*u8", "words": "*u8"} for kind in FORMS if kind not in TYPES}
GROUP_TYPES["MLX mxfp8"]["words"] = "*i16"
GROUP_TYPES["AWQ"]["minimum"] = GROUP_TYPES["GPTQ 8-bit"]["minimum"] = "*u8"  # zero points
GROUP_TYPES["MLX 4-bit"] |= dict.fromkeys(("scale", "minimum"), "*bf16")
COMMON = ("Q4_K", "Q6_K", "Q8_0", "AWQ", "fp8 blocks")


@triton.jit
def dequantize_kernel(
    low, high, words, scale, minimum, picks, out, rows, columns, count, first,
    LOW: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, MEANING: tl.constexpr, SCALES: tl.constexpr,
    GROUP: tl.constexpr, SHARED: tl.constexpr, PICK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (b, tile): 64 columns of BLOCK rows, those that ``picks`` names or, without PICK, from ``first`` on."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tile, valid = tl.program_id(1), index < count
    if PICK:
        row = tl.load(picks + index, mask=valid, other=0)
    else:
        row = first + index
    a, b = decode_tile(
        low, high, words, scale, minimum, tile, row, valid, rows, LOW, HIGH, ZERO, MEANING, SCALES, GROUP, SHARED
    )
    column = tile * 64 + tl.arange(0, 32)[None, :]
    place = out + index[:, None] * columns + column
    tl.store(place, a.to(out.dtype.element_ty), mask=valid[:, None] & (column < columns))
    tl.store(place + 32, b.to(out.dtype.element_ty), mask=valid[:, None] & (column + 32 < columns))


@triton.jit
def vector_kernel(
    x, low, high, words, scale, minimum, bias, out, rows, columns, count, out_stride,
    LOW: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, MEANING: tl.constexpr, SCALES: tl.constexpr,
    GROUP: tl.constexpr, SHARED: tl.constexpr,
    BIAS: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Program n: ROWS rows of the weight times ``count`` (at most COUNT) rows of x, in float32 without tensor cores.

    The lanes are the pairs of a tile and a row, TILES tiles side by side: every warp reads its own run of the planes,
    and the sum over tiles is taken once, at the end.
    """
    pair = tl.arange(0, TILES * ROWS)
    row = tl.program_id(0) * ROWS + pair % ROWS
    item, lane = tl.arange(0, COUNT)[:, None, None], tl.arange(0, 32)[None, None, :]
    total = tl.zeros([COUNT, TILES * ROWS, 32], tl.float32)
    tiles = tl.cdiv(columns, 64)
    for first in range(0, tiles, TILES):
        tile = first + pair // ROWS
        valid = (row < rows) & (tile < tiles)
        a, b = decode_tile(
            low, high, words, scale, minimum, tile, row, valid, rows, LOW, HIGH, ZERO, MEANING, SCALES, GROUP, SHARED
        )
        column = (tile * 64)[None, :, None] + lane
        place = x + item.to(tl.int64) * columns + column
        x_a = tl.load(place, mask=(item < count) & (column < columns), other=0.0).to(tl.float32)
        x_b = tl.load(place + 32, mask=(item < count) & (column + 32 < columns), other=0.0).to(tl.float32)
        total += a[None, :, :] * x_a + b[None, :, :] * x_b
    summed = tl.sum(tl.reshape(tl.sum(total, 2), [COUNT, TILES, ROWS]), 1)
    column = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if BIAS:
        summed += tl.load(bias + column, mask=column < rows, other=0.0).to(tl.float32)[None, :]
    item = tl.arange(0, COUNT)[:, None]
    place = out + item.to(tl.int64) * out_stride + column[None, :]
    tl.store(place, summed.to(out.dtype.element_ty), mask=(item < count) & (column < rows)[None, :])


@triton.jit
def matrix_kernel(
    x, low, high, words, scale, minimum, bias, out, partial, rows, columns, count, out_stride,
    LOW: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, MEANING: tl.constexpr, SCALES: tl.constexpr,
    GROUP: tl.constexpr, SHARED: tl.constexpr,
    BIAS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Program (n, m, s): ROWS rows of the weight times COUNT rows of x, over split s of the columns.

    The weight's rows lie on the tensor core's long side, x on the short one: with 16 rows of x no lane is wasted.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    item = tl.program_id(1) * COUNT + tl.arange(0, COUNT)
    split, lane = tl.program_id(2), tl.arange(0, 32)
    valid, present = row < rows, (item < count)[:, None]
    tiles = tl.cdiv(columns, 64)
    per_split = tl.cdiv(tiles, SPLITS)
    total = tl.zeros([ROWS, COUNT], tl.float32)
    for tile in range(split * per_split, tl.minimum(split * per_split + per_split, tiles)):
        each = tl.zeros([ROWS], tl.int32) + tile
        a, b = decode_tile(
            low, high, words, scale, minimum, each, row, valid, rows, LOW, HIGH, ZERO, MEANING, SCALES, GROUP, SHARED
        )
        column = (tile * 64 + lane)[None, :]
        place = x + item.to(tl.int64)[:, None] * columns + column
        x_a = tl.load(place, mask=present & (column < columns), other=0.0)
        x_b = tl.load(place + 32, mask=present & (column + 32 < columns), other=0.0)
        total = tl.dot(a.to(x_a.dtype), tl.trans(x_a), total, input_precision="ieee")
        total = tl.dot(b.to(x_b.dtype), tl.trans(x_b), total, input_precision="ieee")
    keep = valid[:, None] & (item < count)[None, :]
    if SPLITS == 1:
        if BIAS:
            total += tl.load(bias + row, mask=valid, other=0.0).to(tl.float32)[:, None]
        tl.store(
            out + item.to(tl.int64)[None, :] * out_stride + row[:, None], total.to(out.dtype.element_ty), mask=keep
        )
    else:
        place = (split * count + item).to(tl.int64)[None, :] * rows + row[:, None]
        tl.store(partial + place, total, mask=keep)


@triton.jit
def add_splits_kernel(
    partial, bias, out, rows, count, out_stride, BIAS: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (m, b): BLOCK columns of row m of the product, the splits added in order."""
    item, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < rows
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partial + (split * count + item) * rows + column, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + item * out_stride + column, total.to(out.dtype.element_ty), mask=inside)


def constants(form: Form) -> dict[str, Any]:
    """A form's compile-time arguments."""
    return {
        "LOW": form.low_bits,
        "HIGH": form.high_bits,
        "ZERO": form.zero,
        "MEANING": form.meaning,
        "SCALES": form.scales,
        "GROUP": form.group,
        "SHARED": form.shared,
    }


def parts_of(weight: Planes) -> tuple[torch.Tensor, ...]:
    """The arrays that a kernel takes for ``weight``."""
    return weight.low, weight.high, weight.words, weight.scale, weight.minimum


def dequantize(
    weight: Planes,
    dtype: torch.dtype,
    picks: torch.Tensor | None = None,
    rows: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Rows of ``weight`` as ``dtype`` [R, K]: those of ``picks`` (int64 [R]), or from one to another, or all."""
    first, last = rows or (0, weight.rows)
    count = last - first if picks is None else len(picks)
    out = torch.empty((count, weight.columns), dtype=dtype, device=weight.low.device)
    if count:
        block = 32 if picks is None else 1
        dequantize_kernel[(triton.cdiv(count, block), weight.low.shape[0])](
            *parts_of(weight), weight.words if picks is None else picks, out, weight.rows, weight.columns, count, first,
            **constants(weight.form), PICK=picks is not None, BLOCK=block, num_warps=2 if block > 1 else 1,
        )  # fmt: skip
    return out


def few(x: torch.Tensor, weight: Planes, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """``out`` [M, N] (rows may be strided) = ``x`` [M, K] times the weight transposed, for M up to FEW."""
    count = len(x)
    vector_kernel[(triton.cdiv(weight.rows, VECTOR_ROWS),)](
        x, *parts_of(weight), x if bias is None else bias, out, weight.rows, weight.columns, count, out.stride(0),
        **constants(weight.form), BIAS=bias is not None, COUNT=triton.next_power_of_2(count), ROWS=VECTOR_ROWS,
        TILES=VECTOR_TILES if count <= 2 else VECTOR_TILES // 2, num_warps=4,
    )  # fmt: skip


def splits_for(programs: int, tiles: int) -> int:
    """Into how many parts the columns are cut so that the GPU is full: a power of two, each part 8 tiles or more."""
    wanted = max(1, min(PROGRAMS // max(programs, 1), tiles // 8, MOST_SPLITS))
    return 1 << (wanted.bit_length() - 1)


def some(
    x: torch.Tensor, weight: Planes, bias: torch.Tensor | None, out: torch.Tensor, splits: int | None = None
) -> None:
    """As ``few``, by tensor cores, for any M."""
    count, rows = len(x), weight.rows
    block = min(max(triton.next_power_of_2(count), 16), 64)
    grid = triton.cdiv(rows, WEIGHT_ROWS), triton.cdiv(count, block)
    splits = splits or splits_for(grid[0] * grid[1], weight.low.shape[0])
    partial = torch.empty((splits, count, rows) if splits > 1 else (1,), dtype=torch.float32, device=x.device)
    bias_or_none = x if bias is None else bias
    matrix_kernel[(*grid, splits)](
        x, *parts_of(weight), bias_or_none, out, partial, rows, weight.columns, count, out.stride(0),
        **constants(weight.form), BIAS=bias is not None, SPLITS=splits, ROWS=WEIGHT_ROWS, COUNT=block, num_warps=4,
        num_stages=3,
    )  # fmt: skip
    if splits > 1:
        add_splits_kernel[(count, triton.cdiv(rows, 1024))](
            partial, bias_or_none, out, rows, count, out.stride(0), BIAS=bias is not None, SPLITS=splits, BLOCK=1024,
            num_warps=4,
        )  # fmt: skip


def plane_types(kind: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Types of the planes' arrays of one of ``FORMS``, and its compile-time arguments."""
    form, types = FORMS[kind], dict.fromkeys(("scale", "minimum"), "*fp16")
    types |= {"low": "*i8" if kind == "Q8_0" else "*u8", "high": "*u8"}
    types |= {"words": "*i16" if form.word == torch.int16 else "*i32"}
    return types | GROUP_TYPES.get(kind, {}), constants(form)


def variants() -> list[Variant]:
    """GGML's types; and a form of each scheme of groups."""
    found = []
    for kind in FORMS:
        types, form = plane_types(kind)
        types |= dict.fromkeys(("x", "bias", "out"), "*bf16") | {"partial": "*fp32", "picks": "*i64"}
        types |= dict.fromkeys(("rows", "columns", "count", "first", "out_stride"), "i32")
        count = frozenset({"count"})
        base = form | {"BIAS": False}
        common = kind in COMMON
        for items in (1, 4) if common else (1,):
            shape = {"COUNT": items, "ROWS": VECTOR_ROWS, "TILES": VECTOR_TILES if items <= 2 else VECTOR_TILES // 2}
            found.append(Variant(f"vector[{kind}, {items}]", vector_kernel, types, base | shape, unaligned=count))
        for items in (16, 64) if common else (16,):
            shape = {"COUNT": items, "ROWS": WEIGHT_ROWS, "SPLITS": 4 if items == 16 else 1}
            found.append(  # with 16 rows of x, Triton's pipeline copies 8 bytes at a time
                Variant(f"matrix[{kind}, {items}]", matrix_kernel, types, base | shape, tensor_cores=True,
                        vector_loads=items > 16, unaligned=count)
            )  # fmt: skip
        if common:
            shape = form | {"PICK": False, "BLOCK": 32}
            found.append(Variant(f"dequantize[{kind}]", dequantize_kernel, types, shape, 2, unaligned=count))
    return found
