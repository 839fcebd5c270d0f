"""Linear layers over a file's own quantised weights.

Every GGML type and affine MLX keep their codes, scales and minimums as they are; the float32 arithmetic of a layer is
then the only difference to the dequantised matrix, apart from activations rounded to 8 bits per row and 32 values.
Dense weights are rounded to 8 bits with a scale per 32 values when they are packed (``kinds`` says so).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from ...models.weight import Weight
from . import jit
from .qdriver import DRIVER_IR, Segment
from .qformat import GROUP, LANES, Format
from .qkernel import ACTIVATION_BYTES, ROWS, choose_dot, kernel_ir
from .qpack import Packed, pack
from .threads import pool

_CHUNKS_PER_THREAD = 8
#: Of an expert's matrix, which is small: longer runs of memory are read faster.
_CHUNKS_PER_EXPERT = 2


class _Driver:
    """``qdriver``'s code."""

    def __init__(self) -> None:
        pool()  # registers the symbol that the code calls
        self._module = jit.compile_ir(DRIVER_IR)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        kind = ctypes.CFUNCTYPE(None, pointer, integer, pointer, pointer, pointer, *[integer] * 4)
        self.apply = kind(self._module.address("apply"))
        by_expert = ctypes.CFUNCTYPE(None, pointer, pointer, integer, pointer, pointer, pointer, *[integer] * 3)
        self.apply_by_expert = by_expert(self._module.address("apply_by_expert"))


@cache
def _driver() -> _Driver:
    return _Driver()


@cache
def kernel(form: Format, dot: str | None = None) -> jit.Module:
    """The compiled kernel of a format, with the products of ``dot`` (None: the fastest this CPU has)."""
    return jit.compile_ir(kernel_ir(form, dot or choose_dot(jit.target()[1])))


class _Scratch:
    """Room for quantised activations, kept between calls."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._size = self._address = 0

    def address(self, size: int) -> int:
        """Where at least ``size`` bytes are, 64-byte aligned."""
        if self._size < size:
            self._buffer = torch.empty(size, dtype=torch.uint8)
            self._size, self._address = size, self._buffer.data_ptr()
        return self._address


_scratch = _Scratch()


def _room(rows: int, groups: int) -> int:
    """Where ``rows`` of quantised activations can lie."""
    return _scratch.address(-(-rows // ROWS) * ROWS * groups * ACTIVATION_BYTES)


def multiply_by_expert(
    layers: NDArray[np.int64], starts: NDArray[np.int64], x: int, out: int, most: int, groups: int, outputs: int
) -> None:
    """Rows of ``x`` (the address of float32 [R, 32 * groups]), each expert's from ``starts`` [E] up to the next and at
    most ``most``, through that expert's layer: float32 [R, outputs] at ``out``.

    ``layers`` [E, 2]: each expert's ``QuantizedLinear.native``, all of one shape.
    """
    chunks = pool().threads * _CHUNKS_PER_EXPERT
    where = layers.ctypes.data, starts.ctypes.data, len(layers)
    _driver().apply_by_expert(*where, x, _room(most, groups), out, groups, outputs, chunks)


class QuantizedLinear:
    """``x @ W.T + bias``, W's rows being those of ``weights`` end to end; a row's result never depends on other rows.

    Calls must come from one thread at a time. ValueError for weights of different widths.
    """

    def __init__(self, weights: Sequence[Weight], bias: torch.Tensor | None = None, *, dot: str | None = None) -> None:
        if len({weight.shape[1] for weight in weights}) != 1:
            raise ValueError(f"weights of one layer must agree in width, not {[weight.shape for weight in weights]}")
        self.parts: list[Packed] = []
        for weight in weights:
            self._add(pack(weight))
        self.shape = (sum(part.rows for part in self.parts), weights[0].shape[1])
        self.kinds = tuple(dict.fromkeys(part.kind for part in self.parts))
        self._biases = [np.zeros(part.tiles.shape[0] * LANES, np.float32) for part in self.parts]
        if bias is not None:
            self._set_bias(bias)
        self.nbytes = sum(part.tiles.nbytes + own.nbytes for part, own in zip(self.parts, self._biases, strict=True))
        self._groups = -(-self.shape[1] // GROUP)
        self._padding = self._groups * GROUP - self.shape[1]
        self._segments = (Segment * len(self.parts))(*self._describe(dot))
        self.native = (ctypes.addressof(self._segments), len(self.parts))  # as the driver wants it
        self._pool = pool()
        self._apply = _driver().apply

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``x`` float32 [T, K] to [T, N], into ``out`` (float32, contiguous) if given."""
        rows = x.shape[0]
        if x.shape[1] != self.shape[1] or x.dtype != torch.float32:
            raise ValueError(f"x is {x.dtype} {tuple(x.shape)}; the layer takes float32 [T, {self.shape[1]}]")
        if out is None:
            out = torch.empty((rows, self.shape[0]), dtype=torch.float32)
        elif out.shape != (rows, self.shape[0]) or out.dtype != torch.float32 or not out.is_contiguous():
            raise ValueError(
                f"out is {out.dtype} {tuple(out.shape)}; it must be float32 {(rows, self.shape[0])}, contiguous"
            )
        if rows == 0:
            return out
        x = torch.nn.functional.pad(x, (0, self._padding)) if self._padding else x.contiguous()
        groups = self._groups
        room, chunks = _room(rows, groups), self._pool.threads * _CHUNKS_PER_THREAD
        self._apply(*self.native, x.data_ptr(), room, out.data_ptr(), rows, groups, self.shape[0], chunks)
        return out

    def dequantize(self) -> NDArray[np.float32]:
        """The weights as the kernel sees them, float32 [N, K]."""
        return np.concatenate([part.dequantize() for part in self.parts])

    def _add(self, part: Packed) -> None:
        """Append rows; to the last part where format and tiles allow."""
        if self.parts and self.parts[-1].form == part.form and self.parts[-1].rows % LANES == 0:
            self.parts[-1] = self.parts[-1].joined(part)
        else:
            self.parts.append(part)

    def _set_bias(self, bias: torch.Tensor) -> None:
        if tuple(bias.shape) != self.shape[:1]:
            raise ValueError(f"a bias of shape {tuple(bias.shape)} doesn't fit {self.shape[0]} outputs")
        values, first = bias.detach().to(torch.float32).numpy(), 0
        for part, own in zip(self.parts, self._biases, strict=True):
            own[: part.rows] = values[first : first + part.rows]
            first += part.rows

    def _describe(self, dot: str | None) -> list[Segment]:
        """The parts as the driver wants them."""
        segments, first = [], 0
        for part, bias in zip(self.parts, self._biases, strict=True):
            task = kernel(part.form, dot).address("linear")
            segments.append(Segment(task, part.tiles.ctypes.data, bias.ctypes.data, first, part.rows))
            first += part.rows
        return segments
