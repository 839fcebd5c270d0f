"""Quantised linear layers: the arithmetic, on every kind of weight and at awkward sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpu_weights import DENSE, EXACT_GGML, KINDS, dense_weight, expected, ggml_weight, mlx_weight, random_weight

from bireme.backends.cpu import jit
from bireme.backends.cpu.qformat import Format, pack_tiles, unpack_tiles
from bireme.backends.cpu.qkernel import DOTS, choose_dot
from bireme.backends.cpu.qlinear import QuantizedLinear
from bireme.models.weight import Weight

DOTS_HERE = ["plain"] + (["avx2"] if "avx2" in jit.target()[1] else [])
DOTS_HERE += ["vnni"] if choose_dot(jit.target()[1]) == "vnni" else []


def activations(rng: np.random.Generator, rows: int, columns: int) -> torch.Tensor:
    """Rows of very different sizes, as hidden states have."""
    return torch.from_numpy(
        (rng.normal(0, 1, (rows, columns)) * np.exp(rng.normal(0, 3, (rows, 1)))).astype(np.float32)
    )


def assert_right(layer: QuantizedLinear, x: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    wanted, size = expected(x.numpy(), layer.dequantize())
    extra = 0.0 if bias is None else bias.numpy().astype(np.float64)
    assert np.all(np.abs(layer(x).numpy() - (wanted + extra)) <= 1e-5 * size + 1e-6 * np.abs(extra) + 1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_at_odd_sizes(kind: str) -> None:
    rng = np.random.default_rng(1)
    for outputs, columns in ((8, 256), (13, 512), (72, 768)):
        layer = QuantizedLinear([random_weight(kind, outputs, columns, rng)])
        for rows in (1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 70):
            x = activations(rng, rows, columns)
            assert layer(x).shape == (rows, outputs)
            assert_right(layer, x)


@pytest.mark.parametrize("columns", [1, 16, 31, 32, 33, 50, 96, 160])
def test_widths_that_are_no_whole_groups(columns: int) -> None:
    rng = np.random.default_rng(columns)
    layer = QuantizedLinear([dense_weight("F32", 11, columns, rng)])
    assert layer.dequantize().shape == (11, columns)
    for rows in (1, 6):
        assert_right(layer, activations(rng, rows, columns))


@pytest.mark.parametrize("kind", EXACT_GGML)
def test_ggml_weights_stay_exact(kind: str) -> None:
    weight = ggml_weight(kind, 21, 512, np.random.default_rng(2))
    layer = QuantizedLinear([weight])
    np.testing.assert_array_equal(layer.dequantize(), weight.dequantize())
    assert layer.kinds == (kind,)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("group", [16, 32, 64])
def test_mlx_weights_stay_exact(bits: int, group: int) -> None:
    rng = np.random.default_rng(bits)
    for half in (True, False):
        weight = mlx_weight(bits, group, 10, 192, rng, half)
        layer = QuantizedLinear([weight])
        np.testing.assert_array_equal(layer.dequantize(), weight.dequantize())
        assert_right(layer, activations(rng, 5, 192))


@pytest.mark.parametrize("group", [16, 32, 128])
def test_mlx_bytes_move_their_zero_to_the_middle(group: int) -> None:
    rng = np.random.default_rng(3)
    weight = mlx_weight(8, group, 10, 256, rng)
    layer = QuantizedLinear([weight])
    np.testing.assert_allclose(layer.dequantize(), weight.dequantize(), rtol=0, atol=1e-6)
    assert_right(layer, activations(rng, 5, 256))


@pytest.mark.parametrize("kind", DENSE)
def test_dense_weights_are_half_a_step_off_at_most(kind: str) -> None:
    weight = dense_weight(kind, 24, 320, np.random.default_rng(4))
    layer, exact = QuantizedLinear([weight]), weight.dequantize()
    step = np.abs(exact).reshape(24, -1, 32).max(axis=2).repeat(32, axis=1) / 127
    error = np.abs(layer.dequantize() - exact)
    assert np.all(error <= 0.5001 * step)
    assert error.max() > 0  # the label tells the truth
    assert layer.kinds == (f"8-bit from {kind}",)


def test_storage_is_little_more_than_the_file() -> None:
    rng = np.random.default_rng(5)
    for kind, allowed in (("Q4_0", 1.05), ("Q4_1", 1.05), ("Q8_0", 1.05), ("Q6_K", 1.25), ("Q4_K", 1.4)):
        weight = ggml_weight(kind, 512, 768, rng)
        assert weight.data.nbytes * 0.95 < QuantizedLinear([weight]).nbytes < weight.data.nbytes * allowed


FORMATS = [
    Format((4,), offset=8),
    Format((4,), minimum=True),
    Format((4, 1), offset=16),
    Format((4, 2), 16, 32, half=False),
    Format((2,), 16, minimum=True, half=False),
    Format((2, 1), 16, 4, half=False),
    Format((8,)),
]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_tiles_hold_what_was_packed(form: Format) -> None:
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 1 << form.bits, (19, 96), dtype=np.uint8)
    scales, minimums = (rng.integers(1, 9, (19, 96 // form.group)).astype(np.float32) for _ in range(2))
    values = unpack_tiles(form, pack_tiles(form, codes, scales, minimums if form.minimum else None))
    levels = codes.view(np.int8).astype(np.float32) if form.signed else codes.astype(np.float32) - form.offset
    wanted = levels * scales.repeat(form.group, axis=1)
    wanted = wanted + minimums.repeat(form.group, axis=1) if form.minimum else wanted
    assert values.shape == (24, 96)
    np.testing.assert_array_equal(values[:19], wanted)
    assert not values[19:].any()


def extreme(kind: str, byte: int) -> Weight:
    """All codes at one end of their range."""
    weight = ggml_weight(kind, 8, 256, np.random.default_rng(7))
    first, size = {"Q4_0": (2, 18), "Q4_1": (4, 20), "Q5_1": (4, 24), "Q8_0": (2, 34), "Q6_K": (0, 210)}[kind]
    data = weight.data.copy().reshape(8, -1, size)
    data[:, :, first : 192 if kind == "Q6_K" else size] = byte
    return Weight("w", (8, 256), kind, data.reshape(8, -1))


@pytest.mark.parametrize("dot", DOTS_HERE)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_1", "Q6_K", "Q8_0"])
def test_integers_never_saturate(kind: str, dot: str) -> None:
    ends = torch.tensor([[1.0], [-1.0]]).repeat(1, 256)
    mixed = torch.ones(1, 256)
    mixed[:, ::2] = -1
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        layer = QuantizedLinear([extreme(kind, byte)], dot=dot)
        assert_right(layer, torch.cat((ends, mixed)) * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets_agree_bit_for_bit(kind: str) -> None:
    if len(DOTS_HERE) < 2:
        pytest.skip("this CPU has no AVX2")
    rng = np.random.default_rng(8)
    weight, x = random_weight(kind, 20, 512, rng), activations(rng, 7, 512)
    results = [QuantizedLinear([weight], dot=dot)(x) for dot in DOTS_HERE]
    for other in results[1:]:
        assert torch.equal(results[0], other)


def test_the_best_instructions_are_chosen() -> None:
    assert choose_dot(frozenset({"avx2", "avx512vnni", "avx512vl"})) == "vnni"
    assert choose_dot(frozenset({"avx2", "avxvnni"})) == "vnni"
    assert choose_dot(frozenset({"avx2", "avx512vnni"})) == "avx2"
    assert choose_dot(frozenset({"neon"})) == "plain"
    assert set(DOTS) == {"vnni", "avx2", "plain"}


def test_parts_of_several_kinds_with_a_bias() -> None:
    rng = np.random.default_rng(9)
    kinds = ("Q4_K", "Q4_K", "Q6_K", "F16", "Q4_0")
    weights = [random_weight(kind, rows, 512, rng) for kind, rows in zip(kinds, (24, 8, 9, 3, 16), strict=True)]
    bias = torch.from_numpy(rng.normal(0, 1, 60).astype(np.float32))
    layer = QuantizedLinear(weights, bias)
    assert layer.shape == (60, 512)
    assert layer.kinds == ("Q4_K", "Q6_K", "8-bit from F16", "Q4_0")
    assert len(layer.parts) == 4  # the two Q4_K parts are one
    for rows in (1, 5, 66):
        x = activations(rng, rows, 512)
        assert_right(layer, x, bias)
        apart = [QuantizedLinear([weight])(x) for weight in weights]
        assert torch.equal(layer(x), torch.cat(apart, dim=1) + bias)


def test_bad_input_is_refused_by_name() -> None:
    rng = np.random.default_rng(10)
    weight = random_weight("Q4_0", 8, 64, rng)
    layer = QuantizedLinear([weight])
    with pytest.raises(ValueError, match=r"float32 \[T, 64\]"):
        layer(torch.zeros(2, 32))
    with pytest.raises(ValueError, match="float64"):
        layer(torch.zeros(2, 64, dtype=torch.float64))
    with pytest.raises(ValueError, match="contiguous"):
        layer(torch.zeros(2, 64), torch.zeros(8, 2).t())
    with pytest.raises(ValueError, match="agree in width"):
        QuantizedLinear([weight, random_weight("Q4_0", 8, 32, rng)])
    with pytest.raises(ValueError, match="8 outputs"):
        QuantizedLinear([weight], torch.zeros(9))
