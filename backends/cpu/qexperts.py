"""Mixtures of experts over a file's own quantised weights: each expert is two ``QuantizedLinear``s.

A step's tokens are put in the order of their experts, and one call goes through all experts that have some. A token's
result never depends on other tokens: its rows are quantised and multiplied as they would be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from . import routing
from .qformat import GROUP
from .qlinear import QuantizedLinear, multiply_by_expert
from .threads import pool


class _Stack:
    """The E matrices [N, K] that one product takes."""

    def __init__(self, layers: Sequence[QuantizedLinear]) -> None:
        self.layers = layers
        self.outputs, self.columns = layers[0].shape
        self.padded = -(-self.columns // GROUP) * GROUP
        self._table = np.array([layer.native for layer in layers], np.int64)

    def __call__(self, x: torch.Tensor, starts: NDArray[np.int64]) -> torch.Tensor:
        """``x`` float32 [R, padded], each expert's rows from ``starts`` [E] up to the next: [R, N]."""
        out = torch.empty((len(x), self.outputs), dtype=torch.float32)
        most = int(np.diff(starts).max())
        multiply_by_expert(self._table, starts, x.data_ptr(), out.data_ptr(), most, self.padded // GROUP, self.outputs)
        return out


class QuantizedExperts:
    """The ``Experts`` (see ``backends/cuda/experts.py``) of one layer.

    Args:
        gate_up: of each expert gate and up, as rows of one matrix [2 F, D].
        down: of each expert [D, F].
    """

    def __init__(self, gate_up: Sequence[QuantizedLinear], down: Sequence[QuantizedLinear]) -> None:
        self.gate_up, self.down = _Stack(gate_up), _Stack(down)
        self.nbytes = sum(layer.nbytes for layer in (*gate_up, *down))
        self._pool = pool()

    def __call__(
        self,
        x: torch.Tensor,
        shares: torch.Tensor,
        chosen: torch.Tensor,
        activate: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Float32 ``x`` [T, D] through the experts ``chosen`` int64 [T, k], weighed by ``shares`` [T, k]."""
        (rows, width), (_, top_k), out = x.shape, chosen.shape, torch.empty_like(x)
        shares, chosen = shares.contiguous(), chosen.contiguous()
        if not rows:
            return out
        starts, places = np.empty(len(self.gate_up.layers) + 1, np.int64), np.empty(rows * top_k, np.int64)
        routing.arrange(chosen.data_ptr(), starts.ctypes.data, places.ctypes.data, rows * top_k, len(starts) - 1)
        given = torch.empty((rows * top_k, self.gate_up.padded), dtype=torch.float32)
        routing.scatter(x.data_ptr(), places.ctypes.data, given.data_ptr(), rows, width, top_k, self.gate_up.padded)
        inner = activate(self.gate_up(given, starts))
        if self.down.padded > self.down.columns:
            inner = torch.nn.functional.pad(inner, (0, self.down.padded - self.down.columns))
        products = self.down(inner, starts)
        routing.combine(products.data_ptr(), places.ctypes.data, shares.data_ptr(), out.data_ptr(), rows, width, top_k)
        return out
