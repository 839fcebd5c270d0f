"""Rotary frequencies (arXiv:2104.09864) and their scalings, as every backend uses them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .config import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> tuple[NDArray[np.float64], float]:
    """Angle per position for each rotated pair, and the factor on cos and sin.

    Returns:
        (float64 [rotary_dim / 2], magnitude). Element i turns dims (i, i + rotary_dim / 2): the half-split layout.
    """
    dim = rope.rotary_dim or head_dim
    plain = rope.theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if rope.divisors is not None:
        if len(rope.divisors) != len(plain):
            raise ValueError(f"{len(rope.divisors)} rotary divisors for {len(plain)} frequencies")
        return plain / np.asarray(rope.divisors, dtype=np.float64), 1.0
    if rope.kind == "default":
        return plain, 1.0
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, rope, dim)
    raise ValueError(f"rotary scaling {rope.kind!r} is not known; known are default, linear, llama3 and yarn")


def _original(rope: RopeConfig) -> int:
    if rope.original_max_position is None:
        raise ValueError(f"rotary scaling {rope.kind!r} needs the original context length, and the model names none")
    return rope.original_max_position


def _llama3(plain: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Llama 3.1: long waves are divided by the factor, short ones stay, those between are blended."""
    turns = _original(rope) * plain / (2 * math.pi)  # turns within the original context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(plain: NDArray[np.float64], rope: RopeConfig, dim: int) -> tuple[NDArray[np.float64], float]:
    """YaRN (arXiv:2309.00071): the same idea with a ramp over the dims, and a warmer softmax."""

    def dim_of(turns: float) -> float:
        return dim * math.log(_original(rope) / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(dim_of(rope.beta_fast)), 0)
    high = min(math.ceil(dim_of(rope.beta_slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    magnitude = rope.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
    return ramp * plain / rope.factor + (1 - ramp) * plain, magnitude
