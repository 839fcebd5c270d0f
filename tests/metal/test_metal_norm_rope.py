"""Norms and rotary embedding of heads, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from metal_harness import NEEDS_COMPILER, KernelError, Tensor, mutate, run

from bireme.backends.mlx.metal.norm_rope import Heads, norm_rope_launch

pytestmark = NEEDS_COMPILER

#: An element's rounding, twice for a normed value: before it turns and after.
ROUNDING = {"float32": 4e-6, "float16": 2**-10, "bfloat16": 2**-7}


class Case:
    def __init__(self, shape: Heads, tokens: int = 3) -> None:
        random = np.random.default_rng(shape.head_dim)
        self.shape, dim = shape, shape.head_dim
        self.qkv = Tensor.of(random.standard_normal((tokens, shape.heads + 2 * shape.kv_heads, dim)), shape.dtype)
        angle = random.uniform(0, 7, (tokens, shape.pairs))
        still = np.ones((tokens, dim - 2 * shape.pairs))
        self.cos = np.concatenate((np.cos(angle), np.cos(angle), still), axis=1).astype(np.float32)
        self.sin = np.concatenate((-np.sin(angle), np.sin(angle), 0 * still), axis=1).astype(np.float32)
        self.norms = [Tensor.of(random.normal(1, 0.2, dim), shape.norm) for _ in range(2)] if shape.norm else []
        self.launch = norm_rope_launch(shape, tokens)

    def expected(self) -> list[np.ndarray]:
        x, heads = self.qkv.values().astype(np.float64), self.shape.heads
        parts = [x[:, :heads], x[:, heads : heads + self.shape.kv_heads]]
        if self.norms:
            scale = [1 / np.sqrt((part**2).mean(axis=-1, keepdims=True) + self.shape.eps) for part in parts]
            parts = [part * s * w.values() for part, s, w in zip(parts, scale, self.norms, strict=True)]
        n = self.shape.pairs
        swapped = [np.concatenate((x[..., n : 2 * n], x[..., :n], x[..., 2 * n :]), axis=-1) for x in parts]
        return [x * self.cos[:, None] + s * self.sin[:, None] for x, s in zip(parts, swapped, strict=True)]

    def check(self, source: str | None = None) -> None:
        found = run(self.launch, self.qkv, Tensor.of(self.cos), Tensor.of(self.sin), *self.norms, source=source)
        for one, wanted in zip(found, self.expected(), strict=True):
            assert np.abs(one - wanted).max() <= ROUNDING[self.shape.dtype] * np.abs(wanted).max()


@pytest.mark.parametrize(
    "heads, kv_heads, dim, pairs, dtype, norm",
    [
        (6, 2, 128, 64, "float32", "float32"),
        (4, 4, 80, 40, "float16", None),
        (3, 1, 96, 24, "bfloat16", "bfloat16"),  # half of a head turns
        (2, 1, 256, 128, "float16", "float32"),
        (2, 2, 24, 12, "float32", None),
    ],
)
def test_norms_and_turns(heads, kv_heads, dim, pairs, dtype, norm):
    Case(Heads(heads, kv_heads, dim, pairs, dtype, norm, 1e-5)).check()


@pytest.mark.parametrize(
    "old, new",
    [
        ("d < HEAD_DIM; d += 32) {\n        const int", "d < 96; d += 32) {\n        const int"),
        ("d < HEAD_DIM; d += 32) {\n        const float", "d < 96; d += 32) {\n        const float"),
        (" + EPS", ""),
        ("d - PAIRS : d;", "d + PAIRS : d;"),
    ],
)
def test_a_fault_shows(old, new):
    sound = Case(Heads(2, 1, 80, 24, "float32", "float32", 0.5))
    sound.check()
    with pytest.raises((AssertionError, KernelError)):
        sound.check(mutate(sound.launch, old, new))
