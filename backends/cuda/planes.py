"""GGML blocks taken apart into planes that kernels read in long runs; nothing is rounded, nothing is multiplied.

A weight [N, K] is cut into tiles of 64 columns. Codes lie tile by tile, row by row, so that the rows a program takes
are one run of memory: byte j of a tile's 32 low-nibble bytes holds columns j (low half) and j + 32 (high half). What a
group of columns shares lies in words of 32 bits, one per row and tile: see ``Format``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...models.ggml_types import BY_NAME
from ...models.weight import Weight

TILE = 64  # columns
SUPER = 256  # columns that share a K-quant's float16 scale
CHUNK_BYTES = 1 << 26  # of a file's blocks that are taken apart at a time


@dataclass(frozen=True, slots=True)
class Format:
    """How a type's planes are read: value = scale * (code - zero) [- or + minimum].

    Words, for the groups that a tile holds: without ``superblock`` two float16 scales, and in a second word two float16
    minima where ``minimum``; with it (scale, minimum, scale, minimum) as unsigned bytes, or four signed bytes of scale
    where ``sixteen``, all times the superblock's float16 ``d`` and ``dmin``.
    """

    low: slice | None  # bytes of the nibbles in a block; None: the codes are whole signed bytes
    run: int  # bytes of which first all low nibbles are taken, then all high ones
    high: slice | None = None  # bytes of the bits above the nibble
    high_bits: int = 0  # how many
    zero: int = 0
    minimum: bool = False
    superblock: bool = False
    sixteen: bool = False  # groups of 16, not 32


FORMATS = {
    "Q4_0": Format(slice(2, 18), 16, zero=8),
    "Q4_1": Format(slice(4, 20), 16, minimum=True),
    "Q5_0": Format(slice(6, 22), 16, slice(2, 6), 1, zero=16),
    "Q5_1": Format(slice(8, 24), 16, slice(4, 8), 1, minimum=True),
    "Q8_0": Format(None, 0),
    "Q4_K": Format(slice(16, 144), 32, minimum=True, superblock=True),
    "Q5_K": Format(slice(48, 176), 32, slice(16, 48), 1, minimum=True, superblock=True),
    "Q6_K": Format(slice(0, 128), 64, slice(128, 192), 2, zero=32, superblock=True, sixteen=True),
}


@dataclass(frozen=True, slots=True)
class Planes:
    """One weight. A ``high``, ``scale`` or ``minimum`` that its format doesn't have is ``low``, and never read."""

    kind: str
    rows: int
    columns: int
    low: torch.Tensor  # uint8 [tiles, N, 32]; whole codes int8 [tiles, N, 64]
    high: torch.Tensor  # uint8 [tiles, N, 8 * high_bits]: byte b, bit field f is column b + 8 * high_bits * f
    words: torch.Tensor  # int32 [tiles, 1 or 2, N]
    scale: torch.Tensor  # float16 [K / 256, N]
    minimum: torch.Tensor  # float16 [K / 256, N]

    @property
    def nbytes(self) -> int:
        parts = {id(part): part.nbytes for part in (self.low, self.high, self.words, self.scale, self.minimum)}
        return sum(parts.values())


def planes(weight: Weight, device: torch.device) -> Planes | None:
    """Take ``weight`` apart on ``device``, some rows at a time; None for a type that has no format here."""
    form = FORMATS.get(weight.kind)
    if form is None:
        return None
    rows, columns = weight.shape
    tiles, supers = -(-columns // TILE), columns // SUPER if form.superblock else 0

    def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    low = empty(torch.uint8, tiles, rows, 32) if form.low else empty(torch.int8, tiles, rows, 64)
    high = empty(torch.uint8, tiles, rows, 8 * form.high_bits) if form.high else low
    words = empty(torch.int32, tiles, 2 if form.minimum and not form.superblock else 1, rows)
    scale = empty(torch.float16, supers, rows) if supers else low
    minimum = empty(torch.float16, supers, rows) if supers and form.minimum else low
    made = Planes(weight.kind, rows, columns, low, high, words, scale, minimum)
    step = max(1, CHUNK_BYTES // max(weight.data[0].nbytes, 1))
    for start in range(0, rows, step):
        part = np.ascontiguousarray(weight.data[start : start + step])
        _fill(made, form, start, torch.from_numpy(part.copy()).to(device))
    return made


def _fill(made: Planes, form: Format, start: int, data: torch.Tensor) -> None:
    """One chunk of rows, ``data`` uint8 [R, bytes per row]."""
    rows, size = len(data), BY_NAME[made.kind].size
    blocks = data.reshape(rows, -1, size)
    to = slice(start, start + rows)
    if form.low is None:
        made.low[:, to] = _tiles(blocks[..., 2:].view(torch.int8).reshape(rows, -1))
    else:
        nibbles = _fields(blocks[..., form.low], form.run, 4).reshape(rows, -1)
        codes = _tiles(nibbles)
        made.low[:, to] = codes[..., :32] | (codes[..., 32:] << 4)
    if form.high is not None:
        made.high[:, to] = _pack_high(_tiles(_high(blocks[..., form.high], form).reshape(rows, -1)), form.high_bits)
    if form.superblock:
        _fill_super(made, form, to, blocks)
    else:
        made.words[:, 0, to] = _half_pairs(blocks[..., :2])
        if form.minimum:
            made.words[:, 1, to] = _half_pairs(blocks[..., 2:4])


def _fill_super(made: Planes, form: Format, to: slice, blocks: torch.Tensor) -> None:
    """The words and float16 scales of K-quants."""
    rows = len(blocks)
    if form.sixteen:
        groups = blocks[..., 192:208].reshape(rows, -1, 4)
        made.scale[:, to] = _halves(blocks[..., 208:210]).T
    else:
        first, second, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
        scales = torch.cat((first & 63, (rest & 15) | ((first >> 2) & 48)), -1)
        minima = torch.cat((second & 63, (rest >> 4) | ((second >> 2) & 48)), -1)
        groups = torch.stack((scales, minima), -1).reshape(rows, -1, 4)
        made.scale[:, to], made.minimum[:, to] = _halves(blocks[..., :2]).T, _halves(blocks[..., 2:4]).T
    made.words[:, 0, to] = groups.contiguous().view(torch.int32)[..., 0].T


def _halves(part: torch.Tensor) -> torch.Tensor:
    """Float16 [R, B] from bytes [R, B, 2]."""
    return part.contiguous().view(torch.float16)[..., 0]


def _half_pairs(part: torch.Tensor) -> torch.Tensor:
    """Words [tiles, R] from the float16 bytes [R, B, 2] of blocks of 32: two blocks a tile, a last half tile zero."""
    rows, count = part.shape[:2]
    pairs = part.new_zeros((rows, count + count % 2, 2))
    pairs[:, :count] = part
    return pairs.reshape(rows, -1, 4).view(torch.int32)[..., 0].T


def _tiles(codes: torch.Tensor) -> torch.Tensor:
    """Codes [R, K] as [tiles, R, 64], zero past K."""
    rows, columns = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -columns % TILE))
    return padded.reshape(rows, -1, TILE).transpose(0, 1)


def _fields(part: torch.Tensor, run: int, bits: int) -> torch.Tensor:
    """Fields of ``bits`` of bytes [..., b]: of each run of bytes the lowest fields first: [..., 8 / bits * b]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=part.device)[:, None]
    runs = part.reshape(*part.shape[:-1], -1, 1, run)
    return ((runs >> shifts) & ((1 << bits) - 1)).flatten(-3)


def _high(part: torch.Tensor, form: Format) -> torch.Tensor:
    """The bits above the nibbles, one field an element."""
    if form.superblock:
        return _fields(part, 32, form.high_bits)
    return _fields(part, 1, 1)  # 32 bits in order


def _pack_high(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Fields [tiles, R, 64] packed as ``Planes.high`` has them."""
    columns = codes.reshape(*codes.shape[:-1], 8 // bits, 8 * bits)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)[:, None]
    return (columns << shifts).sum(-2, dtype=torch.uint8)
