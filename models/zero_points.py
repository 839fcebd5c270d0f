"""Weights that are scale * (code - zero point), as the affine form that the backends know.

With a scale of float16 and codes of 8 bits or fewer, scale * code and scale * zero point are exact in float32, and so
the sum of the two is scale * (code - zero point) rounded once: nothing is lost.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from .mlx_affine import GROUP_SIZES, pack_codes, unpack_codes
from .scheme import Module
from .weight import Weight


def affine(
    name: str,
    words: NDArray[np.uint32],
    scales: NDArray[np.floating[Any]],
    zeros: NDArray[np.integer[Any]],
    bits: int,
    order: NDArray[np.integer[Any]] | None = None,
) -> Weight:
    """A weight of kind "MLX".

    Args:
        words: uint32 [rows, columns * bits / 32], each row one bit stream, lowest bits first.
        scales, zeros: [rows, groups].
        order: the columns group by group, if they are not in that order.
    """
    rows, columns = words.shape[0], words.shape[1] * 32 // bits
    if order is not None:
        words = pack_codes(unpack_codes(words, bits)[:, order], bits)
    group = columns // scales.shape[1]
    smaller = kept_group(group)
    if smaller != group:
        scales, zeros = (np.repeat(part, group // smaller, axis=1) for part in (scales, zeros))
    wide = np.ascontiguousarray(scales, np.float32)
    biases = wide * -zeros.astype(np.float32)
    return Weight(name, (rows, columns), "MLX", words, _narrow(wide), _narrow(biases), bits, smaller, order)


def _narrow(values: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
    """As float16 where that holds every one exactly."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    return halves if np.array_equal(halves, values) else values


def kept_group(group: int) -> int:
    """The size a group of ``group`` columns is cut to: the largest of MLX's that divides it; itself, if none does."""
    return next((size for size in sorted(GROUP_SIZES, reverse=True) if group % size == 0), group)


def is_group_size(size: object) -> TypeGuard[int]:
    """Whether config.json's group size is one that backends know: a multiple of 32, or -1 for all columns."""
    return type(size) is int and (size == -1 or (size >= 32 and size % 32 == 0))


def is_ordered(module: Module, part: str, columns: int) -> bool:
    """Whether the module says in ``part`` which group each column is in. CheckpointError for another shape."""
    if part not in module.parts:
        return False
    shape = module.need(part, "I32", "I64")
    if shape != (columns,):
        module.fail(part, f"has shape {shape}; wanted: one number for each of {columns} columns")
    return True


def group_order(module: Module, part: str, columns: int, groups: int) -> NDArray[np.integer[Any]] | None:
    """The columns group by group, from a tensor [columns] of each one's group; None where they are so already."""
    if part not in module.parts:
        return None
    index = module.data(part)
    size = columns // groups
    if not np.array_equal(np.bincount(index.clip(0, groups), minlength=groups), [size] * groups):
        module.fail(part, f"doesn't put {size} columns in each of {groups} groups")
    if np.array_equal(index, np.repeat(np.arange(groups), size)):
        return None
    return np.argsort(index, kind="stable")
