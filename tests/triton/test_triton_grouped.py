"""Codes with a scale per group of columns: planes and products against the values that the files stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_weights import mlx_weight
from quantised_folders import CASES, make_folder
from triton_setup import CPU, check_product

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from bireme.backends.cuda import grouped_planes
from bireme.backends.cuda.kernels import quantized
from bireme.backends.cuda.planes import has_planes, planes
from bireme.backends.cuda.quantized import PlanarLoader, QuantizedLinear
from bireme.models.checkpoint import open_checkpoint
from bireme.models.mlx_float import KIND_OF, MODES
from bireme.models.weight import CheckpointError, Weight

PARTS = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
DOWN = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize("case", CASES)
def test_layers_of_a_folder(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few, some and many rows of q, k and v; and down, which is 96 columns wide."""
    monkeypatch.setattr(grouped_planes, "CHUNK_BYTES", 500)  # several chunks of rows
    folder = make_folder(case, tmp_path)
    loader = PlanarLoader(open_checkpoint(folder.path), torch.float32, CPU)
    torch.manual_seed(3)
    for names, counts in ((PARTS, (1, 4, 9, 130)), ([DOWN], (2,))):
        layer = loader.linear(*names)
        assert isinstance(layer, QuantizedLinear)
        values = np.concatenate([folder.values[f"{name}.weight"] for name in names])
        for part, name in zip(layer.parts, names, strict=True):
            wanted = folder.values[f"{name}.weight"]
            order = slice(None) if part.order is None else part.order.numpy()
            np.testing.assert_array_equal(quantized.dequantize(part, torch.float32).numpy(), wanted[:, order])
        for count in counts:
            x = torch.randn(count, values.shape[1])
            check_product(layer(x), x, values, None, 16 if count > 100 else 4)  # many rows: torch's own product


def test_parts_of_one_order_share_it(tmp_path: Path) -> None:
    """One gather serves q, k and v."""
    loader = PlanarLoader(open_checkpoint(make_folder("gptq-order", tmp_path).path), torch.float32, CPU)
    q, k, v = loader.linear(*PARTS).parts
    assert q.order is not None and q.order is k.order and q.order is v.order


@pytest.mark.parametrize("case, extra", [
    ("awq", (16 + 8) / 32), ("gptq-sym", (16 + 8) / 32), ("gptq-3bit", (16 + 8) / 32), ("awq-bf16", (16 + 8) / 32),
    ("fp8-rows", 16 / 64), ("fp8-tensor", 32 / 64 / 64), ("fp8-blocks", 16 / 32),
])  # fmt: skip
def test_planes_hold_no_more_than_codes_scales_and_zero_points(tmp_path: Path, case: str, extra: float) -> None:
    weight = open_checkpoint(make_folder(case, tmp_path).path).weight(f"{PARTS[0]}.weight")
    assert planes(weight, CPU).nbytes <= weight.data.size * weight.data.itemsize + extra / 8 * 64 * 64


def test_rows_of_a_block_share_a_scale() -> None:
    rng = np.random.default_rng(0)
    scales = np.repeat(rng.random((3, 2), np.float32), 128, axis=0)[:300]
    weight = Weight("w", (300, 224), "F8_E4M3", rng.integers(0, 127, (300, 224), np.uint8), scales, None, 8, 128)
    made = planes(weight, CPU)
    assert made.scale.shape == (2, 3) and made.form.shared == 128
    found = quantized.dequantize(made, torch.float32)
    np.testing.assert_array_equal(found.numpy(), weight.dequantize())
    picks = torch.tensor([299, 127, 128])
    np.testing.assert_array_equal(quantized.dequantize(made, torch.float32, picks).numpy(), weight.dequantize()[picks])


@pytest.mark.parametrize(
    "bits, group, half", [(2, 64, True), (3, 32, True), (5, 128, False), (6, 32, True), (8, 64, False)]
)
def test_affine_weights_with_minima(bits: int, group: int, half: bool) -> None:
    """MLX's own folders: scales and biases of any value."""
    weight = mlx_weight(bits, group, 19, 384, np.random.default_rng(bits), half)
    made = planes(weight, CPU)
    assert made.scale.dtype == made.minimum.dtype == (torch.float16 if half else torch.float32)
    found, wanted = quantized.dequantize(made, torch.float32).numpy(), weight.dequantize()
    np.testing.assert_allclose(found, wanted, rtol=0 if half else 1e-6, atol=0 if half else 1e-7)
    x = torch.randn(6, 384, dtype=torch.float16)
    out = torch.empty(6, 19, dtype=torch.float16)
    quantized.some(x, made, None, out, 2)
    check_product(out, x, wanted, None)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
def test_mlx_modes_with_powers_of_two(mode: str) -> None:
    rng, bits = np.random.default_rng(5), MODES[mode].bits
    words = rng.integers(0, 1 << 32, (19, 224 * bits // 32), dtype=np.uint32)
    if mode == "mxfp8":
        words &= np.uint32(0xF7F7F7F7)  # no NaN
    scales = rng.integers(110, 140, (19, 7), dtype=np.uint8)
    weight = Weight("w", (19, 224), KIND_OF[mode], words, scales, None, bits, 32)
    made = planes(weight, CPU)
    np.testing.assert_array_equal(quantized.dequantize(made, torch.float32).numpy(), weight.dequantize())
    assert made.nbytes <= 19 * 256 * bits / 8 + 19 * 8


def test_scales_keep_the_narrowest_type_that_holds_them() -> None:
    scales = np.array([[1.0, 2.0**-100], [3.0, 0.5]], np.float32)
    weight = Weight("w", (2, 64), "MLX", np.zeros((2, 8), np.uint32), scales, scales * 1.0001, 4, 32)
    made = planes(weight, CPU)
    assert made.scale.dtype == torch.bfloat16 and made.minimum.dtype == torch.float32


def test_groups_of_16_have_no_planes() -> None:
    assert not has_planes(mlx_weight(4, 16, 8, 64, np.random.default_rng(0)))


def test_fp8_nan_is_refused() -> None:
    weight = Weight("w", (2, 64), "F8_E4M3", np.full((2, 64), 255, np.uint8), np.ones((2, 1), np.float32), None, 8, 64)
    with pytest.raises(CheckpointError, match="tensor w holds NaN"):
        planes(weight, CPU)
