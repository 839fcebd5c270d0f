"""The quantised products' kernels against float64 products with exactly decoded weights."""

from __future__ import annotations

import numpy as np
import pytest
from metal_harness import NEEDS_COMPILER, KernelError, Tensor, mutate, run
from tiny import quantize_affine

from bireme.backends.mlx.metal.kernel import Launch
from bireme.backends.mlx.metal.matmul import (
    BLOCK_TYPES,
    TOKEN_TILES,
    affine_launch,
    block_launch,
    block_words,
    dequantize_launch,
    generation,
    token_tile,
    weight_rows,
)
from bireme.models.ggml_types import BY_NAME
from bireme.models.mlx_affine import unpack_codes
from bireme.models.weight import Weight

pytestmark = NEEDS_COMPILER

#: Where float16 fields lie in a block.
HALVES = {"Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "IQ4_NL": (0,), "IQ4_XS": (0,)}
#: Whole blocks, and for IQ4_NL a row that ends within a stretch of 256.
COLUMNS = {"Q6_K": 768, "Q3_K": 512, "Q2_K": 256, "IQ4_NL": 416, "IQ4_XS": 512}
ROWS = 13  # no whole number of any threadgroup's
ROUNDING = {"float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8}


def random_blocks(kind: str, rows: int = ROWS) -> Weight:
    """Every bit at random, but for float16 scales that are finite."""
    random = np.random.default_rng(7)
    form = BY_NAME[kind]
    blocks = random.integers(0, 256, (rows, COLUMNS[kind] // form.block, form.size), np.uint8)
    for at in HALVES[kind]:
        scale = random.normal(0, 0.01, blocks.shape[:2]).astype("<f2")
        blocks[:, :, at : at + 2] = scale[:, :, None].view(np.uint8)
    return Weight("w.weight", (rows, COLUMNS[kind]), kind, blocks.reshape(rows, -1))


def inputs(tokens: int, columns: int, dtype: str) -> Tensor:
    return Tensor.of(np.random.default_rng(tokens).standard_normal((tokens, columns)).astype(np.float32), dtype)


def check(found: np.ndarray, x: Tensor, weights: np.ndarray, dtype: str) -> None:
    """Within float32's error of a sum of such products, and the result's rounding."""
    exact = x.values().astype(np.float64) @ weights.T.astype(np.float64)
    noise = 3e-7 * (np.abs(x.values()) @ np.abs(weights).T)
    assert (np.abs(found - exact) <= noise + ROUNDING[dtype] * np.abs(exact)).all()


class Blocks:
    """One block product."""

    def __init__(self, kind: str, tokens: int, dtype: str, rows: int = ROWS) -> None:
        self.weight, self.dtype = random_blocks(kind, rows), dtype
        self.x = inputs(tokens, COLUMNS[kind], dtype)
        self.launch: Launch = block_launch(tokens, rows, kind, dtype)

    def check(self, source: str | None = None) -> None:
        found = run(self.launch, self.x, Tensor.of(block_words(self.weight)), source=source)[0]
        check(found, self.x, self.weight.dequantize(), self.dtype)


class Affine:
    """One affine product."""

    def __init__(self, bits: int, tokens: int, dtype: str, group: int = 32, rows: int = ROWS) -> None:
        random = np.random.default_rng(bits)
        words, scales, biases = quantize_affine(
            random.standard_normal((rows, 416 if group == 32 else 384)), bits, group
        )
        self.parts = [Tensor.of(words, "uint32"), Tensor.of(scales, dtype), Tensor.of(biases, dtype)]
        codes = unpack_codes(words, bits).astype(np.float32).reshape(rows, -1, group)
        scale, bias = (part.values()[:, :, None] for part in self.parts[1:])
        self.weights = (codes * scale + bias).reshape(rows, -1)
        self.x, self.dtype = inputs(tokens, self.weights.shape[1], dtype), dtype
        self.launch: Launch = affine_launch(tokens, rows, bits, group, dtype)

    def check(self, source: str | None = None) -> None:
        check(run(self.launch, self.x, *self.parts, source=source)[0], self.x, self.weights, self.dtype)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_decoding_is_exact(kind):
    weight = random_blocks(kind)
    index = np.array([5, 0, 12, 3, 3], np.int32)
    launch = dequantize_launch(len(index), COLUMNS[kind], kind, "float32")
    width = Tensor.of(np.array([COLUMNS[kind]], np.int32))
    found = run(launch, Tensor.of(block_words(weight)), Tensor.of(index), width)[0]
    np.testing.assert_array_equal(found, weight.dequantize()[index])


@pytest.mark.parametrize("dtype, tokens", [("float32", 5), ("float16", 1), ("bfloat16", 16)])
@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_block_products(kind, dtype, tokens):
    Blocks(kind, tokens, dtype).check()


@pytest.mark.parametrize("tokens", [*TOKEN_TILES, 5, 13, 17, 40])
def test_every_number_of_rows(tokens):
    Blocks("Q6_K", tokens, "float32").check()


@pytest.mark.parametrize("rows", [1, 8, 9])
def test_every_number_of_weight_rows(rows):
    Blocks("Q6_K", 2, "float32", rows).check()
    Affine(4, 2, "float32", rows=max(rows, 2)).check()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_affine_bits(bits):
    Affine(bits, 5, "float32").check()


@pytest.mark.parametrize("bits, tokens, dtype, group", [(4, 2, "float16", 64), (4, 16, "bfloat16", 128)])
def test_affine_groups_and_types(bits, tokens, dtype, group):
    Affine(bits, tokens, dtype, group).check()


FAULTS = [
    ("row[r] = metal::min(first_row + r, rows - 1);", "row[r] = first_row + r;"),
    ("token[t] = metal::min(first_token + t, tokens - 1);", "token[t] = first_token + t;"),
    (" && first_token + t < tokens", ""),
    (" && first_row + r < rows", ""),
]


@pytest.mark.parametrize(
    "old, new", [*FAULTS, ("at < columns; at += 256", "at < 512; at += 256"), ("* BITS > 32", "> 64")]
)
def test_a_fault_in_affine_products_shows(old, new):
    sound = Affine(5, 5, "float32")
    with pytest.raises((AssertionError, KernelError)):
        sound.check(mutate(sound.launch, old, new))


@pytest.mark.parametrize("old, new", [*FAULTS, ("+ pair_at(lane, 0) < columns", "< columns")])
def test_a_fault_in_block_products_shows(old, new):
    sound = Blocks("IQ4_NL", 5, "float32")
    with pytest.raises((AssertionError, KernelError)):
        sound.check(mutate(sound.launch, old, new))


def test_tiles_hold_all_rows_and_stay_in_registers():
    for tokens in range(1, 17):
        tile = token_tile(tokens)
        assert tokens <= tile <= max(tokens * 4 / 3, tokens + 2)
        assert tile * weight_rows(tile) + weight_rows(tile) * 8 <= 64
    assert token_tile(100) == 16


def test_generations_by_name():
    assert [generation(name) for name in ("applegpu_g14s", "applegpu_g16p", "unknown")] == [14, 16, 0]
