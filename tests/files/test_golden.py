"""Models with known logits: each has one trait of loading that goes wrong without an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny import (
    GOLDEN,
    Stored,
    as_f32,
    forward,
    golden,
    greedy,
    hf_settings,
    interleave_rows,
    weights_of,
    write_folder,
    write_gguf,
)

from bireme.models.checkpoint import open_checkpoint
from bireme.models.gguf_source import half_split_rows
from bireme.models.weight import Checkpoint

MODELS = golden()
G01 = GOLDEN / "g01_llama_gqa.gguf"


def assert_numbers(checkpoint: Checkpoint, name: str) -> None:
    """The logits after the prompt are those of the golden model ``name``."""
    want = MODELS[name]
    got = forward(checkpoint, want["prompt_ids"])[-1]
    np.testing.assert_allclose(got[:8], want["last_logits_first8"], atol=want["tol"], rtol=0)
    assert int(got.argmax()) == want["greedy"][0]


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("g")])
def test_gguf_has_the_known_logits(name: str) -> None:
    """D01, D02, D04, D05, D14, D15, D16: a tied head, the rows of q and k, the size of heads, llama3 and linear RoPE,
    bfloat16, a type for each tensor, experts."""
    checkpoint = open_checkpoint(GOLDEN / f"{name}.gguf")
    assert_numbers(checkpoint, name)
    checkpoint.close()


def test_greedy_text_of_the_plain_model() -> None:
    want = MODELS["g01_llama_gqa"]
    count = len(want["greedy"])
    assert greedy(open_checkpoint(G01), want["prompt_ids"], count) == want["greedy"]


def test_mlx_folder_has_the_known_logits() -> None:
    """D23: 8 bits for some modules, 4 for the others."""
    checkpoint = open_checkpoint(GOLDEN / "m02_mixed")
    assert checkpoint.quantization == "8-bit MLX + 4-bit MLX"
    assert checkpoint.weight("lm_head.weight").bits == 8
    assert checkpoint.weight("model.layers.1.self_attn.q_proj.weight").bits == 4
    assert_numbers(checkpoint, "m02_mixed")


@pytest.mark.parametrize("alignment", [8, 16, 64, 4096])
def test_any_alignment(tmp_path: Path, alignment: int) -> None:
    """D12: any multiple of 8, by numbers."""
    plain = open_checkpoint(G01)
    path = write_gguf(tmp_path / "m.gguf", plain.config, weights_of(plain), alignment=alignment)
    assert_numbers(open_checkpoint(path), "g01_llama_gqa")


@pytest.mark.parametrize("kind", [gguf.GGUFValueType.UINT8, gguf.GGUFValueType.INT32, gguf.GGUFValueType.UINT64])
def test_alignment_of_any_integer_type(tmp_path: Path, kind: gguf.GGUFValueType) -> None:
    """D11: with whatever type a number was stored."""
    plain = open_checkpoint(G01)

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(64)
        writer.kv_data[0]["general.alignment"] = gguf.gguf_writer.GGUFValue(64, kind)

    path = write_gguf(tmp_path / "m.gguf", plain.config, weights_of(plain), edit=edit)
    assert_numbers(open_checkpoint(path), "g01_llama_gqa")


@pytest.mark.parametrize("pick", ["first", "last", "folder"])
def test_split_model_from_any_shard(tmp_path: Path, pick: str) -> None:
    """D07: every shard leads to all of them."""
    plain = open_checkpoint(G01)
    first = write_gguf(tmp_path / "m.gguf", plain.config, weights_of(plain), split=8)
    shards = sorted(tmp_path.glob("*.gguf"))
    assert len(shards) == 3
    checkpoint = open_checkpoint({"first": first, "last": shards[-1], "folder": tmp_path}[pick])
    assert checkpoint.weight_bytes == plain.weight_bytes
    assert_numbers(checkpoint, "g01_llama_gqa")


def plain_folder(path: Path, name: str, shards: int = 1, **changes: object) -> Path:
    """A golden GGUF model as a safetensors folder."""
    model = open_checkpoint(GOLDEN / f"{name}.gguf")
    return write_folder(path, hf_settings(model.config, **changes), as_f32(weights_of(model)), shards)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FOLDERS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("g01_llama_gqa", {}),
    "tied": ("g02_tied", {}),
    "tied_without_the_flag": ("g02_tied", {"tie_word_embeddings": None}),
    "head_dim": ("g04_head_dim32", {}),
    "head_dim_null": ("g01_llama_gqa", {"head_dim": None}),
    "linear_old": ("g05_rope_linear4", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "linear_new": ("g05_rope_linear4", {"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 1e4}}),
    "llama3": ("g06_rope_llama3", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}),
    "llama3_old": ("g06_rope_llama3", {"rope_scaling": {"type": "llama3", **LLAMA3}}),
    "llama3_new": (
        "g06_rope_llama3",
        {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folder_has_the_known_logits(tmp_path: Path, case: str) -> None:
    """D01, D04 and D05 in every spelling of config.json; a head that is tied is counted once."""
    name, changes = FOLDERS[case]
    checkpoint = open_checkpoint(plain_folder(tmp_path, name, **changes))
    assert_numbers(checkpoint, name)
    assert checkpoint.weight_bytes == open_checkpoint(GOLDEN / f"{name}.gguf").weight_bytes


def test_bf16_folder(tmp_path: Path) -> None:
    """D14: the numbers are those of the upper halves of float32 ones."""
    model = open_checkpoint(GOLDEN / "g08_bf16.gguf")
    tensors: dict[str, Stored] = {}
    for name in model.names():
        weight = model.weight(name)
        tensors[name] = (weight.kind, weight.data)
        if weight.kind == "BF16":
            tensors[name] = ("BF16", (weight.dequantize().view(np.uint32) >> 16).astype(np.uint16))
    checkpoint = open_checkpoint(write_folder(tmp_path, hf_settings(model.config), tensors))
    assert checkpoint.quantization == "BF16"
    assert checkpoint.weight("lm_head.weight").data.dtype == np.uint16
    assert_numbers(checkpoint, "g08_bf16")


def test_tied_flag_wins_over_a_head_in_the_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D01: as transformers does; the head is neither read nor counted."""
    model = open_checkpoint(GOLDEN / "g02_tied.gguf")
    tensors = as_f32(weights_of(model))
    tensors["lm_head.weight"] = ("F32", np.ones((320, 64), np.float32))
    checkpoint = open_checkpoint(write_folder(tmp_path, hf_settings(model.config, tie_word_embeddings=True), tensors))
    assert checkpoint.config.tie_embeddings
    assert "lm_head.weight" not in checkpoint.names()
    assert checkpoint.weight_bytes == model.weight_bytes
    assert not caplog.records
    assert_numbers(checkpoint, "g02_tied")


def nested(settings: dict[str, object]) -> dict[str, object]:
    return {"model_type": "mistral3", "hidden_size": 8, "vision_config": {}, "text_config": settings}


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"language_model.{name}",
        lambda name: name.replace("model.", "model.language_model."),
        lambda name: name,
    ],
)
def test_language_model_inside_a_vision_model(
    tmp_path: Path, rename: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """D20: sizes in text_config, prefixed tensors, and one line of warning."""
    model = open_checkpoint(G01)
    tensors = {rename(name): stored for name, stored in as_f32(weights_of(model)).items()}
    tensors["vision_tower.patch_embed.weight"] = ("F32", np.zeros((4, 4), np.float32))
    checkpoint = open_checkpoint(write_folder(tmp_path, nested(hf_settings(model.config)), tensors))
    assert len(caplog.records) == 1
    assert "vision is off" in caplog.text
    assert_numbers(checkpoint, "g01_llama_gqa")


def test_row_orders_are_each_others_inverse() -> None:
    rows = np.arange(24 * 3).reshape(24, 3)
    np.testing.assert_array_equal(half_split_rows(interleave_rows(rows, 2), 2), rows)
    np.testing.assert_array_equal(half_split_rows(np.array([0, 3, 1, 4, 2, 5]), 1), np.arange(6))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"])
def test_rows_of_quantised_q_and_k_move_whole(tmp_path: Path, kind: str) -> None:
    """D02: rows change places, blocks are as they were."""
    plain = open_checkpoint(G01)
    path = write_gguf(tmp_path / "m.gguf", plain.config, weights_of(plain), type_of=lambda name: kind)
    checkpoint = open_checkpoint(path)
    assert checkpoint.quantization == kind
    for part in "qkv":
        name = f"model.layers.1.self_attn.{part}_proj.weight"
        stored = gguf.quants.quantize(plain.weight(name).dequantize(), gguf.GGMLQuantizationType[kind])
        wanted = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
        np.testing.assert_array_equal(checkpoint.weight(name).dequantize(), wanted)
