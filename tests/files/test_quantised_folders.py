"""AWQ, GPTQ, fp8 and compressed-tensors folders: exact values, labels, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_folders import CASES, CONFIG, make_folder
from tiny import forward, hf_settings, write_folder

from bireme.models.checkpoint import open_checkpoint
from bireme.models.dequant import dequantize, take_rows
from bireme.models.weight import CheckpointError
from bireme.planner.open import open_shape

LABELS = {"awq": "4-bit AWQ", "gptq-3bit": "3-bit GPTQ", "fp8-blocks": "F8_E4M3", "packed": "4-bit packed"}
QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_exact(tmp_path: Path, case: str) -> None:
    folder = make_folder(case, tmp_path)
    checkpoint = open_checkpoint(folder.path)
    for name, wanted in folder.values.items():
        weight, stored = checkpoint.weight(name), checkpoint.stored(name)
        np.testing.assert_array_equal(weight.dequantize(), wanted)
        assert (weight.kind, weight.bits, weight.group_size) == (stored.kind, stored.bits, stored.group_size)
        assert stored.ordered or not weight.ordered
        if wanted.ndim == 2:
            np.testing.assert_array_equal(dequantize(weight, 5, 19), wanted[5:19])
            np.testing.assert_array_equal(take_rows(weight, np.array([7, 0])), wanted[[7, 0]])
    assert checkpoint.quantization == LABELS.get(case, checkpoint.quantization)
    parts = {name: stored for name, stored in folder.tensors.items() if not name.endswith("weight_shape")}
    held = sum(values.nbytes for _, values in parts.values())
    assert held <= checkpoint.weight_bytes + 1 <= held + 1000
    assert np.isfinite(forward(checkpoint, [1, 2, 3])).all()


@pytest.mark.parametrize("case", CASES)
def test_the_planner_counts_weights_not_words(tmp_path: Path, case: str) -> None:
    folder = make_folder(case, tmp_path)
    weights = open_shape(str(folder.path)).weights
    assert weights.parameters == sum(values.size for values in folder.values.values())
    assert weights.total_bytes == sum(values.nbytes for _, values in folder.tensors.values())


def test_columns_in_another_order_are_kept_group_by_group(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_folder("gptq-order", tmp_path).path)
    weight = checkpoint.weight(f"{QUERY}.weight")
    assert (
        weight.order is not None and sorted(weight.order) == list(range(64)) and checkpoint.stored(weight.name).ordered
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "AWQ weights of 8 bits, version 'gemm', are not"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version 'gemv', are not supported"),
        ({"quant_method": "awq", "bits": 4, "group_size": 20}, "AWQ group_size is 20; wanted: a multiple of 32"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "GPTQ weights of 5 bits in groups of 128 are not"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "format 'marlin' are"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": True}, "format 'marlin' are"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 weights in the format 'e5m2' are not supported"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size is \[128\]; wanted: \[rows, col"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, r"quantised by modelopt \(NVFP4\) are not supported"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, r"\(nvfp4-pack-quantized\) are not"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
                "a": {"weights": {"num_bits": 3, "type": "int"}}}},
            "compressed-tensors with integers of .'3'. bits",
        ),
    ],
)  # fmt: skip
def test_forms_that_are_not_read_are_named(tmp_path: Path, given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(CheckpointError, match=wanted):
        open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG, quantization_config=given), {}))


@pytest.mark.parametrize(
    ("case", "part", "change", "wanted"),
    [
        ("awq", "qzeros", None, f"missing tensor {QUERY}.qzeros"),
        ("awq", "scales", lambda data: data[:1], r"qweight is 64 outputs of 64 inputs, in groups of 32 .* \(1, 64"),
        ("awq", "qweight", lambda data: data[:60], r"qweight has shape \(60, 8\); wanted: \[inputs, a multiple of 8"),
        ("gptq", "qzeros", lambda data: data[:, :4], r"its qzeros \(2, 4\) must then be \(2, 8\)"),
        ("gptq", "g_idx", lambda data: data[:5], r"g_idx has shape \(5,\); wanted: one number for each of 64 columns"),
        ("fp8-blocks", "weight_scale_inv", None, f"missing tensor {QUERY}.weight_scale_inv"),
        ("fp8-blocks", "weight_scale_inv", lambda data: data[:, :1], r"shape \(2, 1\); config.json names blocks of"),
        ("fp8-rows", "weight_scale", lambda data: data[:9], r"shape \(9, 1\); config.json names no blocks for weights"),
        ("packed", "weight_zero_point", lambda data: data[:3], r"weight_zero_point has shape .3, 2.; wanted: .8, 2"),
        ("packed", "weight_scale", lambda data: data[:4], r"weight_packed has shape \(64, 8\) with scales \(4, 2\)"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, case: str, part: str, change: Any, wanted: str) -> None:
    tensors = make_folder(case, tmp_path / "whole").tensors
    kind, data = tensors.pop(f"{QUERY}.{part}")
    if change is not None:
        tensors[f"{QUERY}.{part}"] = (kind, np.ascontiguousarray(change(data)))
    folder = write_folder(tmp_path / "cut", hf_settings(CONFIG, quantization_config=CASES[case][0]), tensors)
    with pytest.raises(CheckpointError, match=wanted):
        open_checkpoint(folder)


def test_an_index_of_groups_that_are_not_full_is_named(tmp_path: Path) -> None:
    folder = make_folder("gptq-order", tmp_path)
    index = folder.tensors[f"{QUERY}.g_idx"][1].copy()
    index[index.argmin()] = 1
    folder.tensors[f"{QUERY}.g_idx"] = ("I32", index)
    settings = hf_settings(CONFIG, quantization_config=CASES["gptq-order"][0])
    checkpoint = open_checkpoint(write_folder(tmp_path / "again", settings, folder.tensors))
    with pytest.raises(CheckpointError, match=f"{QUERY}.g_idx doesn't put 32 columns in each of 2 groups"):
        checkpoint.weight(f"{QUERY}.weight")
