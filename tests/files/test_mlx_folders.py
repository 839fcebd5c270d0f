"""MLX-quantised folders: per-layer overrides, cross-checks, and other schemes refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import Stored, forward, hf_settings, quantize_affine, random_weights, tiny_config, write_folder

from bireme.models.checkpoint import open_checkpoint
from bireme.models.mlx_config import mlx_quantization
from bireme.models.weight import CheckpointError

CONFIG = tiny_config()
WEIGHTS = random_weights(CONFIG)
EIGHT = ("model.embed_tokens", "lm_head", "model.layers.0.self_attn.v_proj")


def quantized(bits_of: dict[str, int], bits: int = 4, group: int = 32) -> dict[str, Stored]:
    """All matrices in ``bits``, those of ``bits_of`` in theirs; scales and biases in float16."""
    tensors: dict[str, Stored] = {}
    for name, values in WEIGHTS.items():
        if values.ndim == 1:
            tensors[name] = ("F16", values.astype(np.float16))
            continue
        stem = name.removesuffix(".weight")
        words, scales, biases = quantize_affine(values, bits_of.get(stem, bits), group)
        tensors[name] = ("U32", words)
        tensors[stem + ".scales"] = ("F16", scales.astype(np.float16))
        tensors[stem + ".biases"] = ("F16", biases.astype(np.float16))
    return tensors


def settings(overrides: dict[str, Any], key: str = "quantization", **quantization: Any) -> dict[str, Any]:
    return hf_settings(CONFIG, **{key: {"group_size": 32, "bits": 4, **quantization, **overrides}})


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_overrides(tmp_path: Path, key: str) -> None:
    """D23: under both keys that config.json may have."""
    tensors = quantized(dict.fromkeys(EIGHT, 8))
    overrides = {name: {"group_size": 32, "bits": 8} for name in EIGHT}
    checkpoint = open_checkpoint(write_folder(tmp_path, settings(overrides, key), tensors))
    assert checkpoint.weight("lm_head.weight").bits == 8
    assert checkpoint.weight("model.layers.1.self_attn.v_proj.weight").bits == 4
    assert checkpoint.weight_bytes == sum(values.nbytes for _, values in tensors.values())
    for name, values in WEIGHTS.items():
        tolerance = 0.005 if name.removesuffix(".weight") in EIGHT or values.ndim == 1 else 0.08
        np.testing.assert_allclose(checkpoint.weight(name).dequantize(), values, atol=tolerance)
    assert np.isfinite(forward(checkpoint, [1, 2, 3])).all()


@pytest.mark.parametrize(
    ("override", "wanted"),
    [({"bits": 8}, (8, 64, "affine")), ({"group_size": 32}, (4, 32, "affine")), ({"mode": "mxfp8"}, (8, 32, "mxfp8"))],
)
def test_overrides_inherit_nothing(override: dict[str, Any], wanted: tuple[int, int, str]) -> None:
    """As in MLX, whose layers are made with what the override names alone, and its defaults."""
    given = {"bits": 4, "group_size": 16, "mode": "nvfp4", "lm_head": override}
    found = mlx_quantization(given, "config.json").of("lm_head.weight")
    assert (found.bits, found.group_size, found.mode) == wanted


@pytest.mark.parametrize("keys_too", [True, False])
def test_overrides_under_a_language_model_prefix(tmp_path: Path, keys_too: bool) -> None:
    """D23: tensors have the prefix; the keys of the overrides may or may not."""
    tensors = {f"language_model.{name}": stored for name, stored in quantized(dict.fromkeys(EIGHT, 8)).items()}
    prefix = "language_model." if keys_too else ""
    inner = settings({f"{prefix}{name}": {"group_size": 32, "bits": 8} for name in EIGHT})
    outer = {"model_type": "llava", "quantization": inner.pop("quantization"), "text_config": inner}
    checkpoint = open_checkpoint(write_folder(tmp_path, outer, tensors))
    assert checkpoint.weight("lm_head.weight").bits == 8
    assert checkpoint.weight("model.layers.1.self_attn.v_proj.weight").bits == 4


def test_module_left_dense(tmp_path: Path) -> None:
    tensors = quantized({})
    for part in ("scales", "biases"):
        del tensors[f"lm_head.{part}"]
    tensors["lm_head.weight"] = ("BF16", (WEIGHTS["lm_head.weight"].view(np.uint32) >> 16).astype(np.uint16))
    checkpoint = open_checkpoint(write_folder(tmp_path, settings({"lm_head": False}), tensors))
    assert checkpoint.weight("lm_head.weight").kind == "BF16"


def test_bfloat16_scales(tmp_path: Path) -> None:
    tensors = quantized({})
    wide = tensors["lm_head.scales"][1].astype(np.float32)
    tensors["lm_head.scales"] = ("BF16", (wide.view(np.uint32) >> 16).astype(np.uint16))
    checkpoint = open_checkpoint(write_folder(tmp_path, settings({}), tensors))
    scales = checkpoint.weight("lm_head.weight").scales
    assert scales is not None and scales.dtype == np.float32
    np.testing.assert_array_equal(scales, (wide.view(np.uint32) & 0xFFFF0000).view(np.float32))


@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_other_widths(tmp_path: Path, bits: int) -> None:
    folder = write_folder(tmp_path, settings({}, bits=bits), quantized({}, bits=bits))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.quantization == f"{bits}-bit MLX"
    assert np.isfinite(forward(checkpoint, [1, 2, 3])).all()


def test_mismatch_names_both(tmp_path: Path) -> None:
    """D23: bits that the packed words contradict."""
    folder = write_folder(tmp_path, settings({}), quantized({"lm_head": 8}))
    wanted = r"tensor lm_head.weight: config.json says 4 bits in groups of 32; 16 words packed for 64 .* are 8 bits"
    with pytest.raises(CheckpointError, match=wanted):
        open_checkpoint(folder)


def test_group_size_mismatch(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"says 4 bits in groups of 64; 8 words packed for 128 .* are 2 bits"):
        open_checkpoint(write_folder(tmp_path, settings({}, group_size=64), quantized({})))


def test_scales_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has scales, but config.json says nothing of quantisation"):
        open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG), quantized({})))


def test_scales_without_biases(tmp_path: Path) -> None:
    tensors = quantized({})
    del tensors["lm_head.biases"]
    with pytest.raises(CheckpointError, match="tensor lm_head.weight has scales but no biases"):
        open_checkpoint(write_folder(tmp_path, settings({}), tensors))


def test_scales_of_another_shape(tmp_path: Path) -> None:
    tensors = quantized({})
    tensors["lm_head.biases"] = ("F16", tensors["lm_head.biases"][1][:-1])
    with pytest.raises(CheckpointError, match="tensor lm_head.weight"):
        open_checkpoint(write_folder(tmp_path, settings({}), tensors))


@pytest.mark.parametrize(
    "method", ["bitsandbytes", "hqq", "aqlm", "quanto", "eetq", "mxfp4", "torchao", "quark", "vptq"]
)
def test_other_schemes_are_refused_by_name(tmp_path: Path, method: str) -> None:
    given = {"quant_method": method, "bits": 4, "group_size": 128}
    with pytest.raises(CheckpointError, match=f"weights quantised by {method} are not supported; supported: dense"):
        open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG, quantization_config=given), quantized({})))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"mode": "mxfp6"}, "MLX quantisation mode 'mxfp6' of quantization is not supported"),
        ({"mode": "mxfp4", "bits": 8}, "quantization is mxfp4 with 8 bits in groups of 32; mxfp4 has 4 bits"),
        (
            {"lm_head": {"mode": "nvfp4", "group_size": 32}},
            "lm_head is nvfp4 with 4 bits in groups of 32; nvfp4 has 4 bits in",
        ),
        ({"bits": 7}, "quantization has 7 bits in groups of 32"),
        ({"group_size": 33}, "quantization has 4 bits in groups of 33"),
        ({"lm_head": {"bits": "4"}}, "lm_head has '4' bits"),
    ],
)
def test_unsupported_numbers(tmp_path: Path, given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(CheckpointError, match=wanted):
        open_checkpoint(write_folder(tmp_path, settings({}, **given), quantized({})))


@pytest.mark.parametrize("given", [{"config_groups": {}}, "awq"])
def test_unknown_scheme(tmp_path: Path, given: Any) -> None:
    with pytest.raises(CheckpointError, match="quanti"):
        open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG, quantization_config=given), quantized({})))
