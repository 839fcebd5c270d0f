"""config.json in all its spellings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import as_f32, hf_settings, random_weights, tiny_config, write_folder

from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import ModelConfig, RopeConfig
from bireme.models.hf_config import hf_config, text_part
from bireme.models.settings import Settings
from bireme.models.weight import CheckpointError


def read(architecture: str = "llama", has_head: bool = True, **changes: Any) -> ModelConfig:
    """The configuration read from a config.json with ``changes``; a value of ``...`` removes the key."""
    settings = hf_settings(tiny_config(architecture), **changes)
    return hf_config(Settings({k: v for k, v in settings.items() if v is not ...}, "config.json"), has_head)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"])
def test_architectures(architecture: str) -> None:
    assert read(architecture, sliding_window=None) == tiny_config(architecture)
    assert read(architecture, sliding_window=None, model_type=...) == tiny_config(architecture)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "rms_norm_eps",
    ],
)
def test_missing_key_is_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: missing {key}$"):
        read(**{key: ...})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 0),
        ("hidden_size", "64"),
        ("num_hidden_layers", 10**9),
        ("num_attention_heads", True),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 2.5),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", -1.0),
        ("tie_word_embeddings", "yes"),
        ("rope_scaling", "linear"),
        ("hidden_act", "gelu"),
    ],
)
def test_bad_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is {value!r}; wanted"):
        read(**{key: value})


def test_head_dim() -> None:
    """D04: as given; null means derived."""
    assert read(head_dim=None).head_dim == 16
    assert read(head_dim=...).head_dim == 16
    assert read(head_dim=32).head_dim == 32
    with pytest.raises(CheckpointError, match="heads of 15 dims"):
        read(head_dim=15)
    with pytest.raises(CheckpointError, match="num_attention_heads is 6; wanted: a divisor of hidden_size 64"):
        read(head_dim=None, num_attention_heads=6)


def test_kv_heads_default_to_heads() -> None:
    assert read(num_key_value_heads=...).num_kv_heads == 4


def test_tied_where_the_head_is_missing() -> None:
    assert not read(tie_word_embeddings=...).tie_embeddings
    assert read(tie_word_embeddings=..., has_head=False).tie_embeddings
    assert read(tie_word_embeddings=False, has_head=False).tie_embeddings
    assert read(tie_word_embeddings=True).tie_embeddings


def test_attention_bias() -> None:
    assert read("llama", attention_bias=True).attention_bias
    assert not read("qwen3", attention_bias=False).attention_bias
    assert read("qwen2").attention_bias


# windows


def test_mistral_window() -> None:
    assert read("mistral", sliding_window=100).windows == (100, 100)
    assert read("mistral", sliding_window=None).windows == ()
    assert read("mistral", sliding_window=...).windows == (4096, 4096)  # transformers' default
    assert read("llama", sliding_window=100).windows == ()


def test_qwen_window() -> None:
    def windows(**changes: Any) -> tuple[int | None, ...]:
        return read("qwen2", sliding_window=100, **changes).windows

    assert windows() == ()
    assert windows(use_sliding_window=False, max_window_layers=0) == ()
    assert windows(use_sliding_window=True, max_window_layers=1) == (None, 100)
    assert windows(use_sliding_window=True, max_window_layers=2) == ()
    kinds = ["sliding_attention", "full_attention"]
    assert windows(use_sliding_window=True, max_window_layers=2, layer_types=kinds) == (100, None)
    with pytest.raises(CheckpointError, match="layer_types is .*wanted: 2 times"):
        windows(use_sliding_window=True, layer_types=["sliding_attention"])
    with pytest.raises(CheckpointError, match="layer_types is .*wanted: 2 times"):
        windows(use_sliding_window=True, layer_types=["sliding_attention", ["chunked"]])


# RoPE

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("kind_key", ["type", "rope_type"])
@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_rope_spellings(where: str, kind_key: str) -> None:
    linear = read(**{where: {kind_key: "linear", "factor": 4}})
    assert linear.rope == RopeConfig(kind="linear", factor=4.0)
    assert linear.max_position == 2048
    llama3 = read(**{where: {kind_key: "llama3", **LLAMA3}})
    assert llama3.rope == RopeConfig(
        kind="llama3", factor=8.0, original_max_position=64, low_freq_factor=1.0, high_freq_factor=4.0
    )
    assert llama3.max_position == 512
    yarn = read(**{where: {kind_key: "yarn", "factor": 4.0, "beta_fast": 16}})
    assert yarn.rope == RopeConfig(kind="yarn", factor=4.0, original_max_position=512, beta_fast=16.0)
    assert yarn.max_position == 2048


def test_rope_theta_inside_the_parameters() -> None:
    assert read(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope.theta == 5e5
    assert read(rope_theta=5e5, rope_scaling=None).rope.theta == 5e5
    assert read(rope_theta=...).rope.theta == 10000.0


def test_yarn_context_that_is_already_scaled() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert read(rope_scaling=yarn).max_position == 512


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({}, None),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0}, None),
    ],
)
def test_yarn_magnitude(given: dict[str, float], factor: float | None) -> None:
    assert read(rope_scaling={"type": "yarn", "factor": 4.0, **given}).rope.attention_factor == factor


def test_partial_rotation() -> None:
    assert read(partial_rotary_factor=0.5).rope.rotary_dim == 8
    assert read(partial_rotary_factor=1.0).rope.rotary_dim is None
    with pytest.raises(CheckpointError, match="partial_rotary_factor 0.3"):
        read(partial_rotary_factor=0.3, head_dim=10)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "made_up"])
def test_unsupported_rope_is_refused_by_name(kind: str) -> None:
    """C19: factors chosen by length are no neighbour's to choose, since no such scaling is read."""
    with pytest.raises(CheckpointError, match=f"rope_scaling of kind '{kind}' is not supported"):
        read(rope_scaling={"type": kind, "factor": 2.0})


def test_rope_per_layer_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="not supported"):
        read(rope_parameters={"full_attention": {"rope_type": "default"}})


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor"])
def test_rope_key_missing(key: str) -> None:
    given = {"rope_type": "llama3", **LLAMA3}
    del given[key]
    with pytest.raises(CheckpointError, match=f"missing rope_scaling.{key}"):
        read(rope_scaling=given)


def test_rope_bands_in_the_wrong_order() -> None:
    with pytest.raises(CheckpointError, match="high_freq_factor is 1.0; wanted: a number above low_freq_factor"):
        read(rope_scaling={"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0})


def test_yarn_without_truncation_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"rope_scaling.truncate is False"):
        read(rope_scaling={"rope_type": "yarn", "factor": 2.0, "truncate": False})


# refusals and nesting


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "deepseek_v3", "mamba"])
def test_unsupported_architecture_is_named(model_type: str) -> None:
    with pytest.raises(CheckpointError, match=f"unsupported architecture {model_type} .*supported: llama"):
        read(model_type=model_type)


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_experts_are_refused(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is 8; wanted: 0 in a llama model; those with experts are"):
        read(**{key: 8})


def test_inner_values_win() -> None:
    """D20: over those around text_config."""
    inner, nested = text_part({"model_type": "x", "a": 1, "b": 2, "text_config": {"model_type": "llama", "a": 3}})
    assert nested
    assert inner == {"model_type": "llama", "a": 3, "b": 2}
    assert text_part({"a": 1}) == ({"a": 1}, False)


@pytest.mark.parametrize("name", ["self_attn.o_proj.bias", "mlp.up_proj.bias"])
def test_further_biases_are_loaded_where_the_files_have_them(tmp_path: Path, name: str) -> None:
    config = tiny_config()
    weights = random_weights(config)
    name = f"model.layers.0.{name}"
    weights[name] = weights[name.removesuffix("bias") + "weight"][:, 0].copy()
    checkpoint = open_checkpoint(write_folder(tmp_path, hf_settings(config), as_f32(weights)))
    assert name in checkpoint.names()


def test_norms_that_nothing_would_apply_are_refused(tmp_path: Path) -> None:
    weights = random_weights(tiny_config(qk_norm=True))
    with pytest.raises(CheckpointError, match="tensor model.layers.0.self_attn.k_norm.weight is not applied"):
        open_checkpoint(write_folder(tmp_path, hf_settings(tiny_config()), as_f32(weights)))


def test_layers_beyond_the_configuration_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = random_weights(tiny_config(num_layers=3))
    open_checkpoint(write_folder(tmp_path, hf_settings(tiny_config()), as_f32(weights)))
    assert "model.layers.2." in caplog.text and "and 4 more" in caplog.text


def test_bias_that_nothing_would_apply_is_refused(tmp_path: Path) -> None:
    config = tiny_config()
    weights = random_weights(config)
    weights["lm_head.bias"] = weights["lm_head.weight"][:, 0].copy()
    with pytest.raises(CheckpointError, match="tensor lm_head.bias is not applied by a llama decoder here"):
        open_checkpoint(write_folder(tmp_path, hf_settings(config), as_f32(weights)))
