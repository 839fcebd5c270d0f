"""Mixtures of experts over a file's own quantised weights: each expert is two ``QuantizedLinear``s.

A step's tokens are put in the order of their experts, and one call goes through all experts that have some. A token's
result never depends on other tokens: its rows are quantised and multiplied as they would be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from . import routing
from .qformat import GROUP
from .qlinear import QuantizedLinear, multiply_by_expert


class Room:
    """Float32 rows kept between calls: memory that is given back comes back a page fault at a time."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.float32)

    def rows(self, count: int, width: int) -> torch.Tensor:
        """[count, width], its values whatever they were; the last call's are no longer its own."""
        if len(self._buffer) < count * width:
            self._buffer = torch.empty(count * width, dtype=torch.float32)
        return self._buffer[: count * width].view(count, width)


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a layer of experts works in; all layers of a model share it."""

    given: Room = field(default_factory=Room)
    both: Room = field(default_factory=Room)
    products: Room = field(default_factory=Room)


class _Stack:
    """The E matrices [N, K] that one product takes."""

    def __init__(self, layers: Sequence[QuantizedLinear]) -> None:
        self.layers = layers
        self.outputs, self.columns = layers[0].shape
        self.padded = -(-self.columns // GROUP) * GROUP
        self._table = np.array([layer.native for layer in layers], np.int64)

    def __call__(self, x: torch.Tensor, starts: NDArray[np.int64], room: Room) -> torch.Tensor:
        """``x`` float32 [R, padded], each expert's rows from ``starts`` [E] up to the next: [R, N], in ``room``."""
        out = room.rows(len(x), self.outputs)
        most = int(np.diff(starts).max())
        multiply_by_expert(self._table, starts, x.data_ptr(), out.data_ptr(), most, self.padded // GROUP, self.outputs)
        return out


class QuantizedExperts:
    """The ``Experts`` (see ``backends/cuda/experts.py``) of one layer.

    Args:
        gate_up: of each expert gate and up, as rows of one matrix [2 F, D].
        down: of each expert [D, F].
    """

    def __init__(
        self, gate_up: Sequence[QuantizedLinear], down: Sequence[QuantizedLinear], rooms: Rooms | None = None
    ) -> None:
        self.gate_up, self.down = _Stack(gate_up), _Stack(down)
        self._rooms = rooms or Rooms()
        self.nbytes = sum(layer.nbytes for layer in (*gate_up, *down))

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
        given = self._rooms.given.rows(rows * top_k, self.gate_up.padded)
        routing.scatter(x.data_ptr(), places.ctypes.data, given.data_ptr(), rows, width, top_k, self.gate_up.padded)
        inner = activate(self.gate_up(given, starts, self._rooms.both))
        if self.down.padded > self.down.columns:
            inner = torch.nn.functional.pad(inner, (0, self.down.padded - self.down.columns))
        products = self.down(inner, starts, self._rooms.products)
        routing.combine(products.data_ptr(), places.ctypes.data, shares.data_ptr(), out.data_ptr(), rows, width, top_k)
        return out
