"""Writes tests/data/text/oracle.json: token ids as llama.cpp and SentencePiece give them.

Run by hand where both are installed: ``PYTHONPATH=tests python tests/text/make_oracle.py DEMO.gguf``. Every
pre-tokenizer rule is asked with one small vocabulary whose merges join words, spaces and digits alike, so that ids show
where text was cut.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import tiny
import xllamacpp
from odd_texts import TEXTS
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bireme.models.byte_level import BYTE_TO_CHAR
from bireme.models.pretokenizers import PRE_TOKENIZERS

TARGET = Path(__file__).parents[1] / "data" / "text" / "oracle.json"


def llamacpp_ids(path: Path) -> list[list[int]]:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_gpu_layers, params.n_ctx, params.n_parallel, params.warmup = 0, 64, 1, False
    server = xllamacpp.Server(params)

    def ask(text: str) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
        request = urllib.request.Request(
            server.listening_address + "/tokenize", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["tokens"]

    return [ask(text) for text in TEXTS]


def joining_vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE trained on the texts and mixtures of them, never cut into words."""
    rng = random.Random(1)
    mixed = [rng.choice(TEXTS)[: rng.randrange(40)] + rng.choice(TEXTS)[-rng.randrange(1, 40) :] for _ in range(400)]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = list(BYTE_TO_CHAR.values())
    trainer = trainers.BpeTrainer(vocab_size=1200, min_frequency=2, show_progress=False, initial_alphabet=alphabet)
    trained.train_from_iterator([*TEXTS, *mixed], trainer)
    model = json.loads(trained.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]]


def pre_tokenizer_ids(tokens: list[str], merges: list[str]) -> dict[str, list[list[int]]]:
    config = tiny.tiny_config(vocab_size=len(tokens), num_layers=1)
    weights = tiny.random_weights(config)
    found = {}
    for name in ("default", *PRE_TOKENIZERS):

        def edit(writer: gguf.GGUFWriter, name: str = name) -> None:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(name)
            writer.add_token_list(tokens)
            writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
            writer.add_token_merges(merges)
            writer.add_bos_token_id(0)
            writer.add_eos_token_id(0)
            writer.add_add_bos_token(False)

        with tempfile.TemporaryDirectory() as folder:
            found[name] = llamacpp_ids(tiny.write_gguf(Path(folder) / "pre.gguf", config, weights, edit=edit))
    return found


def sentencepiece_ids() -> dict[str, Any]:
    sources = sorted(Path(__file__).parents[2].glob("core/*.py"))
    lines = [line for path in sources for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines, *TEXTS, *TEXTS]),
        model_writer=model,
        vocab_size=1000,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=0.995,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.get_piece_size())
    kinds = ((processor.is_unknown, 2), (processor.is_control, 3), (processor.is_byte, 6))
    return {
        "tokens": [processor.id_to_piece(i) for i in ids],
        "scores": [processor.get_score(i) for i in ids],
        "types": [next((kind for test, kind in kinds if test(i)), 1) for i in ids],
        "ids": [processor.encode(text) for text in TEXTS],
    }


if __name__ == "__main__":
    tokens, merges = joining_vocabulary()
    oracle = {
        "demo": llamacpp_ids(Path(sys.argv[1])),
        "byte_level": {"tokens": tokens, "merges": merges, "ids": pre_tokenizer_ids(tokens, merges)},
        "sentencepiece": sentencepiece_ids(),
    }
    TARGET.write_text(json.dumps(oracle, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
