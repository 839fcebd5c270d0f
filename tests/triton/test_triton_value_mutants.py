"""The decoding of planes with one thing changed: comparing values must notice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from cpu_weights import mlx_weight
from triton_mutants import mutant
from triton_setup import CPU, block_weight

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from triton.runtime.errors import InterpreterError

from bireme.backends.cuda.kernels import quantized
from bireme.backends.cuda.planes import planes
from bireme.models.weight import Weight


def ggml(kind: str) -> Callable[[], Weight]:
    return lambda: block_weight(kind, 21, 256)[0]


def affine() -> Weight:
    return mlx_weight(3, 32, 21, 224, np.random.default_rng(1))


def zeros() -> Weight:
    weight = mlx_weight(4, 128, 21, 384, np.random.default_rng(2))
    assert weight.scales is not None
    biases = weight.scales.astype(np.float32) * -np.random.default_rng(3).integers(1, 9, weight.scales.shape)
    return Weight("w", weight.shape, "MLX", weight.data, weight.scales, biases.astype(np.float32), 4, 128)


def fp8() -> Weight:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 127, (150, 224)) | rng.integers(0, 2, (150, 224)) << 7
    scales = np.repeat(rng.random((2, 2), np.float32), 128, axis=0)[:150]
    return Weight("w", (150, 224), "F8_E4M3", codes.astype(np.uint8), scales, None, 8, 128)


#: (old, new, a weight that shows it)
MUTANTS = [
    ("lane % WIDTH", "lane % (WIDTH // 2)", ggml("Q2_K")),
    ("(byte >> (shift + 4)) & MASK", "(byte >> shift) & MASK", ggml("Q3_K")),
    ("code_b | (high_b << LOW)", "code_b | (high_b << 4)", ggml("Q3_K")),
    ("tl.where(code < 12, C, D)", "tl.where(code < 11, C, D)", ggml("IQ4_NL")),
    ("(24 - (code & 3) * 8)", "(16 - (code & 1) * 8)", ggml("IQ4_XS")),
    ("_signed(word, 0), d * _signed(word, 8)", "_signed(word, 0), d * _signed(word, 0)", ggml("IQ4_XS")),
    ("0x00200000 << exponent", "0x00200000", ggml("MXFP4")),
    ("left = lane < 16", "left = lane < 8", ggml("Q2_K")),
    ("left = lane < 16", "left = lane < 15", ggml("Q6_K")),
    ("dmin * ((part_b >> 4) & 15)", "dmin * (part_b >> 4)", ggml("Q2_K")),
    ("tile // 4 * rows", "tile // 8 * rows", lambda: block_weight("Q4_K", 5, 512)[0]),
    ("(tile * 64 + 32) // GROUP", "tile * 64 // GROUP", affine),
    ("(b - m_b) * s_b[:, None]", "b * s_b[:, None] - m_b", zeros),
    ("row // SHARED, second", "row % SHARED, second", fp8),
    ("((code & 128) << 8)", "((code & 64) << 9)", fp8),
    ("s_a, s_b = s_a * 256, s_b * 256", "s_a, s_b = s_a * 256, s_b * 128", fp8),
]  # fmt: skip


def values_are_right(weight: Weight) -> None:
    found = quantized.dequantize(planes(weight, CPU), torch.float32).numpy()
    np.testing.assert_array_equal(found, weight.dequantize())


@pytest.mark.parametrize("old, new, weight", MUTANTS)
def test_a_change_is_noticed(old, new, weight, monkeypatch, tmp_path):
    values_are_right(weight())
    monkeypatch.setattr(quantized, "decode_tile", mutant("plane_values", old, new, tmp_path).decode_tile)
    with pytest.raises((AssertionError, InterpreterError)):
        values_are_right(weight())
