"""Quantised weights: the planes against gguf-py bit for bit, the products against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from triton_setup import block_weight, check_product

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from bireme.backends.cuda import ggml_planes
from bireme.backends.cuda.ggml_planes import TYPES
from bireme.backends.cuda.kernels import quantized
from bireme.backends.cuda.plane_form import Planes
from bireme.backends.cuda.planes import planes
from bireme.models.ggml_types import BY_NAME

CPU = torch.device("cpu")


def packed(kind: str, rows: int, columns: int) -> tuple[Planes, np.ndarray]:
    weight, values = block_weight(kind, rows, columns)
    made = planes(weight, CPU)
    return made, values


def width(kind: str) -> int:
    """Not a multiple of two tiles; where blocks allow, not of one."""
    return 256 if BY_NAME[kind].block == 256 else 224


@pytest.mark.parametrize("kind", TYPES)
def test_decoding_is_gguf_pys_bit_for_bit(kind, monkeypatch):
    monkeypatch.setattr(ggml_planes, "CHUNK_BYTES", 3000)  # several chunks of rows
    made, wanted = packed(kind, 37, width(kind))
    found = quantized.dequantize(made, torch.float32).numpy()
    np.testing.assert_array_equal(found.view(np.uint32) & 0x7FFFFFFF, wanted.view(np.uint32) & 0x7FFFFFFF)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(quantized.dequantize(made, torch.float32, rows=(33, 36)).numpy(), wanted[33:36])
    picks = torch.tensor([36, 0, 7])
    np.testing.assert_array_equal(quantized.dequantize(made, torch.float32, picks).numpy(), wanted[picks])


@pytest.mark.parametrize("kind", TYPES)
def test_planes_hold_no_more_than_they_must(kind):
    weight, _ = block_weight(kind, 64, 512)
    made = planes(weight, CPU)
    assert made.nbytes <= weight.data.nbytes * 1.04


@pytest.mark.parametrize("kind, dtype, count", [
    (kind, torch.float16 if n % 2 else torch.float32, 1 + n % 4) for n, kind in enumerate(TYPES)
])  # fmt: skip
def test_a_few_rows(kind, dtype, count):
    made, values = packed(kind, 19, width(kind))
    torch.manual_seed(count)
    x, bias = torch.randn(count, width(kind)).to(dtype) / 16, torch.randn(19).to(dtype)
    out = torch.full((count, 30), 7.0, dtype=dtype)
    quantized.few(x, made, bias, out[:, 5:24])
    check_product(out[:, 5:24], x, values, bias)
    assert (out[:, :5] == 7).all() and (out[:, 24:] == 7).all()


@pytest.mark.parametrize("kind, dtype, count, splits", [
    (kind, torch.float16 if n % 2 else torch.float32, (5, 65, 17)[n % 3], 1 + n % 2) for n, kind in enumerate(TYPES)
])  # fmt: skip
def test_some_rows(kind, dtype, count, splits):
    made, values = packed(kind, 67, width(kind))
    torch.manual_seed(count)
    x, bias = torch.randn(count, width(kind)).to(dtype) / 16, torch.randn(67).to(dtype)
    out = torch.full((count + 1, 74), 7.0, dtype=dtype)
    quantized.some(x, made, bias, out[:count, 3:70], splits)
    check_product(out[:count, 3:70], x, values, bias)
    assert (out[:, :3] == 7).all() and (out[:, 70:] == 7).all() and (out[count] == 7).all()


def test_splits_fill_the_gpu_and_no_more():
    assert quantized.splits_for(64, 64) == 4
    assert quantized.splits_for(448, 64) == 1
    assert quantized.splits_for(16, 16) == 2
    assert quantized.splits_for(1, 224) == quantized.MOST_SPLITS
