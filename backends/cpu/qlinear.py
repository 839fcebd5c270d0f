"""Linear layers over a file's own quantised weights.

Every GGML type and affine MLX keep their codes, scales and minimums as they are; the float32 arithmetic of a layer is then the
only difference to the dequantised matrix, apart from activations rounded to 8 bits per row and 32 values. Dense weights are
rounded to 8 bits with a scale per 32 values when they are packed (``kinds`` says so).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

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

_INTS = [ctypes.c_int64] * 4
_CHUNKS_PER_THREAD = 8


@cache
def _driver() -> tuple[jit.Module, Any, Any, Any]:
    """The driver's code and its entries ``quantize``, ``linear`` and ``apply``."""
    pool()  # registers the symbol that the driver calls
    module = jit.compile_ir(DRIVER_IR, "qdriver")
    pointer = ctypes.c_void_p
    quantize = ctypes.CFUNCTYPE(None, pointer, pointer, *_INTS[:2])(module.address("quantize"))
    linear = ctypes.CFUNCTYPE(None, pointer, _INTS[0], pointer, pointer, *_INTS)(module.address("linear"))
    apply = ctypes.CFUNCTYPE(None, pointer, _INTS[0], pointer, pointer, pointer, *_INTS)(module.address("apply"))
    return module, quantize, linear, apply


@cache
def kernel(form: Format, dot: str | None = None) -> jit.Module:
    """The compiled kernel of a format, with the products of ``dot`` (None: the fastest this CPU has)."""
    return jit.compile_ir(kernel_ir(form, dot or choose_dot(jit.target()[1])), f"linear_{form.name}")


class _Scratch:
    """Room for quantised activations, kept between calls."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def address(self, rows: int, groups: int) -> int:
        size = -(-rows // ROWS) * ROWS * groups * ACTIVATION_BYTES
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.uint8)
        return self._buffer.data_ptr()


_scratch = _Scratch()


class QuantizedLinear:
    """``x @ W.T + bias`` where W's rows are those of ``weights`` end to end; a row's result never depends on other rows.

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
        self.bias = None if bias is None else bias.detach().to(torch.float32).contiguous()
        if self.bias is not None and self.bias.shape != self.shape[:1]:
            raise ValueError(f"a bias of shape {tuple(self.bias.shape)} doesn't fit {self.shape[0]} outputs")
        self.nbytes = sum(part.tiles.nbytes for part in self.parts) + (0 if self.bias is None else self.bias.nbytes)
        self._groups = -(-self.shape[1] // GROUP)
        self._padding = self._groups * GROUP - self.shape[1]
        self._segments = (Segment * len(self.parts))(*self._describe(dot))
        self._address = ctypes.addressof(self._segments)
        self._apply = _driver()[3]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``x`` float32 [T, K] to [T, N], into ``out`` (float32, contiguous) if given."""
        rows = x.shape[0]
        if x.shape[1] != self.shape[1] or x.dtype != torch.float32:
            raise ValueError(f"x is {x.dtype} {tuple(x.shape)}; the layer takes float32 [T, {self.shape[1]}]")
        if out is None:
            out = torch.empty((rows, self.shape[0]), dtype=torch.float32)
        if rows == 0:
            return out
        x = torch.nn.functional.pad(x, (0, self._padding)) if self._padding else x.contiguous()
        acts = _scratch.address(rows, self._groups)
        chunks = pool().threads * _CHUNKS_PER_THREAD
        self._apply(
            self._address,
            len(self.parts),
            x.data_ptr(),
            acts,
            out.data_ptr(),
            rows,
            self._groups,
            self.shape[0],
            chunks,
        )
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

    def _describe(self, dot: str | None) -> list[Segment]:
        """The parts as the driver wants them."""
        segments, first = [], 0
        for part in self.parts:
            bias = 0 if self.bias is None else self.bias.data_ptr() + 4 * first
            task = kernel(part.form, dot).address("linear")
            segments.append(Segment(task, part.tiles.ctypes.data, bias, first, part.rows))
            first += part.rows
        return segments
