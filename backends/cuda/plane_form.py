"""What planes are: how a quantised weight lies on the GPU, and how its values are read out of that.

A weight [N, K] is cut into tiles of 64 columns. Codes lie tile by tile, row by row, so that the rows a program takes
are one run of memory. In a plane of ``b`` bits a code, byte j of a tile's 8 b bytes holds columns j, j + 8 b, ...,
lowest bits first; whole bytes are in order. What a group of columns shares lies in words, one per row and tile, or in
planes of scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TILE = 64  # columns
SUPER = 256  # columns that share a K-quant's float16 scale


@dataclass(frozen=True, slots=True)
class Form:
    """How planes are read: value = scale * (meaning of the code - zero) [+ or - minimum].

    ``meaning``: "integer"; "iq4", IQ4's codebook; "e2m1" and "e4m3", floating-point numbers of 4 and 8 bits.

    ``scales``, where s, d, m are float16 and the integers are parts of a tile's word:

    * "half": s for each 32 columns; "half, minimum": and m, in a second word. "power": a byte e, for 2^(e - 127).
    * "super, minimum": per 32 columns the bytes (scale, minimum), times d and dmin of 256 columns (Q4_K).
    * "super, 16": a signed byte of scale per 16 columns, times d (Q6_K). "super, 32": per 32 columns (IQ4_XS).
    * "super, 16, minimum": per 16 columns a byte of scale (low nibble) and minimum, times d and dmin (Q2_K).
    * "group": planes of scales, one for ``group`` columns; "group, minimum": and of minima to be added, or of zero
      points to be subtracted from the code where they are whole bytes.
    """

    low_bits: int = 4  # of a code, in the plane ``low``: 2, 4 or 8
    high_bits: int = 0  # in the plane ``high``: 0, 1 or 2
    zero: int = 0
    meaning: str = "integer"
    scales: str = "half"
    group: int = 0  # columns of one scale, a multiple of 32; 0: all of them
    shared: int = 1  # rows of one scale

    @property
    def word(self) -> torch.dtype:
        """Of ``Planes.words``."""
        return torch.int16 if self.scales in ("power", "super, 32") else torch.int32

    @property
    def superblocks(self) -> bool:
        return self.scales.startswith("super")

    @property
    def minimum(self) -> bool:
        return self.scales.endswith("minimum")


@dataclass(frozen=True, slots=True)
class Planes:
    """One weight. A ``high``, ``words``, ``scale`` or ``minimum`` that its form lacks is ``low``, and never read."""

    form: Form
    rows: int
    columns: int
    low: torch.Tensor  # uint8 [tiles, N, 8 * low_bits]; int8 where whole codes are signed
    high: torch.Tensor  # uint8 [tiles, N, 8 * high_bits]
    words: torch.Tensor  # form.word [tiles, 1 or 2, N]
    scale: torch.Tensor  # float16 [K / 256, N]; of groups: any float [groups, N / shared]
    minimum: torch.Tensor  # as scale; zero points uint8
    order: torch.Tensor | None = None  # int64 [K]: column j is the input's order[j]; None: in order

    @property
    def nbytes(self) -> int:
        parts = {id(part): part.nbytes for part in (self.low, self.high, self.words, self.scale, self.minimum)}
        return sum(parts.values()) + (0 if self.order is None else self.order.nbytes)


def tiled(codes: torch.Tensor) -> torch.Tensor:
    """Codes [R, K] as [tiles, R, 64], zero past K."""
    rows, columns = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -columns % TILE))
    return padded.reshape(rows, -1, TILE).transpose(0, 1)


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes below 2^bits, uint8 [tiles, R, 64], as a plane [tiles, R, 8 * bits]."""
    if bits == 8:
        return codes
    columns = codes.reshape(*codes.shape[:-1], 8 // bits, 8 * bits)
    out = columns[..., 0, :].clone()
    for field in range(1, 8 // bits):
        out |= columns[..., field, :] << (field * bits)
    return out


def byte_pairs(part: torch.Tensor) -> torch.Tensor:
    """Words int16 [tiles, R] from bytes [R, G], one for each 32 columns: two a tile, a last half tile zero."""
    padded = torch.nn.functional.pad(part, (0, part.shape[1] % 2)).contiguous()
    return padded.view(torch.int16).T


def fields(part: torch.Tensor, run: int, bits: int) -> torch.Tensor:
    """Fields of ``bits`` of bytes [..., b]: of each run of bytes the lowest fields first: [..., 8 / bits * b]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=part.device)[:, None]
    runs = part.reshape(*part.shape[:-1], -1, 1, run)
    return ((runs >> shifts) & ((1 << bits) - 1)).flatten(-3)


def store_codes(made: Planes, to: slice, codes: torch.Tensor) -> None:
    """Put the codes of rows ``to`` (uint8 or int8 [R, K]) in their planes."""
    form, in_tiles = made.form, tiled(codes)
    if form.low_bits == 8:
        made.low[:, to] = in_tiles
        return
    made.low[:, to] = packed(in_tiles & ((1 << form.low_bits) - 1), form.low_bits)
    if form.high_bits:
        made.high[:, to] = packed(in_tiles >> form.low_bits, form.high_bits)
