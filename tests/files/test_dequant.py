"""Block decoders against gguf-py, bit for bit, and the planar form against both."""

from __future__ import annotations

import tracemalloc
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import GOLDEN, quantize_affine

from bireme.models import dequant
from bireme.models.dequant import dequantize, select_rows, take_rows
from bireme.models.ggml_types import BY_NAME, CODEBOOK, DECODABLE, DENSE
from bireme.models.gguf import GgufFile
from bireme.models.mlx_affine import BITS, unpack_codes
from bireme.models.planar import planar
from bireme.models.weight import Weight

BLOCK_TYPES = sorted(DECODABLE - set(DENSE))
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,)}
HALVES |= {"Q6_K": (208,)}
COLUMNS = 512


def random_blocks(kind: str, rows: int, seed: int = 0) -> Weight:
    """Random bits in every field, but for float16 scales, which are finite numbers of either sign, and for MXFP4's
    powers of two, which leave the values finite."""
    rng = np.random.default_rng(seed)
    size = BY_NAME[kind].size
    raw = rng.integers(0, 256, (rows * COLUMNS // BY_NAME[kind].block, size), dtype=np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = rng.integers(0, 253, len(raw))
        raw[:4, 0] = 0, 1, 2, 252
    for at in HALVES.get(kind, () if kind == "MXFP4" else (0,)):
        raw[:, at : at + 2] = rng.standard_normal((len(raw), 1)).astype("<f2").view(np.uint8)
    return Weight("w", (rows, COLUMNS), kind, raw.reshape(rows, -1))


def reference(weight: Weight) -> NDArray[np.float32]:
    return gguf.quants.dequantize(weight.data, gguf.GGMLQuantizationType[weight.kind])


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_bit_for_bit_as_gguf_py(kind: str) -> None:
    weight = random_blocks(kind, 37)
    np.testing.assert_array_equal(weight.dequantize().view(np.uint32), reference(weight).view(np.uint32))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_row_ranges_and_picks(kind: str) -> None:
    weight = random_blocks(kind, 37)
    whole = reference(weight)
    np.testing.assert_array_equal(dequantize(weight, 5, 9), whole[5:9])
    np.testing.assert_array_equal(dequantize(weight, 30, 99), whole[30:])
    assert dequantize(weight, 9, 9).shape == (0, COLUMNS)
    picks = np.array([36, 0, 7, 7])
    np.testing.assert_array_equal(take_rows(weight, picks), whole[picks])
    assert select_rows(weight, slice(2, 4)).data.base is not None


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_chunks_leave_no_seam(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequant, "CHUNK", 3 * COLUMNS)
    weight = random_blocks(kind, 10)
    np.testing.assert_array_equal(weight.dequantize(), reference(weight))
    form = planar(weight)
    if form is not None:
        np.testing.assert_allclose(form.dequantize(), reference(weight), rtol=1e-6, atol=1e-4)


def test_stored_fixture_of_k_types() -> None:
    """D15: each tensor decoded by its own type."""
    file = GgufFile(GOLDEN / "kquants.gguf")
    wanted = np.load(GOLDEN / "kquants_decoded.npz")
    assert {tensor.type.name for tensor in file.tensors.values()} == {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
    for tensor in file.tensors.values():
        weight = Weight(tensor.name, tensor.shape, tensor.type.name, file.data(tensor))
        np.testing.assert_allclose(weight.dequantize(), wanted[tensor.name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_planar_form(kind: str) -> None:
    weight = random_blocks(kind, 11)
    form = planar(weight)
    if kind in CODEBOOK:
        assert form is None
        return
    assert form is not None
    groups = COLUMNS // form.group_size
    assert form.group_size == (16 if kind in ("Q2_K", "Q3_K", "Q6_K") else 32)
    assert form.codes.shape == (11, COLUMNS)
    assert form.scale.shape == form.minimum.shape == (11, groups)
    assert int(form.codes.max()) == form.levels - 1
    exact = reference(weight)
    bound = np.abs(form.scale) * form.levels + np.abs(form.minimum)
    error = np.abs(form.dequantize() - exact).reshape(11, groups, -1)
    assert (error <= 2.0**-22 * bound[:, :, None]).all()
    part = planar(weight, 3, 7)
    assert part is not None
    np.testing.assert_array_equal(part.dequantize(), form.dequantize()[3:7])


@pytest.mark.parametrize("kind", DENSE)
def test_dense_types(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    data: NDArray[Any] = values
    if kind == "F16":
        data = values.astype(np.float16)
    if kind == "BF16":
        data = (values.view(np.uint32) >> 16).astype(np.uint16)
    weight = Weight("w", (5, 7), kind, data)
    wanted = (data.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else data.astype(np.float32)
    np.testing.assert_array_equal(weight.dequantize(), wanted)
    assert planar(weight) is None


def test_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="w has type IQ2_S"):
        dequantize(Weight("w", (1, 256), "IQ2_S", np.zeros((1, 82), np.uint8)))


def affine_weight(bits: int, group: int, dtype: type[np.floating[Any]] = np.float32) -> tuple[Weight, NDArray[Any]]:
    values = np.random.default_rng(bits).standard_normal((6, 256)).astype(np.float32)
    words, scales, biases = quantize_affine(values, bits, group)
    weight = Weight("w", (6, 256), "MLX", words, scales.astype(dtype), biases.astype(dtype), bits, group)
    return weight, values


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_mlx_affine(bits: int, group: int) -> None:
    weight, values = affine_weight(bits, group)
    got = weight.dequantize()
    assert weight.scales is not None
    step = np.repeat(weight.scales, group, axis=1)
    assert (np.abs(got - values) <= step * 0.5001).all()
    form = planar(weight)
    assert form is not None
    assert form.group_size == min(group, 32)
    np.testing.assert_array_equal(form.dequantize(), got)
    np.testing.assert_array_equal(dequantize(weight, 2, 4), got[2:4])
    np.testing.assert_array_equal(take_rows(weight, np.array([5, 1])), got[[5, 1]])


def test_mlx_half_precision_scales_are_widened_first() -> None:
    weight, _ = affine_weight(4, 64, np.float16)
    assert weight.scales is not None and weight.biases is not None
    codes = unpack_codes(weight.data, 4).astype(np.float32).reshape(6, 4, 64)
    wanted = codes * weight.scales.astype(np.float32)[:, :, None] + weight.biases.astype(np.float32)[:, :, None]
    np.testing.assert_array_equal(weight.dequantize(), wanted.reshape(6, 256))


@pytest.mark.mlx
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_bit_for_bit_as_mlx(bits: int, group: int) -> None:
    mx = pytest.importorskip("mlx.core")
    values = mx.array(np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32))
    packed = mx.quantize(values, group_size=group, bits=bits)
    weight = Weight("w", (8, 256), "MLX", *(np.array(part) for part in packed), bits, group)
    wanted = np.array(mx.dequantize(*packed, group_size=group, bits=bits))
    np.testing.assert_array_equal(weight.dequantize().view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("bits", BITS)
def test_mlx_codes_are_a_stream_of_bits(bits: int) -> None:
    """A word's lowest bits come first, and a code may lie across two words."""
    count = 32 * 3 // bits if 96 % bits == 0 else 32
    codes = [(7 * index + 1) % 2**bits for index in range(count)]
    number = sum(code << (bits * index) for index, code in enumerate(codes))
    words = [number >> (32 * index) & 0xFFFFFFFF for index in range(count * bits // 32)]
    assert unpack_codes(np.array([words], np.uint32), bits)[0].tolist() == codes


def test_temporaries_stay_small() -> None:
    weight = random_blocks("Q4_K", 20_000)  # 41 MB of float32
    tracemalloc.start()
    values = weight.dequantize()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - values.nbytes < 12 << 20
