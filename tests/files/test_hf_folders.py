"""Folders of safetensors: which files count, what the text side says, what is refused."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import Stored, as_f32, hf_settings, random_weights, save_safetensors, tiny_config, weights_of, write_folder

from bireme.models.checkpoint import open_checkpoint
from bireme.models.safetensors import SafetensorsFile
from bireme.models.weight import CheckpointError

CONFIG = tiny_config()
WEIGHTS = random_weights(CONFIG)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def folder_of(path: Path, shards: int = 1, files: dict[str, Any] | None = None, **changes: Any) -> Path:
    return write_folder(path, hf_settings(CONFIG, **changes), as_f32(WEIGHTS), shards, files)


def assert_loads(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    loaded = weights_of(checkpoint)
    assert loaded.keys() == WEIGHTS.keys()
    for name, values in WEIGHTS.items():
        np.testing.assert_array_equal(loaded[name], values)
    assert checkpoint.weight_bytes == sum(values.nbytes for values in WEIGHTS.values())


# which files count


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_index_and_shards(tmp_path: Path, shards: int) -> None:
    assert_loads(folder_of(tmp_path, shards))


@pytest.mark.parametrize("name", ["model.safetensors", "consolidated.safetensors", "model-00001-of-00001.safetensors"])
def test_only_files_in_the_index_count(tmp_path: Path, name: str) -> None:
    """D18: another copy beside the indexed one is not loaded."""
    folder = folder_of(tmp_path, 2)
    save_safetensors(folder / name, as_f32({key: values + 1 for key, values in WEIGHTS.items()}))
    assert_loads(folder)


def test_without_an_index_all_shards_count(tmp_path: Path) -> None:
    """D18: all shards, and no consolidated file."""
    folder = folder_of(tmp_path, 2)
    (folder / "model.safetensors.index.json").unlink()
    save_safetensors(folder / "consolidated.safetensors", as_f32({"tok_embeddings.weight": np.zeros(4, np.float32)}))
    assert_loads(folder)


@pytest.mark.parametrize("keep_index", [True, False])
def test_missing_shard_is_named(tmp_path: Path, keep_index: bool) -> None:
    """D18: with an index or by the names alone."""
    folder = folder_of(tmp_path, 2)
    (folder / SHARDS[1]).unlink()
    if not keep_index:
        (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=f"{SHARDS[1]}: missing"):
        open_checkpoint(folder)


def test_tensor_in_two_files_without_an_index(tmp_path: Path) -> None:
    """D18: a second copy is refused where nothing says which counts."""
    folder = folder_of(tmp_path)
    save_safetensors(folder / "model-2.safetensors", as_f32(WEIGHTS))
    with pytest.raises(CheckpointError, match="model.safetensors: tensor .* is also in model-2.safetensors"):
        open_checkpoint(folder)


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda i: i["weight_map"].update(x="../x.safetensors"), "weight_map places x in '../x.safetensors'"),
        (lambda i: i["weight_map"].update(x=3), "weight_map places x in 3"),
        (lambda i: i["weight_map"].update(x=SHARDS[0]), f"{SHARDS[0]}: missing tensor x"),
        (
            lambda i: i["weight_map"].update({"lm_head.weight": SHARDS[1]}),
            f"{SHARDS[1]}: missing tensor lm_head.weight",
        ),
        (lambda i: i.pop("weight_map"), "no index of tensors"),
        (lambda i: i.update(weight_map=[]), "weight_map is no object"),
        (lambda i: i["weight_map"].pop("model.norm.weight"), "missing tensor model.norm.weight"),
    ],
)
def test_broken_index(tmp_path: Path, change: Callable[[dict[str, Any]], object], wanted: str) -> None:
    folder = folder_of(tmp_path, 2)
    assert (
        json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]["lm_head.weight"] == SHARDS[0]
    )
    edit_index(folder, change)
    with pytest.raises(CheckpointError, match=wanted):
        open_checkpoint(folder)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_settings(CONFIG)))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="no model.*safetensors file in this folder .only pickled weights"):
        open_checkpoint(tmp_path)


def test_one_file_instead_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with pytest.raises(CheckpointError, match=f"name its folder, {folder}"):
        open_checkpoint(folder / "model.safetensors")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="no .gguf file and no config.json"):
        open_checkpoint(tmp_path)


# the container


def header(text: str | dict[str, Any], data: bytes = b"") -> bytes:
    raw = (text if isinstance(text, str) else json.dumps(text)).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), span: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": span}


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated: a safetensors file has at least 8 bytes, this one 0"),
    "huge_header": (
        struct.pack("<Q", 2**63) + bytes(20),
        "its header takes 9223372036854775808 bytes, the file has 28",
    ),
    "header_cut": (header({"a": entry()})[:-4], "truncated or not a safetensors file"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "an LFS pointer"),
    "not_json": (header("{"), "the header is not JSON"),
    "not_utf8": (struct.pack("<Q", 2) + b"\xff\xff", "the header is not JSON"),
    "deep": (header("[" * 100_000), "the header is not JSON"),
    "list": (header("[]"), "the header is no JSON object"),
    "no_fields": (header({"a": {}}), "corrupt: tensor a"),
    "number": (header({"a": 3}), "corrupt: tensor a"),
    "negative": (header({"a": entry(shape=[-2])}, bytes(8)), "corrupt: tensor a"),
    "float_shape": (header({"a": entry(shape=[2.0])}, bytes(8)), "corrupt: tensor a"),
    "bool_shape": (header({"a": entry(shape=[True])}, bytes(8)), "corrupt: tensor a"),
    "outside": (header({"a": entry()}, bytes(7)), r"tensor a lies outside the file: it takes bytes (\d+) to"),
    "backwards": (header({"a": entry(span=[8, 0])}, bytes(8)), "tensor a lies outside the file"),
    "far": (header({"a": entry(shape=[1 << 61], span=[0, 1 << 63])}), "tensor a lies outside the file"),
    "size": (
        header({"a": entry(shape=[3])}, bytes(8)),
        "tensor a of shape .3,. and type F32 takes 12 bytes, its range",
    ),
    "overlap": (header({"a": entry(), "b": entry(span=[4, 12])}, bytes(12)), "tensors overlap: b begins at byte"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file(tmp_path: Path, case: str) -> None:
    """D09: each is named with its sizes."""
    content, wanted = BROKEN[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=wanted) as error:
        SafetensorsFile(path)
    assert str(path) in str(error.value)


def test_views_not_copies(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_safetensors(path, {"a": ("BF16", np.arange(6, dtype=np.uint16).reshape(2, 3)), "b": ("F16", np.float16([1]))})
    file = SafetensorsFile(path)
    data = file.data(file.tensors["a"])
    assert data.dtype == np.uint16 and data.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not data.flags.owndata and not data.flags.writeable
    assert file.data(file.tensors["b"]).dtype == np.float16


# shapes, types, leftovers


def test_missing_tensor(tmp_path: Path) -> None:
    left = {name: values for name, values in WEIGHTS.items() if "v_proj" not in name}
    with pytest.raises(CheckpointError, match="missing tensor model.layers.0.self_attn.v_proj.weight and 1 more"):
        open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG), as_f32(left)))


def test_wrong_shape_names_both(tmp_path: Path) -> None:
    changed = WEIGHTS | {"model.layers.1.mlp.up_proj.weight": np.zeros((90, 64), np.float32)}
    wanted = r"tensor model.layers.1.mlp.up_proj.weight has shape \(90, 64\), expected \(96, 64\)"
    with pytest.raises(CheckpointError, match=wanted):
        open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG), as_f32(changed)))


def test_unsupported_type(tmp_path: Path) -> None:
    tensors: dict[str, Stored] = as_f32(WEIGHTS)
    tensors["model.norm.weight"] = ("F8_E4M3", np.zeros(64, np.uint8))
    with pytest.raises(CheckpointError, match="tensor model.norm.weight has type F8_E4M3; supported"):
        open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG), tensors))


def test_leftovers_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = as_f32(WEIGHTS)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", np.zeros(8, np.float32))
    tensors["model.layers.0.mystery.weight"] = ("F8_E4M3", np.zeros(8, np.uint8))
    checkpoint = open_checkpoint(write_folder(tmp_path, hf_settings(CONFIG), tensors))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "model.layers.0.mystery.weight" in caplog.text and "inv_freq" not in caplog.text
    with pytest.raises(CheckpointError, match="missing tensor model.layers.0.mystery.weight"):
        checkpoint.weight("model.layers.0.mystery.weight")


@pytest.mark.parametrize(
    ("name", "value"),
    [("config.json", "{"), ("config.json", "[]"), ("config.json", "\udcff"), ("tokenizer_config.json", "nonsense")],
)
def test_broken_json_is_named(tmp_path: Path, name: str, value: str) -> None:
    folder = folder_of(tmp_path)
    (folder / name).write_bytes(value.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(folder)


# end ids, defaults, templates


TOKENIZER = {"added_tokens": [{"id": 7, "content": "<|im_end|>"}], "model": {"vocab": {"</s>": 2}}}


@pytest.mark.parametrize(
    ("changes", "files", "ids"),
    [
        ({"eos_token_id": 5}, {}, {5}),
        ({"eos_token_id": [5, 6]}, {}, {5, 6}),
        ({"eos_token_id": None}, {"generation_config.json": {"eos_token_id": [6, 9]}}, {6, 9}),
        ({"eos_token_id": 5}, {"generation_config.json": {"eos_token_id": 6}}, {5, 6}),
        ({}, {"tokenizer_config.json": {"eos_token": "<|im_end|>"}, "tokenizer.json": TOKENIZER}, {7}),
        ({}, {"tokenizer_config.json": {"eos_token": {"content": "</s>"}}, "tokenizer.json": TOKENIZER}, {2}),
        ({}, {"special_tokens_map.json": {"eos_token": "</s>"}, "tokenizer.json": TOKENIZER}, {2}),
        (
            {"eos_token_id": 5},
            {"tokenizer_config.json": {"eos_token": "a", "added_tokens_decoder": {"8": {"content": "a"}}}},
            {5, 8},
        ),
        ({}, {"tokenizer_config.json": {"eos_token": "unknown"}, "tokenizer.json": TOKENIZER}, set()),
        ({}, {"tokenizer_config.json": {"eos_token": "a"}, "tokenizer.json": {"added_tokens": ["a"]}}, set()),
        ({}, {}, set()),
    ],
)
def test_end_ids_are_the_union(tmp_path: Path, changes: dict[str, Any], files: dict[str, Any], ids: set[int]) -> None:
    """D21: of config.json, generation_config.json and both files of the tokenizer."""
    assert open_checkpoint(folder_of(tmp_path, files=files, **changes)).end_ids == ids


def test_end_ids_of_a_text_config_and_around_it(tmp_path: Path) -> None:
    settings = {"eos_token_id": 3, "text_config": hf_settings(CONFIG, eos_token_id=4)}
    checkpoint = open_checkpoint(write_folder(tmp_path, settings, as_f32(WEIGHTS)))
    assert checkpoint.end_ids == {3, 4}


@pytest.mark.parametrize("value", [320, -1, [5, 99999], "x", True, 1.5])
def test_bad_end_id(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: eos_token_id"):
        open_checkpoint(folder_of(tmp_path, eos_token_id=value))


def test_generation_defaults(tmp_path: Path) -> None:
    given = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "min_p": "x", "max_length": 9}
    checkpoint = open_checkpoint(folder_of(tmp_path, files={"generation_config.json": given}))
    assert checkpoint.generation_defaults == {"temperature": 0.6, "top_k": 20}


def test_tokenizer_files(tmp_path: Path) -> None:
    tokenizer_config = {"bos_token": {"content": "<s>"}, "add_bos_token": True, "chat_template": "A"}
    files = {"tokenizer_config.json": tokenizer_config, "tokenizer.json": TOKENIZER}
    files["special_tokens_map.json"] = {"bos_token": "other", "eos_token": "</s>"}
    text = open_checkpoint(folder_of(tmp_path, files=files)).tokenizer
    assert text.tokenizer_json == str(tmp_path / "tokenizer.json")
    assert (text.bos_token, text.eos_token, text.add_bos, text.chat_template) == ("<s>", "</s>", True, "A")
    assert text.gguf_metadata is None and text.extra == {}


@pytest.mark.parametrize(
    ("files", "main", "named"),
    [
        ({}, None, {}),
        ({"chat_template.jinja": "J", "tokenizer_config.json": {"chat_template": "A"}}, "J", {}),
        ({"chat_template.json": {"chat_template": "C"}}, "C", {}),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
                }
            },
            "A",
            {"tool_use": "B"},
        ),
    ],
)
def test_chat_templates(tmp_path: Path, files: dict[str, Any], main: str | None, named: dict[str, str]) -> None:
    text = open_checkpoint(folder_of(tmp_path, files=files)).tokenizer
    assert text.chat_template == main
    assert text.extra.get("chat_templates", {}) == named


def test_further_templates_in_their_own_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, files={"chat_template.jinja": "J"})
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("R")
    text = open_checkpoint(folder).tokenizer
    assert text.chat_template == "J"
    assert text.extra == {"chat_templates": {"rag": "R"}}


def test_template_that_is_no_text(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="chat_template.jinja: can't be read as UTF-8"):
        open_checkpoint(folder)


def test_name_of_a_hub_snapshot(tmp_path: Path) -> None:
    assert open_checkpoint(folder_of(tmp_path / "tiny")).name == "tiny"
    snapshot = tmp_path / "models--org--tiny-1B" / "snapshots" / "0123abc"
    assert open_checkpoint(folder_of(snapshot)).name == "org/tiny-1B"
