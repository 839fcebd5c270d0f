"""Keys and values made codes: bit for bit the numbers of the torch definition."""

from __future__ import annotations

import numpy as np
import pytest
from metal_harness import NEEDS_COMPILER, KernelError, Tensor, mutate, run

torch = pytest.importorskip("torch")

from bireme.backends.cuda.kv import quantise  # noqa: E402
from bireme.backends.mlx.metal.quantise import quantise_launch  # noqa: E402

pytestmark = NEEDS_COMPILER


class Case:
    """Heads of many magnitudes; some without a scale, with ties, zero, or too small for one."""

    def __init__(self, tokens: int, kv_heads: int, dim: int, dtype: str) -> None:
        random = np.random.default_rng(dim)
        size = np.float32(10.0) ** random.uniform(-4, 4, (2, tokens, kv_heads, 1)).astype(np.float32)
        x = random.standard_normal((2, tokens, kv_heads, dim)).astype(np.float32) * size
        rows = x.reshape(-1, dim)
        rows[0], rows[1], rows[2] = 0, 1e-42, random.integers(-254, 255, dim) / 2
        rows[2, 0] = 127
        rows[-1, -1], rows[-2, dim // 2], rows[-3, 0] = np.nan, np.inf, -np.inf
        self.inputs = [Tensor.of(each, dtype) for each in x]
        self.launch = quantise_launch(tokens, kv_heads, dim, dtype)

    def check(self, source: str | None = None) -> None:
        found = run(self.launch, *self.inputs, source=source)
        wanted = [quantise(torch.from_numpy(each.values())) for each in self.inputs]
        for codes, scales, (wanted_codes, wanted_scales) in zip(found[:2], found[2:], wanted, strict=True):
            np.testing.assert_array_equal(codes, wanted_codes.numpy())
            np.testing.assert_array_equal(scales, wanted_scales.numpy())


@pytest.mark.parametrize(
    "tokens, kv_heads, dim, dtype",
    [
        (5, 2, 64, "float32"),
        (3, 3, 80, "float16"),
        (4, 1, 96, "bfloat16"),
        (2, 8, 128, "float16"),
        (7, 1, 256, "bfloat16"),
    ],
)
def test_shapes_and_types(tokens, kv_heads, dim, dtype):
    Case(tokens, kv_heads, dim, dtype).check()


@pytest.mark.parametrize(
    "old, new",
    [
        ("d < HEAD_DIM; d += 32) {\n        const float x", "d < HEAD_DIM - 16; d += 32) {\n        const float x"),
        ("lanes < 32;", "lanes < 16;"),
        ("& 0x7fffffffu", ""),
        ("const bool finite = most < 0x7f800000u;", "const bool finite = true;"),
        ("metal::max(as_type<float>(most) / 127.0f, LEAST_SCALE)", "as_type<float>(most) / 127.0f"),
        ("metal::rint(x / scale)", "x / scale"),
        ("% KV_HEADS", "% (KV_HEADS + 1)"),
        ("if (lane == 0) {", "if (lane == 0 && head > 0) {"),
    ],
)
def test_a_fault_shows(old, new):
    sound = Case(5, 2, 80, "float32")
    sound.check()
    with pytest.raises((AssertionError, KernelError)):
        sound.check(mutate(sound.launch, old, new))
