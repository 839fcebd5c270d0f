"""Codes with a scale per group of columns, as MLX, AWQ, GPTQ and fp8 checkpoints have them, as planes; exactly."""

from __future__ import annotations

import numpy as np
import torch

from ...models.fp8 import KIND as FP8
from ...models.mlx_float import KIND_OF
from ...models.weight import CheckpointError, Weight
from .plane_form import TILE, Form, Planes, byte_pairs, store_codes

CHUNK_BYTES = 1 << 26  # of packed codes that are taken apart at a time
#: A code's bits as those of its planes.
_BITS = {2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2), 8: (8, 0)}
#: MLX's modes whose scales are powers of two, and what their codes are.
_POWERS = {KIND_OF["mxfp4"]: "e2m1", KIND_OF["mxfp8"]: "e4m3"}
#: Rows of a block of fp8 that may share a scale.
_SHARED = 128


def grouped(weight: Weight) -> bool:
    """Whether ``weight`` is of this kind. Groups of 16 have no planes."""
    if weight.kind in _POWERS:
        return True
    if weight.kind == FP8:
        return weight.group_size % 32 == 0 or weight.group_size >= weight.shape[1]
    return weight.kind == "MLX" and weight.group_size % 32 == 0


def grouped_planes(weight: Weight, device: torch.device) -> Planes:
    """Planes of ``weight`` on ``device``. CheckpointError for an fp8 weight that holds NaN."""
    assert weight.scales is not None
    made = _powers(weight, device) if weight.kind in _POWERS else _scaled(weight, device)
    step = max(1, CHUNK_BYTES // max(weight.data[0].nbytes, 1))
    for start in range(0, weight.shape[0], step):
        part = torch.from_numpy(np.array(weight.data[start : start + step])).to(device)
        store_codes(made, slice(start, start + len(part)), _codes(weight, part))
    return made


def _powers(weight: Weight, device: torch.device) -> Planes:
    """Planes of MLX's mxfp4 and mxfp8, still without codes."""
    (rows, columns), form = weight.shape, Form(weight.bits, meaning=_POWERS[weight.kind], scales="power")
    low = torch.zeros((-(-columns // TILE), rows, 8 * weight.bits), dtype=torch.uint8, device=device)
    words = byte_pairs(torch.from_numpy(np.array(weight.scales)).to(device))[:, None].contiguous()
    return Planes(form, rows, columns, low, low, words, low, low)


def _scaled(weight: Weight, device: torch.device) -> Planes:
    """Planes of weights with scales of any value, still without codes."""
    assert weight.scales is not None
    (rows, columns), scales = weight.shape, torch.from_numpy(weight.scales.astype(np.float32)).to(device)
    group = weight.group_size if weight.group_size < columns else 0
    tiles = -(-columns // TILE)
    groups = -(-tiles * TILE // group) if group else 1
    shared = _SHARED if weight.kind == FP8 and _rows_share(scales) else 1
    low_bits, high_bits = (8, 0) if weight.kind == FP8 else _BITS[weight.bits]
    low = torch.zeros((tiles, rows, 8 * low_bits), dtype=torch.uint8, device=device)
    high = torch.zeros((tiles, rows, 8 * high_bits), dtype=torch.uint8, device=device) if high_bits else low
    scale, minimum, order = _plane(scales[::shared], groups), low, None
    form = Form(low_bits, high_bits, 0, "e4m3", "group", group, shared)
    if weight.biases is not None:
        form = Form(low_bits, high_bits, scales="group, minimum", group=group)
        biases = torch.from_numpy(weight.biases.astype(np.float32)).to(device)
        minimum = _plane(_zero_points(scales, biases), groups)
    if weight.order is not None:
        order = torch.from_numpy(weight.order.astype(np.int64)).to(device)
    return Planes(form, rows, columns, low, high, low, scale, minimum, order)


def _codes(weight: Weight, part: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [R, K] of rows as stored."""
    if weight.kind != FP8:
        return _stream(part.view(torch.uint8), weight.bits, weight.shape[1])
    if bool(((part & 127) == 127).any()):
        raise CheckpointError(f"tensor {weight.name} holds NaN; the file is damaged, download it again")
    return part


def _stream(data: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Codes [R, K] of a little-endian bit stream per row, bytes [R, b]."""
    if bits == 8:
        return data
    if bits in (2, 4):
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
        return ((data[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)
    first = torch.arange(columns, device=data.device) * bits
    wide = torch.nn.functional.pad(data, (0, 1)).to(torch.int32)
    pair = wide[:, first // 8] | (wide[:, first // 8 + 1] << 8)
    return ((pair >> (first % 8).to(torch.int32)) & ((1 << bits) - 1)).to(torch.uint8)


def _rows_share(scales: torch.Tensor) -> bool:
    """Whether each run of ``_SHARED`` rows has the same scales."""
    first = scales[::_SHARED].repeat_interleave(_SHARED, dim=0)[: len(scales)]
    return len(scales) > 1 and bool((first == scales).all())


def _zero_points(scales: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    """Bytes z with bias = -z * scale, where all are so: value = scale * (code - z). Else the biases."""
    zeros = torch.where(scales == 0, 0, -biases / scales).round()
    fits = (zeros >= 0) & (zeros <= 255) & (-zeros * scales == biases)
    return zeros.to(torch.uint8) if bool(fits.all()) else biases


def _plane(values: torch.Tensor, groups: int) -> torch.Tensor:
    """``values`` [R, G] as [groups, R], zero past G, in the narrowest type that holds them exactly."""
    padded = torch.nn.functional.pad(values, (0, groups - values.shape[1])).T.contiguous()
    for dtype in (torch.float16, torch.bfloat16) if values.is_floating_point() else ():
        if bool((padded.to(dtype).to(padded.dtype) == padded).all()):
            return padded.to(dtype)
    return padded
