"""Models with experts: their names and shapes in each kind of file, and what is said of files that are broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny import (
    MIXTURES,
    Stored,
    as_f32,
    forward,
    hf_settings,
    quantize_affine,
    random_weights,
    tiny_config,
    weights_of,
    write_folder,
    write_gguf,
)

from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import ModelConfig, MoeConfig
from bireme.models.hf_config import hf_config
from bireme.models.names import expert_of, of_all_experts
from bireme.models.settings import Settings
from bireme.models.weight import CheckpointError

MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def on_disk(name: str, mixtral: bool) -> str:
    """The name that a folder of transformers has for a tensor."""
    if not mixtral:
        return name
    name = name.replace(".mlp.", ".block_sparse_moe.")
    for part, short in MIXTRAL.items():
        name = name.replace(f".{part}.", f".{short}.") if expert_of(name) is not None else name
    return name


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("architecture", MIXTURES)
def test_both_kinds_of_file_hold_the_same(tmp_path: Path, architecture: str) -> None:
    config = tiny_config(architecture)
    weights = random_weights(config)
    tensors = {on_disk(name, architecture == "mixtral"): stored for name, stored in as_f32(weights).items()}
    folder = open_checkpoint(write_folder(tmp_path / "folder", hf_settings(config), tensors))
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", config, weights))
    assert folder.config == config
    assert file.config.moe == config.moe
    assert file.config.architecture == ("llama" if architecture == "mixtral" else architecture)
    same(weights_of(folder), weights)
    same(weights_of(file), weights)
    assert folder.weight_bytes == file.weight_bytes
    assert np.isfinite(forward(file, [3, 4, 5])).all()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_an_experts_blocks_are_a_part_of_the_files(tmp_path: Path, kind: str) -> None:
    """Decoding one expert gives that part of what decoding all at once gives."""
    config = tiny_config("qwen3_moe")
    path = write_gguf(tmp_path / "m.gguf", config, random_weights(config), type_of=lambda name: kind)
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    checkpoint = open_checkpoint(path)
    for part, name in (("up", "up_proj"), ("down", "down_proj")):
        tensor = reader[f"blk.1.ffn_{part}_exps.weight"]
        every = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for expert in range(4):
            weight = checkpoint.weight(f"model.layers.1.mlp.experts.{expert}.{name}.weight")
            assert weight.kind == kind
            np.testing.assert_array_equal(weight.dequantize(), every[expert])


def test_files_with_a_tensor_for_each_expert(tmp_path: Path) -> None:
    """Mixtral's first GGUF files."""
    config = tiny_config("mixtral")
    weights = random_weights(config)
    rest = {name: values for name, values in weights.items() if expert_of(name) is None}
    short = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    apart = {}
    for name in weights.keys() - rest.keys():
        layer, expert, part = name.split(".")[2], name.split(".")[5], name.split(".")[6]
        apart[f"blk.{layer}.{short[part]}.{expert}.weight"] = weights[name]
    same(weights_of(open_checkpoint(write_gguf(tmp_path / "m.gguf", config, rest, extra=apart))), weights)


def mlx_tensors(config: ModelConfig, weights: dict[str, Any], bits: Callable[[str], int]) -> dict[str, Stored]:
    """A folder of mlx-lm: experts stacked as ``switch_mlp``, the router in 8 bits, all in groups of 32."""
    assert config.moe is not None
    out: dict[str, Stored] = {}
    for name, values in weights.items():
        if expert_of(name):
            continue
        if expert_of(name) == 0:
            stem = of_all_experts(name).removesuffix(".weight")
            values = np.stack([weights[name.replace("experts.0", f"experts.{e}")] for e in range(4)])
            stem = stem.replace("experts.*", "switch_mlp")
        else:
            stem = name.removesuffix(".weight")
        if values.ndim == 1:
            out[name] = ("F32", values)
            continue
        parts = quantize_affine(values.reshape(-1, values.shape[-1]), bits(stem), 32)
        for part, dtype, array in zip(("weight", "scales", "biases"), ("U32", "F32", "F32"), parts, strict=True):
            out[f"{stem}.{part}"] = (dtype, array.reshape(*values.shape[:-1], -1))
    return out


def test_folders_of_mlx(tmp_path: Path) -> None:
    """Each expert's part of the stacked words, with the bits that the folder's entry for all of them says."""
    config = tiny_config("qwen3_moe")
    weights = random_weights(config)
    router, wide = "model.layers.1.mlp.gate", "model.layers.1.mlp.switch_mlp.down_proj"
    quantization = {"bits": 4, "group_size": 32} | {name: {"bits": 8, "group_size": 32} for name in (router, wide)}
    tensors = mlx_tensors(config, weights, lambda stem: 8 if stem in (router, wide) else 4)
    checkpoint = open_checkpoint(write_folder(tmp_path, hf_settings(config, quantization=quantization), tensors))
    found = weights_of(checkpoint)
    assert found.keys() == weights.keys()
    for name, values in weights.items():
        exact = "down_proj" in name and expert_of(name) is not None or name == f"{router}.weight"
        bound = 0 if values.ndim == 1 else np.ptp(values) / (2**8 if exact else 2**4)
        np.testing.assert_allclose(found[name], values, rtol=0, atol=bound)
    assert checkpoint.stored(f"{wide.replace('switch_mlp', 'experts.3')}.weight").bits == 8


def config_of(architecture: str, **changes: Any) -> MoeConfig | None:
    settings = hf_settings(tiny_config(architecture), **changes)
    return hf_config(Settings({k: v for k, v in settings.items() if v is not ...}, "config.json"), True).moe


def test_which_layers_have_experts() -> None:
    """As transformers decides it: every ``decoder_sparse_step``-th, those of ``mlp_only_layers`` excepted."""
    moe = config_of("qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    assert moe is not None and moe.dense_layers == {0, 2, 3, 4}
    assert config_of("qwen3_moe", num_experts=0) is None


def test_what_a_configuration_leaves_out() -> None:
    mixtral = config_of("mixtral", num_local_experts=..., num_experts_per_tok=..., moe_intermediate_size=...)
    assert mixtral == MoeConfig(8, 2, 96, True)
    qwen = config_of("qwen3_moe", num_experts=..., num_experts_per_tok=..., norm_topk_prob=..., mlp_only_layers=...)
    assert qwen == MoeConfig(128, 8, 64, False)
    assert config_of("qwen3_moe", num_experts=..., num_local_experts=16) == MoeConfig(16, 2, 64, True, frozenset((0,)))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5; wanted: an integer from 1 to 4"),
        ({"mlp_only_layers": "0"}, "mlp_only_layers is '0'; wanted: a list of layers"),
        ({"moe_intermediate_size": None}, "missing moe_intermediate_size"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(CheckpointError, match=wanted):
        config_of("qwen3_moe", **changes)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    config = tiny_config("mixtral")
    weights = random_weights(config)
    tensors = {on_disk(name, True): stored for name, stored in as_f32(weights).items()}
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    with pytest.raises(CheckpointError, match=r"missing tensor model.layers.1.mlp.experts.2.up_proj.weight"):
        open_checkpoint(write_folder(tmp_path, hf_settings(config), tensors))


def test_what_a_gguf_file_says_beyond_this_architecture(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    with pytest.raises(CheckpointError, match="qwen3moe.expert_gating_func is 2; wanted: 1, as qwen3moe files"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", config, random_weights(config), edit=edit))
    weights = random_weights(config)
    flat = {"blk.1.ffn_up_exps.weight": weights["model.layers.1.mlp.experts.0.up_proj.weight"]}
    left = {name: values for name, values in weights.items() if not (expert_of(name) is not None and "up" in name)}
    with pytest.raises(CheckpointError, match="missing tensor blk.1.ffn_up_exps.weight"):
        open_checkpoint(write_gguf(tmp_path / "flat.gguf", config, left, extra=flat))


def test_a_bias_of_an_expert_is_not_dropped(tmp_path: Path) -> None:
    config = tiny_config("mixtral")
    weights = random_weights(config)
    name = "model.layers.0.mlp.experts.1.up_proj.bias"
    weights[name] = np.ones(96, np.float32)
    with pytest.raises(CheckpointError, match=f"tensor {name} is not applied by a mixtral decoder"):
        open_checkpoint(write_folder(tmp_path, hf_settings(config), as_f32(weights)))
