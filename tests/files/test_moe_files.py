"""Models with experts: their names and shapes in each kind of file, and what is said of files that are broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny import (
    GOLDEN,
    MIXTURES,
    Stored,
    as_f32,
    forward,
    golden,
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
    """D16: merged experts in GGUF, each one's own tensors in a folder."""
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
    """D16: Mixtral's first GGUF files."""
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


# gate and up in one tensor


def fused(weights: dict[str, Any], layer: int, order: tuple[str, str] = ("gate_proj", "up_proj")) -> Any:
    """The experts' gate and up projections, [E, 2 * inner, hidden], the first of ``order`` in the upper half."""
    name = "model.layers.{}.mlp.experts.{}.{}.weight"
    halves = [np.stack([weights[name.format(layer, expert, part)] for expert in range(4)]) for part in order]
    return np.concatenate(halves, axis=1)


def without_gate_and_up(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in weights.items() if expert_of(name) is None or "down" in name}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_gate_comes_first_where_gate_and_up_are_one_tensor(tmp_path: Path, kind: str) -> None:
    """D17, by numbers: the shapes are the same in either order."""
    config = tiny_config("mixtral")
    weights = random_weights(config)
    apart = open_checkpoint(write_gguf(tmp_path / "apart.gguf", config, weights, type_of=lambda name: kind))

    def write(order: tuple[str, str]) -> Path:
        def edit(writer: gguf.GGUFWriter) -> None:
            for layer in range(2):
                stored = gguf.quants.quantize(fused(weights, layer, order), gguf.GGMLQuantizationType[kind])
                writer.add_tensor(
                    f"blk.{layer}.ffn_gate_up_exps.weight", stored, raw_dtype=gguf.GGMLQuantizationType[kind]
                )

        path = tmp_path / f"{order[0]}.gguf"
        return write_gguf(path, config, without_gate_and_up(weights), edit=edit, type_of=lambda name: kind)

    found = open_checkpoint(write(("gate_proj", "up_proj")))
    same(weights_of(found), weights_of(apart))
    assert found.weight_bytes == apart.weight_bytes
    logits = forward(apart, [3, 4, 5])
    np.testing.assert_array_equal(forward(found, [3, 4, 5]), logits)
    assert np.abs(forward(open_checkpoint(write(("up_proj", "gate_proj"))), [3, 4, 5]) - logits).max() > 0.1


def stacked(weights: dict[str, Any]) -> dict[str, Any]:
    """As transformers 5 holds experts: ``gate_up_proj`` and ``down_proj``, names without a last part."""
    out = {name: values for name, values in weights.items() if expert_of(name) is None}
    for layer in range(2):
        stem = f"model.layers.{layer}.mlp.experts"
        out[f"{stem}.gate_up_proj"] = fused(weights, layer)
        out[f"{stem}.down_proj"] = np.stack([weights[f"{stem}.{expert}.down_proj.weight"] for expert in range(4)])
    return out


def test_folders_with_the_names_that_transformers_has_inside(tmp_path: Path) -> None:
    """D17 in safetensors."""
    config = tiny_config("mixtral")
    weights = random_weights(config)
    checkpoint = open_checkpoint(write_folder(tmp_path, hf_settings(config), as_f32(stacked(weights))))
    same(weights_of(checkpoint), weights)


def test_halves_that_cannot_be_are_named(tmp_path: Path) -> None:
    config = tiny_config("mixtral")
    tensors = stacked(random_weights(config))
    tensors["model.layers.1.mlp.experts.gate_up_proj"] = np.zeros((4, 97, 64), np.float32)
    with pytest.raises(CheckpointError, match=r"experts.gate_up_proj has shape \(4, 97, 64\); it can't be gate and up"):
        open_checkpoint(write_folder(tmp_path, hf_settings(config), as_f32(tensors)))
    with pytest.raises(CheckpointError, match="missing tensor blk.1.ffn_gate_exps.weight"):
        odd = {"blk.1.ffn_gate_up_exps.weight": np.zeros((4, 97, 64), np.float32)}
        left = {n: v for n, v in random_weights(config).items() if not n.startswith("model.layers.1.mlp.experts")}
        open_checkpoint(write_gguf(tmp_path / "m.gguf", config, left, extra=odd))


# the same matrix twice, and more of them than can be meant


def test_a_matrix_in_two_tensors_is_named(tmp_path: Path) -> None:
    """Which one would count must not depend on their order in the file."""
    config = tiny_config("mixtral")
    weights = random_weights(config)
    twice = {"blk.0.ffn_up.2.weight": weights["model.layers.0.mlp.experts.2.up_proj.weight"]}
    with pytest.raises(CheckpointError, match=r"ffn_up.2.weight and blk.0.ffn_up_exps.weight are both model.layers.0"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", config, weights, extra=twice))
    tensors = as_f32(stacked(weights)) | as_f32(
        {"model.layers.0.mlp.experts.2.up_proj.weight": np.zeros((96, 64), np.float32)}
    )
    with pytest.raises(CheckpointError, match=r"tensors .* are both model.layers.0.mlp.experts.2.up_proj.weight"):
        open_checkpoint(write_folder(tmp_path / "folder", hf_settings(config), tensors))


def test_numbers_of_experts_that_would_be_long_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="num_experts is 1000000000; wanted: an integer from 0 to 43690"):
        config_of("qwen3_moe", num_experts=10**9)
    for module in ("hf_source", "gguf_source"):
        monkeypatch.setattr(f"bireme.models.{module}.MAX_MATRICES", 1000)
    config = tiny_config("qwen3_moe")
    left = {name: v for name, v in random_weights(config).items() if expert_of(name) is None or "up_proj" not in name}
    empty = {"model.layers.1.mlp.switch_mlp.up_proj.weight": ("F32", np.zeros((10**9, 0), np.float32))}
    with pytest.raises(CheckpointError, match="more than 1000 matrices, at tensor model.layers.1.mlp.switch_mlp"):
        open_checkpoint(write_folder(tmp_path / "folder", hf_settings(config), as_f32(left) | empty))
    many = {"blk.1.ffn_up_exps.weight": np.zeros((1001, 1, 1), np.float32)}
    with pytest.raises(CheckpointError, match="more than 1000 matrices, at tensor blk.1.ffn_up_exps.weight"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", config, left, extra=many))


def test_the_golden_mixture_with_a_tensor_for_each_expert(tmp_path: Path) -> None:
    """D16: the numbers of the file with merged ones, which ``test_golden`` holds to the reference."""
    merged = open_checkpoint(GOLDEN / "g10_moe_merged.gguf")
    weights, apart = weights_of(merged), {}
    for name in [name for name in weights if expert_of(name) is not None]:
        parts = name.split(".")
        part = parts[6].removesuffix("_proj")
        apart[f"blk.{parts[2]}.ffn_{part}.{parts[5]}.weight"] = weights.pop(name)
    legacy = open_checkpoint(write_gguf(tmp_path / "m.gguf", merged.config, weights, extra=apart))
    assert legacy.config == merged.config
    want = golden()["g10_moe_merged"]
    got = forward(legacy, want["prompt_ids"])[-1]
    np.testing.assert_allclose(got[:8], want["last_logits_first8"], atol=want["tol"], rtol=0)
