"""How MLX holds a file's matrices: which of its forms each takes, and which can lie in one array."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...models.ggml_types import DENSE
from ...models.mlx_float import MODE_OF
from ...models.source import StoredTensor
from ...models.weight import Weight
from .linear import Packing
from .metal.kernel import available
from .metal.matmul import BLOCK_TYPES
from .repack import GROUP, REPACKED

#: What a type without an exact form is quantised to.
REQUANTISED = Packing(bits=8, group_size=32)
#: Groups that MLX's affine kernels have.
AFFINE_GROUPS = (32, 64, 128)


def packing_of(weight: Weight | StoredTensor, quantized: bool) -> Packing | None:
    """How ``weight`` is held; None: dense, as everything is unless what is ``quantized`` stays so."""
    if not quantized or weight.kind in DENSE:
        return None
    if weight.kind == "MLX":
        return Packing(weight.bits, weight.group_size) if keeps_codes(weight) else REQUANTISED
    if weight.kind in MODE_OF:
        return Packing(weight.bits, weight.group_size, MODE_OF[weight.kind])
    if weight.kind in BLOCK_TYPES and available():
        return Packing(0, 0, weight.kind)
    return REPACKED.get(weight.kind, REQUANTISED) if weight.shape[1] % GROUP == 0 else None


def expert_packing(weight: Weight | StoredTensor, quantized: bool) -> Packing | None:
    """The same of an expert's matrix: there is no gathered product over GGUF's own blocks."""
    packing = packing_of(weight, quantized)
    return REQUANTISED if packing is not None and packing.mode in BLOCK_TYPES else packing


def keeps_codes(weight: Weight | StoredTensor) -> bool:
    """Whether an affine matrix stays as it is."""
    return weight.kind == "MLX" and weight.group_size in AFFINE_GROUPS


def order_of(weight: Weight) -> NDArray[np.int32] | None:
    """The input's columns as a matrix that is not decoded has them, [K]; None: in their own order."""
    return weight.order.astype(np.int32) if weight.order is not None and keeps_codes(weight) else None


def same_order(one: Weight, other: Weight) -> bool:
    first, second = order_of(one), order_of(other)
    return first is second is None or (first is not None and second is not None and np.array_equal(first, second))


def runs(weights: list[Weight], quantized: bool) -> Iterator[list[Weight]]:
    """Neighbours that are held alike and have their columns in one order."""
    run: list[Weight] = []
    for weight in weights:
        if run and not (
            packing_of(run[-1], quantized) == packing_of(weight, quantized) and same_order(run[-1], weight)
        ):
            yield run
            run = []
        run.append(weight)
    yield run
