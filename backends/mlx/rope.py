"""Rotary embedding over packed tokens: every token has its own position.

Angles are taken on the host in float64. MLX's own kernel takes them in float32 with fast sines, which at position
100,000 is off by far more than the products' rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.config import ModelConfig, RopeConfig
from ...models.rope import frequencies
from .library import Array, mx


@dataclass(frozen=True, slots=True)
class Rotation:
    """For T tokens, float32 [T, 1, hd]: what to multiply x with, and x with its halves swapped."""

    cos: Array
    sin: Array
    half: int  # rotated pairs

    def __call__(self, x: Array, turn: Any) -> Array:
        """Rotate ``x`` [T, heads, hd], half-split layout, through ``turn(x, swapped, cos, sin)``."""
        half = self.half
        swapped = mx.concatenate((x[..., half : 2 * half], x[..., :half], x[..., 2 * half :]), axis=-1)
        return turn(x, swapped, self.cos, self.sin)


class RotaryTables:
    """The rotations of one model: those of each of its ``ropes``."""

    def __init__(self, config: ModelConfig) -> None:
        self._tables = [RotaryTable(rope, config.head_dim) for rope in config.ropes]

    def at(self, positions: NDArray[np.int32]) -> tuple[Rotation, ...]:
        """Of the tokens at ``positions`` [T]."""
        return tuple(table.at(positions) for table in self._tables)


class RotaryTable:
    """The rotations of one rotary embedding."""

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        self._inverse, self._magnitude = frequencies(rope, head_dim)
        self._rest = head_dim - 2 * len(self._inverse)

    def at(self, positions: NDArray[np.int32]) -> Rotation:
        """Of the tokens at ``positions`` [T]."""
        angles = positions.astype(np.float64)[:, None] * self._inverse
        cos, sin = np.cos(angles) * self._magnitude, np.sin(angles) * self._magnitude
        still = np.ones((len(positions), self._rest))
        cos = np.concatenate((cos, cos, still), axis=1).astype(np.float32)
        sin = np.concatenate((-sin, sin, 0 * still), axis=1).astype(np.float32)
        return Rotation(mx.array(cos[:, None]), mx.array(sin[:, None]), len(self._inverse))


def turn(x: Array, swapped: Array, cos: Array, sin: Array) -> Array:
    """``x * cos + swapped * sin`` in float32, in the dtype of ``x``."""
    return (x.astype(mx.float32) * cos + swapped.astype(mx.float32) * sin).astype(x.dtype)
