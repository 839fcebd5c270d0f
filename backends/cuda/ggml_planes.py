"""GGML's blocks taken apart into planes, on the device; nothing is rounded, nothing is multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ...models.ggml_types import BY_NAME
from ...models.weight import Weight
from .plane_form import SUPER, TILE, Form, Planes, byte_pairs, fields, store_codes

CHUNK_BYTES = 1 << 26  # of a file's blocks that are taken apart at a time


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where a block of one type keeps what. Bytes are from the block's start."""

    form: Form
    low: slice  # the codes, or their low bits
    run: int  # bytes of which first all lowest fields are taken, then the next ones
    high: slice | None = None
    high_run: int = 32
    d: int = 0  # float16
    least: int = 2  # the float16 minimum
    groups: Callable[[torch.Tensor], torch.Tensor] | None = None  # the bytes of a superblock's words


def _six_bits(blocks: torch.Tensor) -> torch.Tensor:
    """(scale, minimum) of eight groups, 6 bits each in bytes 4 to 15 (Q4_K, Q5_K)."""
    first, second, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 2) & 48)), -1)
    minima = torch.cat((second & 63, (rest >> 4) | ((second >> 2) & 48)), -1)
    return torch.stack((scales, minima), -1).flatten(-2)


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    """16 signed scales: 4 bits each in bytes 96 to 103, 2 more in 104 to 107, 32 too large."""
    scales = fields(blocks[..., 96:104], 8, 4) | (fields(blocks[..., 104:108], 4, 2) << 4)
    return scales - 32  # wraps around: the bits of a signed byte


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    """8 signed scales: 4 bits each in bytes 4 to 7, 2 more in 2 and 3, 32 too large."""
    scales = fields(blocks[..., 4:8], 1, 4) | (fields(blocks[..., 2:4], 1, 2) << 4)
    return scales - 32


_K = "super, minimum"
TYPES = {
    "Q4_0": Blocks(Form(zero=8), slice(2, 18), 16),
    "Q4_1": Blocks(Form(scales="half, minimum"), slice(4, 20), 16),
    "Q5_0": Blocks(Form(high_bits=1, zero=16), slice(6, 22), 16, slice(2, 6), 1),
    "Q5_1": Blocks(Form(high_bits=1, scales="half, minimum"), slice(8, 24), 16, slice(4, 8), 1),
    "Q8_0": Blocks(Form(low_bits=8), slice(2, 34), 32),
    "Q2_K": Blocks(
        Form(low_bits=2, scales="super, 16, minimum"), slice(16, 80), 32, d=80, least=82, groups=lambda b: b[..., :16]
    ),
    "Q3_K": Blocks(
        Form(low_bits=2, high_bits=1, zero=4, scales="super, 16"), slice(32, 96), 32, slice(0, 32), d=108, groups=_q3_k
    ),
    "Q4_K": Blocks(Form(scales=_K), slice(16, 144), 32, groups=_six_bits),
    "Q5_K": Blocks(Form(high_bits=1, scales=_K), slice(48, 176), 32, slice(16, 48), groups=_six_bits),
    "Q6_K": Blocks(
        Form(high_bits=2, zero=32, scales="super, 16"),
        slice(0, 128), 64, slice(128, 192), d=208, groups=lambda b: b[..., 192:208],
    ),
    "IQ4_NL": Blocks(Form(meaning="iq4"), slice(2, 18), 16),
    "IQ4_XS": Blocks(Form(meaning="iq4", scales="super, 32"), slice(8, 136), 16, groups=_iq4_xs),
    "MXFP4": Blocks(Form(meaning="e2m1", scales="power"), slice(1, 17), 16),
}  # fmt: skip


def ggml_planes(weight: Weight, device: torch.device) -> Planes:
    """``weight``, of one of ``TYPES``, taken apart on ``device`` some rows at a time."""
    blocks = TYPES[weight.kind]
    form, (rows, columns) = blocks.form, weight.shape
    tiles, supers = -(-columns // TILE), columns // SUPER if form.superblocks else 0

    def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    low = empty(torch.int8 if form.low_bits == 8 else torch.uint8, tiles, rows, 8 * form.low_bits)
    high = empty(torch.uint8, tiles, rows, 8 * form.high_bits) if form.high_bits else low
    words = empty(form.word, tiles, 2 if form.scales == "half, minimum" else 1, rows)
    scale = empty(torch.float16, supers, rows) if supers else low
    minimum = empty(torch.float16, supers, rows) if supers and form.minimum else low
    made = Planes(form, rows, columns, low, high, words, scale, minimum)
    step = max(1, CHUNK_BYTES // max(weight.data[0].nbytes, 1))
    for start in range(0, rows, step):
        part = torch.from_numpy(np.array(weight.data[start : start + step])).to(device)
        _fill(made, blocks, slice(start, start + len(part)), part.reshape(len(part), -1, BY_NAME[weight.kind].size))
    return made


def _fill(made: Planes, blocks: Blocks, to: slice, data: torch.Tensor) -> None:
    """One chunk of rows, ``data`` uint8 [R, blocks per row, bytes per block]."""
    form, rows = made.form, len(data)
    store_codes(made, to, _codes(blocks, data).reshape(rows, -1))
    if form.scales == "power":
        made.words[:, 0, to] = byte_pairs(data[..., 0])
        return
    if blocks.groups is None:
        made.words[:, 0, to] = _half_pairs(data[..., :2])
        if form.minimum:
            made.words[:, 1, to] = _half_pairs(data[..., 2:4])
        return
    groups = blocks.groups(data).reshape(rows, made.words.shape[0], -1).contiguous()
    made.words[:, 0, to] = groups.view(made.words.dtype)[..., 0].T
    made.scale[:, to] = _halves(data[..., blocks.d : blocks.d + 2]).T
    if form.minimum:
        made.minimum[:, to] = _halves(data[..., blocks.least : blocks.least + 2]).T


def _codes(blocks: Blocks, data: torch.Tensor) -> torch.Tensor:
    """Whole codes [R, blocks, elements]."""
    form, low = blocks.form, data[..., blocks.low]
    if form.low_bits == 8:
        return low.contiguous().view(torch.int8)
    codes = fields(low, blocks.run, form.low_bits)
    if blocks.high is not None:
        codes |= fields(data[..., blocks.high], blocks.high_run, form.high_bits) << form.low_bits
    return codes


def _halves(part: torch.Tensor) -> torch.Tensor:
    """Float16 [R, B] from bytes [R, B, 2]."""
    return part.contiguous().view(torch.float16)[..., 0]


def _half_pairs(part: torch.Tensor) -> torch.Tensor:
    """Words [tiles, R] from the float16 bytes [R, B, 2] of blocks of 32: two blocks a tile, a last half tile zero."""
    rows, count = part.shape[:2]
    pairs = part.new_zeros((rows, count + count % 2, 2))
    pairs[:, :count] = part
    return pairs.reshape(rows, -1, 4).view(torch.int32)[..., 0].T
