"""A part of a weight's rows or columns, still in the file's own encoding."""

from __future__ import annotations

import dataclasses

import numpy as np

from ....models.dequant import dequantize
from ....models.fp8 import KIND as FP8
from ....models.ggml_types import BY_NAME
from ....models.weight import Weight

#: Columns whose codes always begin with a whole 32-bit word, whatever bits a code has.
_WORD_COLUMNS = 32


def grain(kind: str, columns: int, group_size: int, ordered: bool) -> int:
    """A weight can be cut before columns that are multiples of this, and stays what it is; 0: nowhere."""
    if kind in BY_NAME:
        return BY_NAME[kind].block
    if ordered:
        return 0
    if 0 < group_size < columns:
        return group_size
    return 1 if kind == FP8 else _WORD_COLUMNS


def divides(unit: int, start: int, stop: int, columns: int) -> bool:
    """Whether columns ``start`` to ``stop`` are whole blocks of ``unit``."""
    return unit > 0 and start % unit == 0 and (stop % unit == 0 or stop == columns)


def cut_columns(weight: Weight, start: int, stop: int) -> Weight:
    """Columns ``start`` to ``stop`` of a matrix, copied. Where blocks don't end there the part is decoded (F32)."""
    rows, columns = weight.shape
    if (start, stop) == (0, columns):
        return weight
    unit = grain(weight.kind, columns, weight.group_size, weight.ordered)
    shape = rows, stop - start
    if not divides(unit, start, stop, columns):
        decoded = np.ascontiguousarray(dequantize(weight)[:, start:stop])
        return Weight(weight.name, shape, "F32", decoded)
    width = weight.data.shape[1]  # bytes, words or elements of a row
    data = np.ascontiguousarray(weight.data[:, start * width // columns : -(-stop * width // columns)])
    if weight.scales is None:
        return dataclasses.replace(weight, shape=shape, data=data)
    if weight.group_size >= columns:
        return dataclasses.replace(weight, shape=shape, data=data, group_size=shape[1])
    groups = slice(start // weight.group_size, -(-stop // weight.group_size))
    biases = None if weight.biases is None else np.ascontiguousarray(weight.biases[:, groups])
    scales = np.ascontiguousarray(weight.scales[:, groups])
    return dataclasses.replace(weight, shape=shape, data=data, scales=scales, biases=biases)
