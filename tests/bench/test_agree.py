"""The arithmetic behind ``make agree``: where texts part, what each engine makes of another's text, the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from bireme.bench.agree import Pair, Parting, partings, parts_at, table
from bireme.bench.greedy import Running, follow
from bireme.bench.llama_c import LlamaModel, _ask_float32
from bireme.bench.requantise import as_float32, nudged

LOGITS = np.array([[0.0, 3.0, 1.0, 2.5], [4.0, 0.5, 3.0, 0.0], [0.0, 0.0, 7.0, 1.0]], np.float32)


class _FixedRoad:
    """Logits that depend on the token alone."""

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        return LOGITS[ids]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [], None), ([4], [5], 0)],
)
def test_texts_part_at_their_first_difference(first: list[int], second: list[int], expected: int | None) -> None:
    assert parts_at(first, second) == expected


def test_following_reads_the_position_before_each_token() -> None:
    running = cast(Running, _FixedRoad())
    followed, top_two = follow(running, [[2, 0], [1]], [[1, 2], [0]], None)
    assert followed.top.tolist() == [1, 0, 0]
    assert top_two.tolist() == [[1, 3], [0, 2], [0, 2]]
    assert followed.gap.tolist() == [0.5, 1.0, 1.0]


def test_gaps_are_between_the_tokens_that_are_given() -> None:
    running = cast(Running, _FixedRoad())
    followed, _ = follow(running, [[0]], [[0, 2]], np.array([[0, 1], [2, 3]]))
    assert followed.gap.tolist() == [-3.0, -1.5]


def test_table_names_the_largest_gap_and_says_where_none_parts() -> None:
    part = Parting("Why?", 7, ("a", "b"), 0.25, -0.25)
    rows = [
        Pair("same", ("x", "y"), 20, 20, 48.0, 0.0, 0.0, []),
        Pair("other", ("x", "z"), 20, 18, 44.5, 0.031, 0.2, [part, Parting("How?", 9, ("c", "d"), 0.5, 0.5)]),
    ]
    lines = table(rows).splitlines()
    assert lines[2] == "| same (x / y) | 20 of 20 | 48.0 | 0.0% | 0 | - |"
    assert lines[3] == "| other (x / z) | 18 of 20 | 44.5 | 3.1% | 0.2 | 0.5 |"
    assert partings(rows[0]).endswith("no parting")
    assert "after  7 tokens  'a' / 'b'  gap 0.25, between them -0.25  Why?" in partings(rows[1])


def test_records_that_do_not_look_as_expected_are_left_alone() -> None:
    class Params:
        words = [0] * 256

    with pytest.raises(RuntimeError, match="records differ"):
        _ask_float32(Params)
    assert Params.words == [0] * 256


@pytest.fixture
def small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One Q4_1 matrix, one float32 vector, two keys; copies go to a folder of the test's own."""
    import gguf

    monkeypatch.setenv("BIREME_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_1))
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    matrix = np.linspace(-2, 3, 4 * 64, dtype=np.float32).reshape(4, 64)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(matrix, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.linspace(0.5, 2, 64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(path: Path) -> dict[str, Any]:
    import gguf

    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def test_a_float32_copy_has_the_same_values(small_model: Path) -> None:
    import gguf

    before, after = _tensors(small_model), _tensors(as_float32(small_model))
    for name, tensor in before.items():
        assert after[name].tensor_type == gguf.GGMLQuantizationType.F32
        assert np.array_equal(after[name].data, gguf.dequantize(tensor.data, tensor.tensor_type))


def test_a_nudged_copy_moves_only_the_vectors(small_model: Path) -> None:
    before, after = _tensors(small_model), _tensors(nudged(small_model))
    assert np.array_equal(before["blk.0.ffn_up.weight"].data, after["blk.0.ffn_up.weight"].data)
    share = after["output_norm.weight"].data / before["output_norm.weight"].data - 1
    assert np.all(np.abs(share) > 5e-7) and np.all(np.abs(share) < 2e-6)
    assert 0 < (share > 0).sum() < share.size


def test_float32_attention_takes_hold_in_llama_cpp(demo_model: Path) -> None:
    pytest.importorskip("xllamacpp")
    usual = LlamaModel(demo_model, 32, 1)
    other = LlamaModel(demo_model, 32, 1, float32_attention=True)
    first, second = usual.logits([1, 5, 9]), other.logits([1, 5, 9])
    usual.close()
    other.close()
    assert np.any(first != second)
    assert np.abs(first - second).max() < 5
