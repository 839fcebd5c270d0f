"""Exact float32 values of stored tensors, whole or by rows, without temporaries larger than a few row chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import fp8
from .blocks import UNPACKERS, unpack
from .ggml_types import BY_NAME
from .mlx_affine import unpack_codes
from .mlx_float import MODE_OF, decode
from .weight import Weight

CHUNK = 1 << 18  # elements decoded at a time


def dequantize(weight: Weight, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
    """Rows ``start`` to ``stop`` (all, unless given) as float32, shape ``weight.shape`` but for the rows.

    Bit for bit what gguf-py makes of GGML types; affine MLX weights are scale * code + bias in float32, in the input's
    order of columns. Always a new array.

    Raises:
        ValueError: a kind without a decoder.
    """
    count = weight.shape[0]
    stop = count if stop is None else min(stop, count)
    out = np.empty((max(stop - start, 0), *weight.shape[1:]), np.float32)
    places = None if weight.order is None else np.argsort(weight.order)
    for first, last in row_chunks(weight.shape, start, stop):
        values = _decode(weight, slice(first, last)).reshape(-1, *weight.shape[1:])
        out[first - start : last - start] = values if places is None else values[:, places]
    return out


def take_rows(weight: Weight, index: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """The rows ``index`` [n] of a matrix as float32 [n, columns]; only these are decoded (an embedding look-up)."""
    return dequantize(select_rows(weight, index))


def select_rows(weight: Weight, index: slice | NDArray[np.integer[Any]]) -> Weight:
    """The same tensor with only the rows of ``index``: views for a slice, copies for an index array."""
    data = weight.data[index]
    return dataclasses.replace(
        weight,
        shape=(data.shape[0], *weight.shape[1:]),
        data=data,
        scales=None if weight.scales is None else weight.scales[index],
        biases=None if weight.biases is None else weight.biases[index],
    )


def stack_rows(weights: Sequence[Weight]) -> Weight:
    """Matrices stored alike as one, their rows end to end; a copy. It has the first one's name."""

    def joined(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
        found = [part for part in parts if part is not None]
        return np.concatenate(found) if found else None

    first, rows = weights[0], sum(weight.shape[0] for weight in weights)
    return dataclasses.replace(
        first,
        shape=(rows, *first.shape[1:]),
        data=np.concatenate([weight.data for weight in weights]),
        scales=joined([weight.scales for weight in weights]),
        biases=joined([weight.biases for weight in weights]),
    )


def row_chunks(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that cover ``start`` to ``stop``, each of about ``CHUNK`` elements."""
    row = int(np.prod(shape[1:], dtype=np.int64)) or 1
    step = max(CHUNK // row, 1)
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def _decode(weight: Weight, rows: slice) -> NDArray[np.float32]:
    """A few rows, in one go."""
    data, kind = weight.data[rows], weight.kind
    if kind in ("F32", "F16"):
        return data.astype(np.float32)
    if kind == "BF16":
        return bf16_to_float32(data)
    if kind == "MLX":
        return _decode_mlx(weight, rows)
    if kind in MODE_OF:
        assert weight.scales is not None
        return decode(kind, data, weight.scales[rows])
    if kind == fp8.KIND:
        assert weight.scales is not None
        return fp8.decode(data, weight.scales[rows], weight.group_size)
    if kind not in UNPACKERS:
        raise ValueError(f"tensor {weight.name} has type {kind}, for which there is no decoder")
    return unpack(kind, data.reshape(-1, BY_NAME[kind].size)).values()


def bf16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _decode_mlx(weight: Weight, rows: slice) -> NDArray[np.float32]:
    assert weight.scales is not None and weight.biases is not None
    codes = unpack_codes(weight.data[rows], weight.bits).astype(np.float32)
    values = codes.reshape(codes.shape[0], -1, weight.group_size)
    values *= weight.scales[rows].astype(np.float32)[:, :, None]
    values += weight.biases[rows].astype(np.float32)[:, :, None]
    return values
