"""Gemma 3's files: what their configurations say and leave out, and the same weights from both formats."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import ModelConfig, RopeConfig
from bireme.models.gguf_config import gguf_config
from bireme.models.hf_config import hf_config
from bireme.models.settings import Settings
from bireme.models.weight import CheckpointError

#: As in the configuration that google/gemma-3-4b-it names its language model by.
SPARSE = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


def read(**changes: Any) -> ModelConfig:
    return hf_config(Settings({**SPARSE, **changes}, "config.json"), has_head=False)


def read_gguf(**changes: Any) -> ModelConfig:
    """Of a file with these ``gemma3.*`` keys, dots written as two underscores; None removes one."""
    keys = {
        "context_length": 4096, "embedding_length": 672, "block_count": 18, "feed_forward_length": 64,
        "attention__head_count": 4, "attention__head_count_kv": 1, "attention__key_length": 256,
        "attention__layer_norm_rms_epsilon": 1e-6, "attention__sliding_window": 512, "rope__freq_base": 1e6,
    }  # fmt: skip
    given = {f"gemma3.{key.replace('__', '.')}": value for key, value in {**keys, **changes}.items()}
    values = {"general.architecture": "gemma3", **{key: value for key, value in given.items() if value is not None}}
    return gguf_config(Settings(values, "m.gguf"), 100, True, False, None)


def test_a_sparse_configuration_means_what_transformers_takes() -> None:
    config = read()
    assert config.architecture == "gemma3" and config.vocab_size == 262_208
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert config.max_position == 131_072  # with the factor in it already
    assert config.rope == RopeConfig(theta=1e6, kind="linear", factor=8.0)
    assert config.local_rope == RopeConfig(theta=10_000.0)
    assert config.attention_scale == 1 / 16 and config.embedding_scale == math.sqrt(2560)
    assert config.tie_embeddings and config.qk_norm and config.post_norms and config.wide_norms
    assert config.windows == tuple(None if layer % 6 == 5 else 1024 for layer in range(34))
    assert [config.rope_index(layer) for layer in range(4, 7)] == [1, 0, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": None},
        {
            "rope_scaling": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
    ],
)
def test_both_spellings_of_two_rotary_embeddings(changes: dict[str, Any]) -> None:
    assert read(**changes).ropes == (RopeConfig(theta=5e5), RopeConfig(theta=2e4))


def test_one_of_the_rotary_embeddings_may_be_left_out() -> None:
    given = {"full_attention": {"rope_type": "linear", "factor": 2.0}}
    found = read(rope_scaling=None, rope_parameters=given).ropes
    assert found == (RopeConfig(theta=1e6, kind="linear", factor=2.0), RopeConfig(theta=1e4))


def test_which_layers_slide() -> None:
    assert read(num_hidden_layers=4, sliding_window_pattern=2).windows == (1024, None, 1024, None)
    kinds = ["full_attention", "sliding_attention"]
    assert read(num_hidden_layers=2, layer_types=kinds).windows == (None, 1024)
    assert read(num_hidden_layers=2, sliding_window_pattern=1).windows == ()
    assert read(num_hidden_layers=2, sliding_window_pattern=1).ropes == (read().rope,)


def test_the_scores_scale_is_the_configurations() -> None:
    assert read(query_pre_attn_scalar=168).attention_scale == 168**-0.5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0: soft-capping, .* not supported"),
        ({"attn_logit_softcapping": 50}, "attn_logit_softcapping is 50: soft-capping"),
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu'; wanted: gelu_pytorch_tanh"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True; wanted: false"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; wanted: an object"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "kind 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters is .*wanted: an object with one for full_att"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern is 0; wanted"),
        ({"sliding_window": None}, "missing sliding_window"),
        ({"num_experts": 8}, "num_experts is 8; wanted: 0 in a gemma3 model"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)


def test_a_gguf_file_leaves_the_pattern_and_the_local_theta_to_the_program() -> None:
    config = read_gguf()
    assert config.windows == tuple(None if layer % 6 == 5 else 512 for layer in range(18))
    assert config.ropes == (RopeConfig(theta=1e6), RopeConfig(theta=1e4))
    assert config.attention_scale == 1 / 16 and config.embedding_scale == math.sqrt(672)


def test_what_a_gguf_file_may_say() -> None:
    assert read_gguf(rope__freq_base_swa=5e3).local_rope == RopeConfig(theta=5e3)
    assert read_gguf(attention__sliding_window_pattern=3).windows[:3] == (512, 512, None)
    flags = [layer < 2 for layer in range(18)]
    assert read_gguf(attention__sliding_window_pattern=flags).windows[:3] == (512, 512, None)
    linear = read_gguf(rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert linear.ropes == (RopeConfig(theta=1e6, kind="linear", factor=8.0), RopeConfig(theta=1e4))
    without = read_gguf(attention__sliding_window=None)
    assert without.windows == () and without.ropes == (RopeConfig(theta=1e6),)
    assert read_gguf(block_count=62).attention_scale == (672 // 4) ** -0.5  # the 27B model's layers


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"final_logit_softcapping": 30.0}, "gemma3.final_logit_softcapping is 30.0: soft-capping"),
        ({"attention__sliding_window_pattern": [True]}, "sliding_window_pattern is .True.; wanted: 18 times"),
        ({"attention__sliding_window": -1}, "sliding_window is -1; wanted"),
    ],
)
def test_what_is_refused_in_a_gguf_file(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read_gguf(**changes)


def test_both_formats_hold_one_model(tiny: Callable[[str], Any]) -> None:
    """Safetensors hold what is added to 1 in the norms, GGUF files the sums."""
    folder, file = (open_checkpoint(path) for path in (tiny("gemma3").folder, tiny("gemma3").gguf))
    assert replace(file.config, rms_norm_eps=folder.config.rms_norm_eps) == folder.config
    assert set(folder.names()) == set(file.names())
    for name in folder.names():
        one, other = folder.weight(name), file.weight(name)
        assert one.kind == other.kind == "F32"
        np.testing.assert_array_equal(one.dequantize(), other.dequantize())
    raw = load_file(tiny("gemma3").folder / "model.safetensors")["model.norm.weight"]
    np.testing.assert_array_equal(folder.weight("model.norm.weight").data, raw + np.float32(1))


def test_a_model_with_vision_is_read_without_it(
    tiny: Callable[[str], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under both of the names that transformers has given the language model's tensors."""
    source = tiny("gemma3").folder
    inner = json.loads((source / "config.json").read_text())
    whole = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner}
    tensors = load_file(source / "model.safetensors")
    for number, rename in enumerate((lambda name: f"language_model.{name}", _inside_model)):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        (folder / "config.json").write_text(json.dumps(whole | {"vision_config": {}, "eos_token_id": [1, 106]}))
        vision = {"vision_tower.vision_model.embeddings.position_embedding.weight": np.ones((2, 2), np.float32)}
        save_file({rename(name): values for name, values in tensors.items()} | vision, folder / "model.safetensors")
        caplog.clear()
        checkpoint = open_checkpoint(folder)
        assert "gemma3 reads images too; here it is text only" in caplog.text
        assert checkpoint.config == open_checkpoint(source).config
        assert {1, 106} <= checkpoint.end_ids
        np.testing.assert_array_equal(
            checkpoint.weight("model.norm.weight").data, tensors["model.norm.weight"] + np.float32(1)
        )


def _inside_model(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1)
