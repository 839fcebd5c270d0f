"""Token ids against other implementations: llama.cpp, SentencePiece and the tokenizers library."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import scripted
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_texts import TEXTS
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Inner

from bireme.models.checkpoint import open_checkpoint
from bireme.models.pretokenizers import PRE_TOKENIZERS
from bireme.models.text import TextModel
from bireme.models.tokenizer import Tokenizer
from bireme.models.weight import TokenizerFiles

ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "text" / "oracle.json").read_text(encoding="utf-8")
)


def joining(pre: str) -> Tokenizer:
    known = ORACLE["byte_level"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": known["tokens"],
        "tokenizer.ggml.merges": known["merges"],
    }
    return Tokenizer.from_files(TokenizerFiles(gguf_metadata=metadata), len(known["tokens"]))


def llamacpp_parts(name: str, text: str) -> bool:
    """Whether llama.cpp is known to part from the model's own tokenizer.json on this text."""
    has_marks = any(unicodedata.category(c).startswith("M") for c in text)
    if PRE_TOKENIZERS[name].normalize_nfc:
        return not unicodedata.is_normalized("NFC", text)  # it does not normalise
    if name in ("tekken", "gpt-4o", "llama4", "kanana2", "minimax-m2"):
        return has_marks  # it counts combining marks as no letters
    if name in ("deepseek-llm", "deepseek-coder"):
        return any(c.isspace() and ord(c) > 127 for c in text)  # its regex engine knows ASCII white space only
    return False


def test_the_demo_model_reads_text_as_llamacpp_does(demo: TextModel) -> None:
    ours = [demo.tokenizer.encode(text, add_special_tokens=False, parse_special=False) for text in TEXTS]
    assert ours == ORACLE["demo"]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_cuts_as_llamacpp_does(name: str) -> None:
    tokenizer = joining(name)
    compared = 0
    for text, ids in zip(TEXTS, ORACLE["byte_level"]["ids"][name], strict=True):
        if not llamacpp_parts(name, text):
            assert tokenizer.encode(text, add_special_tokens=False) == ids, text
            compared += 1
    assert compared >= len(TEXTS) - 4


def test_the_default_rule_is_llamacpps() -> None:
    with pytest.warns(UserWarning, match="quality of answers may suffer"):
        tokenizer = joining("default")
    assert [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS] == ORACLE["byte_level"]["ids"][
        "default"
    ]


def test_sentencepiece_ids_are_the_librarys_own() -> None:
    known = ORACLE["sentencepiece"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": known["tokens"],
        "tokenizer.ggml.scores": known["scores"],
        "tokenizer.ggml.token_type": known["types"],
        "tokenizer.ggml.bos_token_id": 1,
    }
    tokenizer = Tokenizer.from_files(TokenizerFiles(gguf_metadata=metadata), len(known["tokens"]))
    ours = [tokenizer.encode(text, add_special_tokens=False, parse_special=False) for text in TEXTS]
    assert ours == known["ids"]
    assert [tokenizer.decode(ids) for ids in ours] == list(TEXTS)
    assert tokenizer.encode("a")[0] == 1  # a SentencePiece file asks for BOS unless it says otherwise


def test_a_rule_that_normalises_composes_characters() -> None:
    assert joining("qwen2").encode("cafe\u0301") == joining("qwen2").encode("caf\u00e9")
    assert joining("llama-bpe").encode("cafe\u0301") != joining("llama-bpe").encode("caf\u00e9")


@pytest.fixture(scope="session")
def scripted_twin(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return hugging_face_twin(scripted.SCRIPTED, tmp_path_factory.mktemp("twin") / "tokenizer.json", single_digits=False)


@pytest.fixture(scope="session")
def demo_twin(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return hugging_face_twin(demo_model, tmp_path_factory.mktemp("twin") / "tokenizer.json", single_digits=True)


def hugging_face_twin(model: Path, path: Path, single_digits: bool) -> Tokenizer:
    """The file's vocabulary as a tokenizer.json made of the library's own GPT-2 pieces."""
    checkpoint = open_checkpoint(model)
    metadata = checkpoint.tokenizer.gguf_metadata or {}
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    inner = Inner(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    steps = [pre_tokenizers.Digits(individual_digits=True)] if single_digits else []
    inner.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, types, strict=True) if kind == 3])
    inner.save(str(path))
    checkpoint.close()
    files = TokenizerFiles(tokenizer_json=str(path), bos_token="<|im_start|>", eos_token="<|im_end|>", add_bos=False)
    return Tokenizer.from_files(files, len(tokens))


FRAGMENTS = st.sampled_from([*TEXTS, "<|im_end|>", " ", "'s", "7"]) | st.text(max_size=8)


@settings(max_examples=100, deadline=None)
@given(text=st.lists(FRAGMENTS, max_size=6).map("".join))
def test_gguf_files_and_their_hugging_face_twins_agree(
    byte_level: TextModel, scripted_twin: Tokenizer, demo: TextModel, demo_twin: Tokenizer, text: str
) -> None:
    for model, twin in ((byte_level.tokenizer, scripted_twin), (demo.tokenizer, demo_twin)):
        for parse_special in (True, False):
            ours = model.encode(text, parse_special=parse_special)
            assert twin.encode(text, parse_special=parse_special) == ours
            assert twin.decode(ours) == model.decode(ours)
    whole = byte_level.tokenizer  # its alphabet has all 256 bytes, the demo model's has not
    assert whole.decode(whole.encode(text), skip_special_tokens=False) == text
