"""GGUF's block types as MLX's own: codes packed in 32-bit words, in groups of 32 that share a scale.

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K and Q5_K have codes of 4, 5 or 8 bits in groups of 32, so they are affine already
(value = scale * code + bias), and MXFP4 is MLX's mode of that name: only the order of the codes changes. Types with
groups of 16, other widths or another codebook have no such form; ``weights.py`` quantises them anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.blocks import unpack
from ...models.ggml_types import BY_NAME
from ...models.mlx_affine import pack_codes
from ...models.planar import planar
from ...models.weight import Weight
from .linear import Packing

GROUP = 32
#: How the types are held that are repacked exactly.
REPACKED = {
    kind: Packing(bits, GROUP)
    for kind, bits in {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5}.items()
} | {"MXFP4": Packing(4, GROUP, "mxfp4")}


@dataclass(frozen=True, slots=True)
class Repacked:
    """Rows of a matrix in MLX's form."""

    words: NDArray[np.uint32]  # [rows, K * bits / 32]
    scales: NDArray[Any]  # [rows, K / 32]
    biases: NDArray[Any] | None  # the same, in the affine mode


def repack(weight: Weight, start: int, stop: int, dtype: type[np.floating[Any]] = np.float32) -> Repacked:
    """Rows ``start`` to ``stop`` of a tensor of one of the types ``REPACKED``.

    ``dtype`` is that of affine scales and biases. float32 holds every type's exactly; float16 those of all but the K
    types, whose scale and minimum per group are products of a float16 and a 6-bit number. MXFP4 keeps its scale bytes.
    """
    if weight.kind == "MXFP4":
        return _repack_mxfp4(weight.data[start:stop])
    plain = planar(weight, start, stop)
    assert plain is not None and plain.group_size == GROUP
    words = pack_codes(plain.codes, REPACKED[weight.kind].bits)
    return Repacked(words, plain.scale.astype(dtype), plain.minimum.astype(dtype))


def _repack_mxfp4(rows: NDArray[np.uint8]) -> Repacked:
    """GGUF counts in halves of E2M1's numbers and of the scale, MLX in wholes: the same code and scale byte say the
    same. (A scale byte of 255, which stands for no number, is twice as large a power to MLX as to GGUF's readers.)"""
    blocks = rows.reshape(-1, BY_NAME["MXFP4"].size)
    codes = unpack("MXFP4", blocks).codes
    return Repacked(pack_codes(codes.reshape(len(rows), -1), 4), blocks[:, 0].reshape(len(rows), -1), None)
