"""From a checkpoint's weight to tiles: exact where the file is quantised, 8 bits per value where it is dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.blocks import unpack
from ...models.dequant import dequantize
from ...models.ggml_types import BY_NAME, CODEBOOK
from ...models.planar import planar
from ...models.weight import Weight
from .jit import target
from .qformat import GROUP, LANES, Format, pack_tiles, unpack_tiles

_CHUNK = 1 << 22  # values packed at a time
_PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6}
_ZEROS = {"Q4_0": 8, "Q5_0": 16, "Q3_K": 4, "Q6_K": 32}  # value = scale * (code - zero): no minimums to store
_GROUPS_OF_16 = ("Q2_K", "Q3_K", "Q6_K")
_HALF_KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")  # others multiply scales up, beyond float16

Parts = tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32] | None]


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of one format."""

    form: Format
    rows: int
    columns: int
    kind: str  # the file's type; "Q8_0 from F16" and the like where values were rounded
    tiles: NDArray[np.uint8]  # [ceil(rows / 8), ceil(columns / 32), record bytes], 64-byte aligned

    def joined(self, other: Packed) -> Packed:
        """These rows, a multiple of 8, then ``other``'s."""
        tiles = aligned((self.tiles.shape[0] + other.tiles.shape[0], *self.tiles.shape[1:]))
        np.concatenate((self.tiles, other.tiles), out=tiles)
        kind = self.kind if self.kind == other.kind else f"{self.kind}, {other.kind}"
        return Packed(self.form, self.rows + other.rows, self.columns, kind, tiles)

    def dequantize(self) -> NDArray[np.float32]:
        """float32 [rows, columns]."""
        return unpack_tiles(self.form, self.tiles)[: self.rows, : self.columns]


def aligned(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Uninitialised bytes that start at a multiple of 64."""
    size = int(np.prod(shape))
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].reshape(shape)


def pack(weight: Weight) -> Packed:
    """A matrix [rows, columns] as tiles. Temporaries are a few chunks of rows."""
    rows, columns = weight.shape
    step = max(LANES, _CHUNK // columns // LANES * LANES)
    form, kind = _format(weight)
    tiles = aligned((-(-rows // LANES), -(-columns // GROUP), form.record_bytes))
    for start in range(0, rows, step):
        codes, scales, minimums = _parts(form, weight, start, min(start + step, rows))
        tiles[start // LANES : -(-min(start + step, rows) // LANES)] = pack_tiles(form, codes, scales, minimums)
    return Packed(form, rows, columns, kind, tiles)


def _format(weight: Weight) -> tuple[Format, str]:
    """The narrowest format that holds ``weight`` exactly (or 8 bits, for dense weights), and its label."""
    half = _reads_halves() and weight.kind in _HALF_KINDS
    if weight.kind in CODEBOOK:
        return Format((8,), half=half), weight.kind
    if weight.kind == "MLX" and not weight.ordered:
        assert weight.scales is not None and weight.biases is not None
        half = _reads_halves() and weight.scales.dtype == np.float16
        group, zero = min(weight.group_size, GROUP), _zero(weight)
        if zero:  # codes of 8 bits are stored with their sign
            return Format(_PLANES[weight.bits], group, zero & 127, half=half), f"MLX {weight.bits}-bit"
        half = half and weight.bits < 8 and weight.biases.dtype == np.float16
        return Format(_PLANES[weight.bits], group, minimum=True, half=half), f"MLX {weight.bits}-bit"
    if weight.kind not in _BITS:
        return Format((8,), half=False), f"8-bit from {weight.kind}"
    minimum = weight.kind not in _ZEROS and weight.kind != "Q8_0"
    group = 16 if weight.kind in _GROUPS_OF_16 else 32
    return Format(_PLANES[_BITS[weight.kind]], group, _ZEROS.get(weight.kind, 0), minimum, half), weight.kind


def _zero(weight: Weight) -> int:
    """The zero point that all groups share (symmetric codes); 0: there is none."""
    assert weight.scales is not None and weight.biases is not None
    zero = 1 << (weight.bits - 1)
    return zero if np.array_equal(weight.biases, weight.scales.astype(np.float32) * np.float32(-zero)) else 0


def _reads_halves() -> bool:
    """Whether this CPU widens float16 in hardware."""
    return not target()[1].isdisjoint(("f16c", "neon"))


def _parts(form: Format, weight: Weight, start: int, stop: int) -> Parts:
    """Codes (signed ones as int8), scales and minimums of some rows."""
    if weight.kind in CODEBOOK:
        return _codebook(weight, start, stop)
    found = planar(weight, start, stop)
    if found is None:
        return _round(weight, start, stop)
    if not form.signed:
        return found.codes, found.scale, found.minimum
    minimum = found.minimum + np.float32(128) * found.scale
    return (found.codes ^ np.uint8(128)).view(np.int8), found.scale, minimum


def _codebook(weight: Weight, start: int, stop: int) -> Parts:
    """IQ4 types and MXFP4: their code book's values are whole numbers of 8 bits."""
    columns = weight.shape[1]
    blocks = unpack(weight.kind, weight.data[start:stop].reshape(-1, BY_NAME[weight.kind].size))
    assert blocks.codebook is not None
    codes = blocks.codebook.astype(np.int8)[blocks.codes].reshape(-1, columns)
    return codes, blocks.scale.reshape(-1, columns // GROUP), None


def _round(weight: Weight, start: int, stop: int) -> Parts:
    """Dense rows as int8 with a float32 scale per 32 values, at most half a step (max/254 of a group) off."""
    rows = dequantize(weight, start, stop)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % GROUP))).reshape(stop - start, -1, GROUP)
    scales = (np.abs(rows).max(axis=2) / np.float32(127)).astype(np.float32)
    with np.errstate(invalid="ignore"):  # a weight that isn't finite leaves a scale that isn't, and so its outputs
        codes = np.rint(rows / np.where(scales > 0, scales, np.float32(1))[:, :, None]).astype(np.int8)
    return codes.reshape(stop - start, -1), scales, None
