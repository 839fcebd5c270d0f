"""How quantised weights lie in memory for the CPU kernels, and the packing of planar weights into that form.

A *tile* is 8 output rows. For each 32 values along K it holds one *record*: the codes, then scales, then minimums.
Codes are split into bit planes (a 6-bit code is a plane of 4 bits and one of 2), and byte ``4 o + j`` of a 32-byte
vector belongs to output ``o`` and value ``4 q + j`` of *quad* ``q``: each 32-bit lane of a product is one output, so
nothing is ever added across lanes. In a plane of ``w`` bits, vector ``v`` holds quads ``v * 8/w`` up to the next,
lowest bits first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LANES = 8  # outputs per tile
GROUP = 32  # values per record
QUADS = GROUP // 4


@dataclass(frozen=True, slots=True)
class Format:
    """The value of a code is ``scale * (code - offset) + minimum``; every format's integers are exact.

    ``planes``: bits of each plane, low bits first; ``(8,)`` holds signed bytes, all others unsigned codes.
    ``group``: values per scale, 16 or 32. ``minimum``: whether minimums are stored (then ``offset`` is 0).
    ``half``: scales and minimums are float16 (only when that is exact), else float32.
    """

    planes: tuple[int, ...]
    group: int = 32
    offset: int = 0
    minimum: bool = False
    half: bool = True

    @property
    def signed(self) -> bool:
        return self.planes == (8,)

    @property
    def bits(self) -> int:
        return sum(self.planes)

    @property
    def scales(self) -> int:
        """Scales per record and output."""
        return GROUP // self.group

    @property
    def scale_bytes(self) -> int:
        """Bytes of one vector of scales, one for each output of a tile."""
        return LANES * (2 if self.half else 4)

    @property
    def record_bytes(self) -> int:
        return 32 * self.bits + self.scales * self.scale_bytes * (2 if self.minimum else 1)

    @property
    def name(self) -> str:
        """Unique, and a valid symbol."""
        planes = "_".join(map(str, self.planes))
        return f"p{planes}_g{self.group}_o{self.offset}_m{int(self.minimum)}_h{int(self.half)}"


def _padded(values: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """``values`` with zeros below and to the right, C-contiguous [rows, columns]."""
    if values.shape == (rows, columns):
        return np.ascontiguousarray(values)
    out = np.zeros((rows, columns), values.dtype)
    out[: values.shape[0], : values.shape[1]] = values
    return out


def pack_tiles(
    form: Format, codes: NDArray[Any], scales: NDArray[np.float32], minimums: NDArray[np.float32] | None
) -> NDArray[np.uint8]:
    """Tiles [tiles, records, record bytes] of ``codes`` (bytes [N, K]) with ``scales`` and ``minimums`` [N, K / group].

    Rows beyond N and values beyond K get scale 0 and minimum 0.
    """
    tiles = -(-codes.shape[0] // LANES)
    records = -(-codes.shape[1] // GROUP)
    padded = _padded(codes.view(np.uint8), tiles * LANES, records * GROUP)
    words = padded.view(np.uint32).reshape(tiles, LANES, records, QUADS)
    quads = words.transpose(0, 2, 3, 1)  # uint32 [tiles, records, quads, lanes], a lane's four values in a word
    out = np.empty((tiles, records, form.record_bytes), np.uint8)
    at = shift = 0
    for width in form.planes:
        plane = _pack_plane(quads, width, shift)
        out[:, :, at : at + 32 * width] = plane.view(np.uint8).reshape(tiles, records, 32 * width)
        at, shift = at + 32 * width, shift + width
    for values in (scales, minimums) if form.minimum else (scales,):
        assert values is not None
        wide = _padded(values.astype(np.float16 if form.half else np.float32), tiles * LANES, records * form.scales)
        lanes = np.ascontiguousarray(wide.reshape(tiles, LANES, records, form.scales).transpose(0, 2, 3, 1))
        size = form.scales * form.scale_bytes
        out[:, :, at : at + size] = lanes.view(np.uint8).reshape(tiles, records, size)
        at += size
    return out


def _pack_plane(quads: NDArray[np.uint32], width: int, shift: int) -> NDArray[np.uint32]:
    """Bits ``shift`` to ``shift + width - 1`` of every code: [tiles, records, width, lanes]."""
    if width == 8:
        return np.ascontiguousarray(quads)
    mask = np.uint32(((1 << width) - 1) * 0x01010101)
    per = 8 // width
    plane = np.zeros((*quads.shape[:2], width, LANES), np.uint32)
    for slot in range(per):
        plane |= ((quads[:, :, slot::per] >> np.uint32(shift)) & mask) << np.uint32(slot * width)
    return plane


def unpack_tiles(form: Format, tiles: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The float32 values of tiles [tiles, records, record bytes]: [tiles * 8, records * 32]."""
    count, records = tiles.shape[:2]
    quads = np.zeros((count, records, QUADS, 32), np.uint8)
    at = shift = 0
    for width in form.planes:
        plane = tiles[:, :, at : at + 32 * width].reshape(count, records, width, 32)
        per = 8 // width
        for slot in range(per):
            quads[:, :, slot::per] |= ((plane >> (slot * width)) & ((1 << width) - 1)) << shift
        at, shift = at + 32 * width, shift + width
    values = quads.view(np.int8).astype(np.float32) if form.signed else quads.astype(np.float32)
    vectors = []
    for _ in range(2 if form.minimum else 1):
        size = form.scales * form.scale_bytes
        raw = np.ascontiguousarray(tiles[:, :, at : at + size]).view(np.float16 if form.half else np.float32)
        lanes = raw.reshape(count, records, form.scales, 1, LANES, 1)
        vectors.append(lanes.astype(np.float32))
        at += size
    parts = values.reshape(count, records, form.scales, QUADS // form.scales, LANES, 4) - np.float32(form.offset)
    weights = parts * vectors[0]
    if form.minimum:
        weights += vectors[1]
    return np.ascontiguousarray(weights.transpose(0, 4, 1, 2, 3, 5)).reshape(count * LANES, records * GROUP)
