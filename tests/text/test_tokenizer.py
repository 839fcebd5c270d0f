"""What a tokenizer takes and refuses: file keys, special tokens, odd strings, sizes."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripted
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Inner

from bireme.models.byte_level import BYTE_TO_CHAR
from bireme.models.checkpoint import open_checkpoint
from bireme.models.text import TextModel
from bireme.models.tokenizer import Tokenizer
from bireme.models.weight import CheckpointError, TokenizerFiles

BOS, EOS, START, END = (scripted.SPECIAL_IDS[name] for name in ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"))


def metadata(**changes: Any) -> dict[str, Any]:
    checkpoint = open_checkpoint(scripted.SCRIPTED)
    found = dict(checkpoint.tokenizer.gguf_metadata or {})
    checkpoint.close()
    found.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    return {key: value for key, value in found.items() if value is not None}


def from_metadata(vocab_size: int = 352, **changes: Any) -> Tokenizer:
    return Tokenizer.from_files(TokenizerFiles(gguf_metadata=metadata(**changes)), vocab_size)


# The pre-tokenizer's name.


@pytest.mark.parametrize("pre", [None, "default"])
def test_a_missing_or_default_name_loads_with_one_warning(pre: str | None) -> None:
    with pytest.warns(UserWarning, match="quality of answers may suffer") as warned:
        tokenizer = from_metadata(pre=pre)
    assert len(warned) == 1
    assert tokenizer.decode(tokenizer.encode("hello 1234")) == "hello 1234"


def test_an_unknown_name_is_refused_by_name(tmp_path: Path) -> None:
    """A18"""
    checkpoint = open_checkpoint(scripted.variant(tmp_path, "pre_made_up"))
    with pytest.raises(CheckpointError, match=r"'made-up-pre'.*Known: .*llama-bpe"):
        TextModel.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
    checkpoint.close()


@pytest.mark.parametrize("name", ["pre_none", "pre_default"])
def test_such_files_load(variant: Callable[[str], TextModel], name: str) -> None:
    """A18"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert variant(name).prompt_ids("x4") == (120, 52)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": []}, "tokens is missing"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "'a' twice"),
        ({"token_type": [1]}, "1 entries for 352"),
        ({"merges": ["ab"]}, "holds 'ab'"),
        ({"merges": ["q nope"]}, "doesn't fit"),
        ({"eos_token_id": 352}, "eos_token_id is 352"),
        ({"model": "llama", "scores": [0.0]}, "scores has 1"),
        ({"model": "llama", "scores": [float("nan")] * 352}, "scores holds values that are no numbers"),
        ({"model": "llama", "scores": [0.0] * 352, "token_type": [6] * 352}, "is marked as a byte"),
        ({"tokens": [0] * 352}, "tokens is '.0, 0, .* wanted: a list of str"),
        ({"token_type": "x"}, "token_type is 'x'; wanted: a list of int"),
        ({"merges": [[]]}, "merges is .*; wanted: a list of str"),
        ({"pre": ["gpt-2"]}, "pre is .'gpt-2'., a pre-tokenizer Bireme does not know"),
    ],
)
def test_broken_keys_are_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        from_metadata(**changes)


ODD = (None, True, 0, -1, 2**64, 1.5, float("nan"), "", "x", [], [-1], [1.5], [True], ["a", "b"], ["<0xZZ>"], [[1]])


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_no_value_of_any_key_is_another_error(model: str) -> None:
    """D11"""
    plain = metadata(model=model, scores=[0.0] * 352)
    for key in [*plain, *(f"tokenizer.ggml.{name}" for name in ("pre", "add_eos_token", "unknown_token_id"))]:
        for value in ODD:
            files = TokenizerFiles(gguf_metadata=plain | {key: value})
            with warnings.catch_warnings(), contextlib.suppress(CheckpointError):
                warnings.simplefilter("ignore")
                Tokenizer.from_files(files, 352).encode("a b")


def test_a_model_without_tokenizer_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tokenizer"):
        Tokenizer.from_files(TokenizerFiles(), 10)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="tokenizer.json"):
        Tokenizer.from_files(TokenizerFiles(tokenizer_json=str(tmp_path / "tokenizer.json")), 10)


# Special tokens.


def test_special_tokens_are_read_only_where_asked(byte_level: TextModel) -> None:
    tokenizer = byte_level.tokenizer
    text = "a<|im_end|>b"
    assert tokenizer.encode(text) == [97, END, 98]
    assert tokenizer.encode(text, parse_special=False) == [97, *text[1:-1].encode(), 98]
    assert tokenizer.special_ids >= {BOS, EOS, START, END}


def test_an_end_token_that_the_file_calls_normal_is_a_control_token_all_the_same() -> None:
    types = [1] * 352
    tokenizer = from_metadata(token_type=types)
    assert END in tokenizer.special_ids
    assert tokenizer.encode("<|im_end|>", parse_special=False) == list(b"<|im_end|>")


def test_user_defined_tokens_are_words_of_the_text() -> None:
    types = [*metadata()["tokenizer.ggml.token_type"]]
    tokens = [*metadata()["tokenizer.ggml.tokens"]]
    types[340], tokens[340] = 4, "<thought>"
    tokenizer = from_metadata(token_type=types, tokens=tokens)
    assert tokenizer.encode("a<thought>b", parse_special=False) == [97, 340, 98]
    assert tokenizer.decode([340]) == "<thought>" and 340 not in tokenizer.special_ids


def test_bos_is_added_once_and_an_end_token_never() -> None:
    tokenizer = from_metadata(add_bos_token=True, add_eos_token=True)
    assert tokenizer.encode("a") == [BOS, 97] == tokenizer.encode("<|bos|>a")
    assert tokenizer.encode("") == [BOS]
    assert tokenizer.encode("a", add_special_tokens=False) == [97]
    assert from_metadata(add_bos_token=True, bos_token_id=None).encode("a") == [97]


# Odd strings.


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_decode_undoes_encode(byte_level: TextModel, spm: TextModel, text: str) -> None:
    assert byte_level.tokenizer.decode(byte_level.tokenizer.encode(text, parse_special=False)) == text
    marked = text.replace("▁", " ")  # SentencePiece's own stand-in for a space
    assert spm.tokenizer.decode(spm.tokenizer.encode(text, parse_special=False)) == marked


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=20) | st.text("\ud83d\ude00\udfff\ud800\x00a", max_size=8))
def test_surrogates_and_nuls_are_taken(byte_level: TextModel, text: str) -> None:
    ids = byte_level.tokenizer.encode(text, parse_special=False)
    assert byte_level.tokenizer.decode(ids) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_token_bytes_and_text(byte_level: TextModel, spm: TextModel, demo: TextModel) -> None:
    assert [byte_level.tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert byte_level.tokenizer.token_text(195) == "\ufffd"
    assert [spm.tokenizer.token_bytes(3 + i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert demo.tokenizer.decode([28120, 216, 33]) == "hello 1"


def test_ids_out_of_range_are_refused(byte_level: TextModel) -> None:
    for bad in (-1, 352, 10**9):
        with pytest.raises(ValueError, match=f"token id {bad} is out of range.* 0 to 351"):
            byte_level.tokenizer.decode([bad])
        with pytest.raises(ValueError, match=f"token id {bad} is out of range"):
            byte_level.prompt_ids([1, bad])


def test_a_row_without_a_token_is_no_text_and_a_token_without_a_row_is_refused() -> None:
    assert from_metadata(vocab_size=400).token_bytes(399) == b""
    assert from_metadata(vocab_size=400).decode([399, 97]) == "a"
    with pytest.raises(ValueError, match=r"'<\|im_end\|>', token 307"):
        from_metadata(vocab_size=300).encode("<|im_end|>")


@pytest.mark.parametrize(
    "text",
    ["The quick brown fox, don't 1234 jumps! ", "a", " ", "\n", "<", "如何", "<|im_end|>", "x.", "\u0301"],
)
def test_a_megabyte_is_encoded_in_seconds(demo: TextModel, text: str) -> None:
    whole = (text * (1_000_000 // len(text.encode()) + 1))[:1_000_000]
    started = time.process_time()
    ids = demo.tokenizer.encode(whole)
    assert time.process_time() - started < 10
    assert demo.tokenizer.decode(ids, skip_special_tokens=False) == whole


# tokenizer.json.


def byte_level_json(path: Path, **parts: Any) -> str:
    inner = Inner(models.BPE({char: byte for byte, char in BYTE_TO_CHAR.items()}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(parts.get("special", ["<s>", "</s>"]))
    inner.add_tokens(parts.get("added", []))
    if "processor" in parts:
        inner.post_processor = parts["processor"]
    inner.save(str(path))
    return str(path)


def test_bos_comes_from_the_post_processor_and_eos_does_not(tmp_path: Path) -> None:
    processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 256), ("</s>", 257)])
    path = byte_level_json(tmp_path / "tokenizer.json", processor=processor)
    files = TokenizerFiles(tokenizer_json=path, bos_token="<s>", eos_token="</s>")
    tokenizer = Tokenizer.from_files(files, 258)
    assert tokenizer.encode("a") == [256, 97] == tokenizer.encode("<s>a")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos_to_chat) == (256, 257, False)
    off = TokenizerFiles(tokenizer_json=path, bos_token="<s>", add_bos=False)
    assert Tokenizer.from_files(off, 258).encode("a") == [97]
    plain = byte_level_json(tmp_path / "plain.json")
    on = TokenizerFiles(tokenizer_json=plain, bos_token="<s>", add_bos=True)
    assert Tokenizer.from_files(on, 258).encode("a") == [256, 97]


def test_ids_that_would_take_all_memory_are_refused(tmp_path: Path) -> None:
    path = Path(byte_level_json(tmp_path / "tokenizer.json"))
    content = json.loads(path.read_text())
    content["model"]["vocab"]["a"] = 2**31
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="tokenizer.json: token 'a' has the id 2147483648; ids below 4194304"):
        Tokenizer.from_files(TokenizerFiles(tokenizer_json=str(path)), 258)


def test_what_the_library_panics_at_is_refused(tmp_path: Path) -> None:
    path = Path(byte_level_json(tmp_path / "tokenizer.json"))
    content = json.loads(path.read_text())
    content["model"] |= {"merges": ["a b"], "continuing_subword_prefix": "x" * 3000}
    content["model"]["vocab"] |= {"ab": 258}
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="tokenizer.json: not a tokenizer the tokenizers library reads"):
        Tokenizer.from_files(TokenizerFiles(tokenizer_json=str(path)), 259)


def test_a_special_token_that_is_no_text_is_no_token(tmp_path: Path) -> None:
    path = byte_level_json(tmp_path / "tokenizer.json")
    files = TokenizerFiles(tokenizer_json=path, bos_token="\ud800", eos_token="</s>")
    tokenizer = Tokenizer.from_files(files, 258)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, 257)


def test_special_tokens_may_take_white_space_along(tmp_path: Path) -> None:
    special = [AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", rstrip=True, special=True)]
    path = byte_level_json(tmp_path / "tokenizer.json", special=special)
    tokenizer = Tokenizer.from_files(TokenizerFiles(tokenizer_json=path), 258)
    reference = Inner.from_file(path)
    for text in ("a \n<l> b", "a <r> \n b", "  <l>  <r>  <l>", "<r>  <l>x", " a <l><r> b "):
        assert tokenizer.encode(text) == reference.encode(text).ids, text
    started = time.process_time()
    tokenizer.encode(" " * 1_000_000 + "a")
    assert time.process_time() - started < 10


def test_added_tokens_that_are_not_special_are_found_in_users_text(tmp_path: Path) -> None:
    path = byte_level_json(tmp_path / "tokenizer.json", added=[AddedToken("<tool é>", special=False)])
    tokenizer = Tokenizer.from_files(TokenizerFiles(tokenizer_json=path, eos_token="a"), 259)
    assert tokenizer.encode("x<tool é>", parse_special=False) == [120, 258]
    assert tokenizer.decode([258, 97], skip_special_tokens=True) == "<tool é>"  # the end token "a" is special


@pytest.mark.parametrize("legacy", [True, False])
def test_sentencepiece_json_keeps_its_spaces_right(tmp_path: Path, legacy: bool) -> None:
    words = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "b"]
    inner = Inner(
        models.BPE(
            {w: i for i, w in enumerate(words)}, [("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    if legacy:
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    inner.save(str(tmp_path / "tokenizer.json"))
    files = TokenizerFiles(tokenizer_json=str(tmp_path / "tokenizer.json"), bos_token="<s>")
    tokenizer = Tokenizer.from_files(files, len(words))
    reference = Inner.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("a b", " a", "<s>a", "a<s>a", "a <s> a", "", "b😀", "<s>"):
        assert tokenizer.encode(text) == reference.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(reference.encode(text).ids), text
    assert tokenizer.decode([260, 260]) == "a a" and tokenizer.decode([260], continues=True) == " a"
