"""The GGUF reader: every value type, and every kind of broken file."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    GgufBytes,
    Tensor,
    array,
    number,
    text,
)
from tiny import GOLDEN, random_weights, tiny_config, write_gguf

from bireme.models.gguf import GgufFile
from bireme.models.gguf_split import open_gguf_files, pick_gguf
from bireme.models.weight import CheckpointError

G01 = GOLDEN / "g01_llama_gqa.gguf"


def write(path: Path, content: bytes | GgufBytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.build())
    return path


def key(name: str, kind: int, value: bytes) -> tuple[str | bytes, int, bytes]:
    return name, kind, value


NUMBERS = {U8: 255, I8: -128, U16: 65535, I16: -32768, U32: 2**32 - 1, I32: -(2**31), U64: 2**64 - 1, I64: -(2**63)}


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path: Path, version: int) -> None:
    file = GgufBytes(version=version)
    file.keys = [key(f"n{kind}", kind, number(kind, value)) for kind, value in NUMBERS.items()]
    file.keys += [
        key("f32", F32, number(F32, 0.5)),
        key("f64", F64, number(F64, 0.1)),
        key("yes", BOOL, number(BOOL, 1)),
        key("text", STRING, text("Grüße")),
        key("", STRING, text("")),
        key("bools", ARRAY, array(BOOL, [b"\1", b"\0"])),
        key("words", ARRAY, array(STRING, [text("a"), text(""), text("é")])),
        key("none", ARRAY, array(I16, [])),
        key("nested", ARRAY, array(ARRAY, [array(U8, [b"\1", b"\2"]), array(STRING, [text("x")])])),
    ]
    read = GgufFile(write(tmp_path / "m.gguf", file)).metadata
    assert {kind: read[f"n{kind}"] for kind in NUMBERS} == NUMBERS
    assert (read["f32"], read["f64"], read["yes"], read["text"], read[""]) == (0.5, 0.1, True, "Grüße", "")
    assert read["bools"] == [True, False]
    assert read["words"] == ["a", "", "é"]
    assert read["none"] == []
    assert read["nested"] == [[1, 2], ["x"]]
    assert type(read["yes"]) is bool and type(read[f"n{U8}"]) is int


def test_text_that_is_not_utf8_is_shown_with_replacements(tmp_path: Path) -> None:
    file = GgufBytes(keys=[key("x", STRING, text(b"a\xff"))])
    assert GgufFile(write(tmp_path / "m.gguf", file)).metadata == {"x": "a\ufffd"}


def test_large_vocabulary_is_read_quickly(tmp_path: Path) -> None:
    words = [text(f"token{index}") for index in range(150_000)]
    path = write(tmp_path / "m.gguf", keys(key("tokens", ARRAY, array(STRING, words))))
    start = time.process_time()
    read = GgufFile(path).metadata["tokens"]
    assert time.process_time() - start < 0.5  # 0.06 s on an idle machine
    assert len(read) == 150_000 and read[-1] == "token149999"


def test_array_too_long_to_be_meant(tmp_path: Path) -> None:
    count = (1 << 22) + 1
    path = write(tmp_path / "m.gguf", keys(key("x", ARRAY, array(U8, [bytes(count)], count))))
    with pytest.raises(CheckpointError, match=f"x has {count} elements, at most {1 << 22} are allowed"):
        GgufFile(path)


def test_opening_reads_no_tensor_data(tmp_path: Path) -> None:
    """A file of 8 GiB, all of it a hole, opens as fast as any."""
    size = 8 << 30
    path = write(tmp_path / "m.gguf", tensors(Tensor(dims=(size // 4,), data=b"")))
    os.truncate(path, path.stat().st_size + size)
    start = time.process_time()
    file = GgufFile(path)
    assert time.process_time() - start < 0.5
    assert file.data(file.tensors["a.weight"]).shape == (size // 4,)
    assert file.data(file.tensors["a.weight"])[-1] == 0


def test_same_as_gguf_py() -> None:
    ours, theirs = GgufFile(GOLDEN / "g09_mixed_quants.gguf"), gguf.GGUFReader(GOLDEN / "g09_mixed_quants.gguf")
    fields = {name: value.contents() for name, value in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        own = ours.tensors[tensor.name]
        assert own.type.name == tensor.tensor_type.name
        assert own.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert own.nbytes == tensor.n_bytes
        assert ours.data(own).tobytes() == tensor.data.tobytes()


def test_data_is_a_read_only_view_of_the_file() -> None:
    file = GgufFile(G01)
    data = file.data(file.tensors["blk.0.attn_v.weight"])
    assert data.dtype == np.float32
    assert not data.flags.owndata and not data.flags.writeable
    file.close()
    assert np.isfinite(data).all()  # the mapping lives as long as the view
    file.close()


def tensors(*given: Tensor) -> GgufBytes:
    return GgufBytes(tensors=list(given))


def keys(*given: tuple[str | bytes, int, bytes]) -> GgufBytes:
    return GgufBytes(keys=list(given))


MAX = 2**64 - 1
BROKEN: dict[str, tuple[bytes | GgufBytes, str]] = {
    "empty": (b"", "not a GGUF file .the file is empty"),
    "short_magic": (b"GG", "not a GGUF file"),
    "short_header": (b"GGUF\3\0\0\0\1\0", "truncated: the tensor count needs 8 bytes at 8, the file has 10"),
    "old_container": (b"GGML" + bytes(100), "not a GGUF file"),
    "older_container": (b"tjgg" + bytes(100), "an older container"),
    "html": (b"<!DOCTYPE html><p>404</p>", "a web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "LFS pointer"),
    "version_1": (GgufBytes(version=1), "unsupported version 1"),
    "version_0": (GgufBytes(version=0), "unsupported version 0"),
    "version_999": (GgufBytes(version=999), "unsupported version 999"),
    "big_endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "too_many_keys": (GgufBytes(key_count=MAX), "truncated or corrupt: 18446744073709551615 metadata keys"),
    "too_many_tensors": (GgufBytes(tensor_count=1 << 40), "truncated or corrupt: 1099511627776 tensors"),
    "key_cut": (GgufBytes(alignment=1, key_count=2, keys=[key("k" * 40, U8, b"\1")]), "truncated"),
    "key_not_utf8": (keys((b"\xff\xfe", U8, b"\1")), "metadata key 0 is not UTF-8"),
    "key_too_long": (keys(("k" * 70_000, U8, b"\1")), "metadata key 0 has 70000 bytes, at most 65535"),
    "key_twice": (keys(key("k", U8, b"\1"), key("k", U8, b"\1")), "metadata key 'k' occurs twice"),
    "unknown_value_type": (keys(key("x", 77, b"")), "unknown value type 77 of metadata key x"),
    "unknown_element_type": (keys(key("x", ARRAY, array(77, []))), "unknown value type 77"),
    "bad_bool": (keys(key("x", BOOL, b"\2")), "x is a bool of value 2"),
    "bad_bools": (keys(key("x", ARRAY, array(BOOL, [b"\1", b"\7"]))), "x is a bool of value 7"),
    "long_string": (keys(key("x", STRING, struct.pack("<Q", MAX))), "truncated: metadata x needs"),
    "long_array": (keys(key("x", ARRAY, array(F64, [], MAX))), "truncated: metadata x needs"),
    "long_string_array": (keys(key("x", ARRAY, array(STRING, [], MAX))), "truncated or corrupt"),
    "long_nested_array": (keys(key("x", ARRAY, array(ARRAY, [], MAX))), "truncated or corrupt"),
    "string_array_cut": (
        GgufBytes(alignment=1, keys=[key("x", ARRAY, array(STRING, [text("abcdefgh")], 2))]),
        "truncated: metadata x",
    ),
    "string_in_array_cut": (
        GgufBytes(alignment=1, keys=[key("x", ARRAY, array(STRING, [text("a"), text("abcdefgh")[:-1]]))]),
        "truncated: metadata x needs 8 bytes",
    ),
    "deep_nesting": (keys(key("x", ARRAY, array(ARRAY, [], 1) * 400)), "x nests arrays more than 8 deep"),
    "alignment_string": (keys(key("general.alignment", STRING, text("32"))), "alignment has the wrong type"),
    "alignment_float": (keys(key("general.alignment", F32, number(F32, 32))), "alignment has the wrong type"),
    "alignment_bool": (keys(key("general.alignment", BOOL, b"\1")), "alignment has the wrong type"),
    "alignment_zero": (keys(key("general.alignment", U32, number(U32, 0))), "alignment is 0"),
    "alignment_negative": (keys(key("general.alignment", I32, number(I32, -32))), "alignment is -32"),
    "alignment_odd": (keys(key("general.alignment", U32, number(U32, 12))), "alignment is 12"),
    "name_too_long": (tensors(Tensor(name="n" * 70_000)), "the name of tensor 0 has 70000 bytes, at most 1024"),
    "name_twice": (tensors(Tensor(), Tensor()), "tensor a.weight occurs twice"),
    "no_dims": (tensors(Tensor(dims=())), "tensor a.weight has 0 dimensions"),
    "many_dims": (tensors(Tensor(dims=(1,) * 5)), "tensor a.weight has 5 dimensions"),
    "zero_dim": (tensors(Tensor(dims=(8, 0))), r"tensor a.weight has shape \(0, 8\)"),
    "huge_dims": (tensors(Tensor(dims=(2**40, 2**40))), "tensor a.weight lies outside the file"),
    "product_wraps": (tensors(Tensor(dims=(2**33, 2**31 + 1))), "tensor a.weight lies outside the file"),
    "unknown_type": (tensors(Tensor(kind=250)), "unsupported tensor type 250 of tensor a.weight"),
    "removed_type": (tensors(Tensor(kind=4)), r"unsupported tensor type 4 \(removed Q4_2\)"),
    "row_no_block_multiple": (tensors(Tensor(dims=(33, 2), kind=8)), "a row of 33 is no multiple of the block 32"),
    "offset_past_end": (tensors(Tensor(offset=1 << 40)), "tensor a.weight lies outside the file: it takes bytes"),
    "offset_wraps": (tensors(Tensor(offset=MAX - 31)), "tensor a.weight lies outside the file"),
    "offset_misaligned": (tensors(Tensor(data=bytes(64), offset=4)), "misaligned offset 4 of tensor a.weight"),
    "overlap": (
        tensors(Tensor(dims=(16,), data=bytes(64)), Tensor(name="b.weight", offset=32)),
        "tensors overlap: b.weight begins at byte 160, a.weight ends at 192",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file(tmp_path: Path, case: str) -> None:
    """D09, D11: each is named with its sizes or type, and nothing is read past the end."""
    content, wanted = BROKEN[case]
    path = write(tmp_path / "m.gguf", content)
    with pytest.raises(CheckpointError, match=wanted) as error:
        GgufFile(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.02, 0.3, 0.6, 0.999])
def test_cut_file(tmp_path: Path, share: float) -> None:
    """D09: in the header, the metadata, the table and the data."""
    whole = G01.read_bytes()
    with pytest.raises(CheckpointError, match="truncated|not a GGUF file"):
        GgufFile(write(tmp_path / "m.gguf", whole[: int(len(whole) * share)]))


def test_last_byte_missing(tmp_path: Path) -> None:
    """D09: an error where the byte is data; padding may be missing."""
    with pytest.raises(CheckpointError, match="lies outside the file: it takes bytes 64 to 128, the file has 127"):
        GgufFile(write(tmp_path / "data.gguf", tensors(Tensor(dims=(16,), data=bytes(64))).build()[:-1]))
    padded = tensors(Tensor(dims=(15,), data=bytes(60))).build()[:-1]
    assert "a.weight" in GgufFile(write(tmp_path / "padding.gguf", padded)).tensors


@pytest.mark.parametrize("name", ["folder", "missing"])
def test_path_that_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=f"{name}: can't be opened"):
        GgufFile(tmp_path / name)


# split models


def write_split(folder: Path) -> list[Path]:
    config = tiny_config(num_layers=1)
    write_gguf(folder / "m.gguf", config, random_weights(config), split=5)
    return sorted(folder.glob("*.gguf"))


def patch(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def u16(value: int) -> bytes:
    return struct.pack("<IH", U16, value)


def i32(value: int) -> bytes:
    return struct.pack("<Ii", I32, value)


SPLIT_FAULTS: dict[str, tuple[Callable[[list[Path]], object], str]] = {
    "missing": (lambda s: s[1].unlink(), "m-00002-of-00003.gguf: shard 2 of 3 is missing"),
    "wrong_order": (lambda s: s[2].rename(s[1]), "m-00002-of-00003.gguf: its metadata says split.no 2"),
    "wrong_count": (
        lambda s: patch(s[1], b"split.count" + u16(3), b"split.count" + u16(4)),
        "m-00002-of-00003.gguf: its metadata says split.no 1 of split.count 4; wanted: 1 of 3",
    ),
    "wrong_total": (
        lambda s: patch(s[0], b"split.tensors.count" + i32(12), b"split.tensors.count" + i32(13)),
        "split.tensors.count is 13, the shards hold 12 tensors",
    ),
}


@pytest.mark.parametrize("case", SPLIT_FAULTS)
def test_broken_split_model(tmp_path: Path, case: str) -> None:
    """D07: shards that are missing or not of one model."""
    shards = write_split(tmp_path)
    fault, wanted = SPLIT_FAULTS[case]
    fault(shards)
    with pytest.raises(CheckpointError, match=re.escape(wanted)):
        open_gguf_files(shards[0])


def test_renamed_shard(tmp_path: Path) -> None:
    shards = write_split(tmp_path)
    odd = shards[0].rename(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="its name must end in -00001-of-00003.gguf"):
        open_gguf_files(odd)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    for index in range(2):
        shard = tensors(Tensor())
        shard.keys = [key("split.no", U16, number(U16, index)), key("split.count", U16, number(U16, 2))]
        write(tmp_path / f"m-{index + 1:05d}-of-00002.gguf", shard)
    with pytest.raises(CheckpointError, match="00002-of-00002.gguf: tensor a.weight is also in m-00001-of-00002.gguf"):
        open_gguf_files(tmp_path)


@pytest.mark.parametrize("value", [-1, 100_000])
def test_split_count_out_of_range(tmp_path: Path, value: int) -> None:
    shard = GgufBytes(keys=[key("split.count", I32, number(I32, value))])
    path = write(tmp_path / "m-00001-of-00002.gguf", shard)
    with pytest.raises(CheckpointError, match=f"corrupt: split.count is {value}"):
        open_gguf_files(path)


def test_shards_come_in_order(tmp_path: Path) -> None:
    shards = write_split(tmp_path)
    files = open_gguf_files(shards[2])
    assert [file.path for file in files] == shards
    assert "general.architecture" in files[0].metadata


def test_folder_with_one_model(tmp_path: Path) -> None:
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf", "README.md"):
        (tmp_path / name).touch()
    assert pick_gguf(tmp_path).name == "m-00001-of-00002.gguf"


def test_folder_with_several_models(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"2 GGUF models in one folder \(a.gguf, b.gguf\); name the file"):
        pick_gguf(tmp_path)


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no .gguf file"):
        pick_gguf(tmp_path)
