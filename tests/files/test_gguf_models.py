"""GGUF models as a whole: configuration out of metadata, end ids, tokenizer part, tensors checked by name."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny import GOLDEN, forward, random_weights, tiny_config, write_gguf

from bireme.models.checkpoint import OpenCheckpoint, open_checkpoint
from bireme.models.config import ModelConfig, RopeConfig
from bireme.models.end_ids import CONTROL
from bireme.models.names import (
    canonical_from_gguf,
    expected_shapes,
    gguf_from_canonical,
    of_all_experts,
    optional_shapes,
)
from bireme.models.weight import CheckpointError

CONFIG = tiny_config()
Edit = Callable[[gguf.GGUFWriter], None]


def model(path: Path, config: ModelConfig = CONFIG, edit: Edit = lambda writer: None, **options: Any) -> OpenCheckpoint:
    return open_checkpoint(write_gguf(path / "m.gguf", config, random_weights(config), edit=edit, **options))


def put(key: str, value: Any, kind: gguf.GGUFValueType = gguf.GGUFValueType.UINT32) -> Edit:
    """Set a metadata key, whatever it was."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value, kind, gguf.GGUFValueType.INT32)

    return edit


def drop(key: str) -> Edit:
    return lambda writer: writer.kv_data[0].pop(key)


def edits(*each: Edit) -> Edit:
    def edit(writer: gguf.GGUFWriter) -> None:
        for one in each:
            one(writer)

    return edit


TEXT, FLOAT, ARRAY = gguf.GGUFValueType.STRING, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.ARRAY
UINT = gguf.GGUFValueType.UINT32


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_architectures(tmp_path: Path, architecture: str) -> None:
    config = tiny_config(architecture)
    checkpoint = model(tmp_path, config)
    read = checkpoint.config
    assert read.rms_norm_eps == pytest.approx(1e-5)
    assert read == tiny_config(architecture, rms_norm_eps=read.rms_norm_eps)
    weights = random_weights(config)
    assert set(checkpoint.names()) == set(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.weight(name).dequantize(), values)
    assert np.isfinite(forward(checkpoint, [3, 4, 5])).all()


def test_mistral_files_are_llama_files_with_a_window(tmp_path: Path) -> None:
    checkpoint = model(tmp_path, tiny_config("mistral"), put("llama.attention.sliding_window", 24))
    assert checkpoint.config.windows == (24, 24)
    assert checkpoint.config.architecture == "llama"


def test_biases_of_a_llama_file(tmp_path: Path) -> None:
    checkpoint = model(tmp_path, tiny_config(attention_bias=True))
    assert checkpoint.config.attention_bias
    wanted = random_weights(tiny_config(attention_bias=True))
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.k_proj.bias"):
        np.testing.assert_array_equal(checkpoint.weight(name).data, wanted[name])


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"m.gguf: missing llama.{key}$"):
        model(tmp_path, edit=drop(f"llama.{key}"))


def test_missing_architecture(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="m.gguf: missing general.architecture$"):
        model(tmp_path, edit=drop("general.architecture"))


@pytest.mark.parametrize(
    ("key", "value", "kind", "wanted"),
    [
        ("general.architecture", "quantumllm", TEXT, "unsupported architecture quantumllm; supported: llama, qwen2"),
        ("general.architecture", "deepseek2", TEXT, "unsupported architecture deepseek2; supported: llama, qwen2"),
        ("general.architecture", 3, FLOAT, "general.architecture is 3.0; wanted: a string"),
        ("llama.expert_count", 4, UINT, "missing llama.expert_used_count"),
        ("llama.block_count", 2_000_000_000, UINT, "llama.block_count is 2000000000; wanted"),
        ("llama.attention.head_count_kv", 3, UINT, "head_count_kv is 3; wanted: a divisor"),
        ("llama.attention.head_count_kv", [2, 4], ARRAY, "head_count_kv is .2, 4.; wanted: the same number in every"),
        ("llama.attention.head_count", 6, UINT, "head_count is 6; wanted"),
        ("llama.attention.value_length", 8, UINT, "value_length is 8; wanted: 16"),
        ("llama.rope.dimension_count", 8, UINT, "rope.dimension_count is 8; wanted: the head's 16"),
        ("llama.rope.scaling.type", "longrope", TEXT, "rope.scaling.type is 'longrope'; wanted: one of none, linear"),
        ("llama.attention.layer_norm_rms_epsilon", "x", TEXT, "epsilon is 'x'; wanted: a number above 0"),
        ("tokenizer.ggml.eos_token_id", 99999, UINT, "eos_token_id 99999 outside the vocabulary of 320"),
        ("tokenizer.ggml.bos_token_id", 320, UINT, "bos_token_id 320 outside the vocabulary"),
        ("tokenizer.ggml.eot_token_id", "x", TEXT, "eot_token_id is 'x'; wanted: a token id"),
        ("tokenizer.ggml.eos_token_ids", [5, 400], ARRAY, "eos_token_ids 400 outside the vocabulary of 320"),
        ("tokenizer.chat_template", 5, FLOAT, "tokenizer.chat_template is 5.0; wanted: a string"),
    ],
)
def test_bad_value_is_named(tmp_path: Path, key: str, value: Any, kind: gguf.GGUFValueType, wanted: str) -> None:
    """D11, and ids outside the vocabulary."""
    with pytest.raises(CheckpointError, match=wanted):
        model(tmp_path, edit=put(key, value, kind))


def test_equal_numbers_per_layer(tmp_path: Path) -> None:
    edit = edits(put("llama.attention.head_count_kv", [2, 2], ARRAY), put("llama.feed_forward_length", [96, 96], ARRAY))
    assert model(tmp_path, edit=edit).config.num_kv_heads == 2


def test_too_many_tokens(tmp_path: Path) -> None:
    edit: Edit = lambda writer: writer.add_token_list([f"t{i}" for i in range(321)])  # noqa: E731
    with pytest.raises(CheckpointError, match="tokens has 321 entries, token_embd.weight has 320 rows"):
        model(tmp_path, edit=edits(drop("tokenizer.ggml.tokens"), edit))


# RoPE


def rope(path: Path, *each: Edit, **options: Any) -> RopeConfig:
    return model(path, edit=edits(*each), **options).config.rope


def test_rope_without_scaling(tmp_path: Path) -> None:
    assert rope(tmp_path, put("llama.rope.freq_base", 5e5, FLOAT)) == RopeConfig(theta=5e5)
    assert rope(tmp_path, drop("llama.rope.freq_base")) == RopeConfig(theta=10000.0)
    assert rope(tmp_path, put("llama.rope.scaling.type", "none", TEXT)) == RopeConfig()


def test_rope_linear_in_both_spellings(tmp_path: Path) -> None:
    wanted = RopeConfig(kind="linear", factor=4.0)
    new = (put("llama.rope.scaling.type", "linear", TEXT), put("llama.rope.scaling.factor", 4.0, FLOAT))
    assert rope(tmp_path, *new) == wanted
    assert rope(tmp_path, put("llama.rope.scale_linear", 4.0, FLOAT)) == wanted


def test_rope_yarn(tmp_path: Path) -> None:
    yarn = (put("llama.rope.scaling.type", "yarn", TEXT), put("llama.rope.scaling.factor", 4.0, FLOAT))
    original = put("llama.rope.scaling.original_context_length", 128)
    wanted = RopeConfig(kind="yarn", factor=4.0, original_max_position=128)
    assert rope(tmp_path, *yarn, original) == wanted
    strong = rope(tmp_path, *yarn, original, put("llama.rope.scaling.attn_factor", 2.0, FLOAT)).attention_factor
    assert strong == pytest.approx(2 * (0.1 * np.log(4) + 1))
    with pytest.raises(CheckpointError, match="missing llama.rope.scaling.original_context_length"):
        rope(tmp_path, *yarn)


def test_rope_divisors(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    extra = {"rope_freqs.weight": divisors}
    assert rope(tmp_path, extra=extra) == RopeConfig(divisors=tuple(divisors.tolist()))
    linear = rope(tmp_path, put("llama.rope.scale_linear", 2.0, FLOAT), extra=extra)
    assert linear == RopeConfig(divisors=tuple((2 * divisors).tolist()))


@pytest.mark.parametrize(
    ("divisors", "wanted"),
    [
        (np.ones(4, np.float32), r"rope_freqs.weight has shape \(4,\), expected \(8,\)"),
        (np.zeros(8, np.float32), "rope_freqs.weight holds values that are no positive numbers"),
        (np.full(8, np.nan, np.float32), "rope_freqs.weight holds values that are no positive numbers"),
    ],
)
def test_bad_rope_divisors(tmp_path: Path, divisors: Any, wanted: str) -> None:
    with pytest.raises(CheckpointError, match=wanted):
        rope(tmp_path, extra={"rope_freqs.weight": divisors})


def test_rotary_part_of_a_head(tmp_path: Path) -> None:
    edit = put("qwen3.rope.dimension_count", 8)
    assert model(tmp_path, tiny_config("qwen3"), edit).config.rope.rotary_dim == 8


# tensors


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    """D09: by the name that the file would have."""
    weights = random_weights(CONFIG)
    del weights["model.layers.1.self_attn.v_proj.weight"]
    with pytest.raises(CheckpointError, match="m.gguf: missing tensor blk.1.attn_v.weight$"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG, weights))


def test_no_embedding(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    del weights["model.embed_tokens.weight"]
    with pytest.raises(CheckpointError, match="missing tensor token_embd.weight"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG, weights))


def test_wrong_shape_names_both(tmp_path: Path) -> None:
    weights = random_weights(CONFIG) | {"model.layers.0.self_attn.v_proj.weight": np.ones((48, 64), np.float32)}
    with pytest.raises(CheckpointError, match=r"tensor blk.0.attn_v.weight has shape \(48, 64\), expected \(32, 64\)"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG, weights))


def test_extra_tensor_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extra = {"blk.0.mystery.weight": np.zeros((2, 32), np.float32)}
    checkpoint = model(tmp_path, extra=extra)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "blk.0.mystery.weight" in caplog.text
    assert checkpoint.weight_bytes == sum(values.nbytes for values in random_weights(CONFIG).values())
    with pytest.raises(CheckpointError, match="missing tensor blk.0.mystery.weight"):
        checkpoint.weight("blk.0.mystery.weight")


def test_canonical_name_in_a_gguf_file_is_no_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config(tie_embeddings=True)
    checkpoint = model(tmp_path, config, extra={"lm_head.weight": np.zeros((320, 64), np.float32)})
    assert checkpoint.config.tie_embeddings
    assert "lm_head.weight" in caplog.text


def test_norms_that_nothing_would_apply_are_refused(tmp_path: Path) -> None:
    weights = random_weights(tiny_config(qk_norm=True))
    with pytest.raises(CheckpointError, match="tensor blk.0.attn_k_norm.weight is not applied by a llama decoder"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG, weights))


def test_qwen2_without_its_biases(tmp_path: Path) -> None:
    config = tiny_config("qwen2", attention_bias=False)
    with pytest.raises(CheckpointError, match="missing tensor blk.0.attn_q.bias and 5 more"):
        model(tmp_path, config)


def test_type_without_a_decoder(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    del weights["model.norm.weight"]
    path = tmp_path / "m.gguf"
    write_gguf(path, CONFIG, weights, extra={"output_norm.weight": np.ones(64, np.float64)})
    with pytest.raises(CheckpointError, match="tensor output_norm.weight has type F64, which is not supported"):
        open_checkpoint(path)


def test_nan_weights_load(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    weights["model.layers.0.mlp.up_proj.weight"][0] = np.nan
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG, weights))
    assert np.isnan(checkpoint.weight("model.layers.0.mlp.up_proj.weight").data).any()


@pytest.mark.parametrize(
    ("types", "label"),
    [
        ({}, "F32"),
        ({"": "F16"}, "F16"),
        ({"": "Q4_1"}, "Q4_1"),
        ({"": "Q4_1", "embed": "Q8_0"}, "Q4_1 + Q8_0"),
        ({"": "Q8_0", "v_proj": "Q5_1"}, "Q8_0"),
    ],
)
def test_quantization_label(tmp_path: Path, types: dict[str, str], label: str) -> None:
    config = tiny_config(num_layers=6)

    def type_of(name: str) -> str:
        return next((kind for part, kind in reversed(types.items()) if part in name), "F32")

    assert model(tmp_path, config, type_of=type_of).quantization == label


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mixtral", "qwen3_moe"])
def test_names_go_both_ways(architecture: str) -> None:
    shapes = expected_shapes(tiny_config(architecture)) | optional_shapes(tiny_config(architecture))
    for name in shapes:
        assert canonical_from_gguf(gguf_from_canonical(name)) == of_all_experts(name)
    assert gguf_from_canonical("some.thing") == "some.thing"
    for name in ("blk.x.attn_q.weight", "blk.0.ffn_gate_shexp.weight", "attn_q.weight", "v.blk.0.attn_q.weight"):
        assert canonical_from_gguf(name) is None


# the text side


def ids(*names: tuple[str, int]) -> Edit:
    return edits(*(put(f"tokenizer.ggml.{name}", value) for name, value in names))


def test_end_ids_are_the_union(tmp_path: Path) -> None:
    """D21: of eos, eot and eom, one or several each."""
    several = put("tokenizer.ggml.eos_token_ids", [7, 8], ARRAY)
    edit = edits(ids(("eos_token_id", 5), ("eot_token_id", 6), ("eom_token_id", 9), ("padding_token_id", 10)), several)
    assert model(tmp_path, edit=edit).end_ids == {5, 6, 7, 8, 9}


def test_end_markers_among_control_tokens(tmp_path: Path) -> None:
    """D21: a file that names one end id ends at its family's others too; plain text of that form doesn't count."""
    tokens, types = [f"t{i}" for i in range(320)], [1] * 320
    tokens[11], types[11] = "<|eot_id|>", CONTROL
    tokens[12], types[12] = "<|im_start|>", CONTROL
    tokens[13] = "<|im_end|>"
    edit: Edit = lambda writer: (writer.add_token_list(tokens), writer.add_token_types(types))  # noqa: E731
    edit = edits(drop("tokenizer.ggml.tokens"), drop("tokenizer.ggml.token_type"), edit)
    assert model(tmp_path, edit=edit).end_ids == {5, 11}
    tokens[21:24], types[21:24] = ["<|end|>", "<|call|>", "<|return|>"], [CONTROL] * 3
    assert model(tmp_path, edit=edit).end_ids == {5, 11, 22, 23}  # harmony: "<|end|>" ends a message, not the turn
    tokens[23] = "<|start|>"
    assert model(tmp_path, edit=edit).end_ids == {5, 11, 21}


@pytest.mark.parametrize("kind", [gguf.GGUFValueType.UINT8, gguf.GGUFValueType.INT64])
def test_token_types_of_any_integer_type(tmp_path: Path, kind: gguf.GGUFValueType) -> None:
    """D11: read with the type that the file names."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.token_type"] = gguf.gguf_writer.GGUFValue([1] * 319 + [3], ARRAY, kind)

    metadata = model(tmp_path, edit=edit).tokenizer.gguf_metadata
    assert metadata is not None
    assert metadata["tokenizer.ggml.token_type"] == [1] * 319 + [3]


def test_tokenizer_part(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_bos_token_id(4)
        writer.add_add_bos_token(True)
        writer.add_chat_template([{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}])

    text = model(tmp_path, edit=edit).tokenizer
    assert (text.bos_token, text.eos_token, text.add_bos, text.chat_template) == ("t4", "t5", True, "A")
    assert text.extra == {"chat_templates": {"tool_use": "B"}}
    assert text.tokenizer_json is None and text.gguf_metadata is not None
    assert all(key.startswith("tokenizer.") for key in text.gguf_metadata)
    bare = model(tmp_path).tokenizer
    assert (bare.bos_token, bare.add_bos, bare.chat_template, bare.extra) == (None, None, None, {})


def test_generation_defaults(tmp_path: Path) -> None:
    edit = edits(
        put("general.sampling.temp", 0.5, FLOAT),
        put("general.sampling.top_k", 40),
        put("general.sampling.penalty_repeat", 1.25, FLOAT),
        put("general.sampling.top_p", "x", TEXT),
    )
    wanted = {"temperature": 0.5, "top_k": 40, "repetition_penalty": 1.25}
    assert model(tmp_path, edit=edit).generation_defaults == wanted
    assert model(tmp_path).generation_defaults == {}


def test_name(tmp_path: Path) -> None:
    assert model(tmp_path).name == "tiny"
    assert model(tmp_path, edit=drop("general.name")).name == "m"


def test_opening_twice_and_closing(tmp_path: Path) -> None:
    one, two = model(tmp_path), open_checkpoint(str(tmp_path / "m.gguf"))
    one.advise_sequential()
    values = two.weight("lm_head.weight").data
    two.advise_done()
    one.close()
    two.close()
    two.close()
    np.testing.assert_array_equal(values, random_weights(CONFIG)["lm_head.weight"])


def test_opening_the_demo_model_is_quick(demo_model: Path) -> None:
    start = time.process_time()
    checkpoint = open_checkpoint(demo_model)
    assert time.process_time() - start < 0.5  # 0.1 s on an idle machine
    assert checkpoint.quantization == "Q4_1 + Q8_0"
    assert checkpoint.config.num_layers == 30 and checkpoint.config.tie_embeddings
    assert checkpoint.end_ids == {0, 2}


def test_types_in_one_file_differ() -> None:
    """D15: eight types, and ``test_golden`` knows their logits."""
    checkpoint = open_checkpoint(GOLDEN / "g09_mixed_quants.gguf")
    assert len({checkpoint.weight(name).kind for name in checkpoint.names()}) == 8
