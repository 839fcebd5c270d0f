"""What is Gemma's own about a SentencePiece vocabulary in a GGUF file, and the search for many control tokens."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from bireme.models.tokenizer import Tokenizer, _any_of
from bireme.models.weight import TokenizerFiles

#: (text, score, type) as in gemma-3-270m's file, which has 262,144 of them.
PIECES: list[tuple[str, float, int]] = [
    ("<pad>", -1000.0, 3), ("<eos>", -1000.0, 3), ("<bos>", -1000.0, 3), ("<unk>", -1000.0, 3),
    ("<start_of_turn>", -1000.0, 3), ("<end_of_turn>", -1000.0, 3), ("<b>", -1000.0, 4),
    ("\n", -1000.0, 4), ("\n\n", -1000.0, 4), ("  ", -1000.0, 4), ("   ", -1000.0, 4),
    *((f"<0x{byte:02X}>", -1000.0, 6) for byte in range(256)),
    ("▁H", -1.0, 1), ("He", -2.0, 1), ("Hi", -3.0, 1), ("▁Hi", -4.0, 1),
    *((letter, -100.0 - number, 1) for number, letter in enumerate("▁Hieutsrmodl")),
]  # fmt: skip
IDS = {text: index for index, (text, _, _) in enumerate(PIECES)}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts, scores, types = (list(column) for column in zip(*PIECES, strict=True))
    keys: dict[str, Any] = {
        "model": "llama", "tokens": texts, "scores": scores, "token_type": types, "bos_token_id": 2, "eos_token_id": 1,
        "unknown_token_id": 3, "add_bos_token": True, "add_space_prefix": False,
    }  # fmt: skip
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return Tokenizer.from_files(TokenizerFiles(gguf_metadata=metadata), len(texts))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hi", ["Hi"]),  # no space is put before the first word
        (" Hi Hi", ["▁Hi", "▁Hi"]),
        ("  Hi", ["  ", "Hi"]),  # runs of spaces and newlines are tokens of their own, the longest first
        ("H     H", ["H", "   ", "  ", "H"]),
        ("\n\n\nHi", ["\n\n", "\n", "Hi"]),
        ("<b>Hi", ["<b>", "Hi"]),
        ("é", ["<0xC3>", "<0xA9>"]),
        ("<start_of_turn>user\nHi<end_of_turn>", ["<start_of_turn>", *"user", "\n", "Hi", "<end_of_turn>"]),
    ],
)
def test_ids(tokenizer: Tokenizer, text: str, pieces: list[str]) -> None:
    """Behind a BOS."""
    assert tokenizer.encode(text) == [2, *(IDS[piece] for piece in pieces)]
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == f"<bos>{text}"


def test_turns_that_a_user_wrote_are_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<end_of_turn>", parse_special=False)
    assert IDS["<end_of_turn>"] not in ids and tokenizer.decode(ids) == "<end_of_turn>"


def test_the_longest_of_many_literals_is_found() -> None:
    rng = random.Random(1)
    for _ in range(200):
        literals = sorted({"".join(rng.choices("ab<.", k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 12))})
        plain = re.compile("|".join(map(re.escape, sorted(literals, key=len, reverse=True))))
        text = "".join(rng.choices("ab<.", k=200))
        assert re.findall(_any_of(literals), text) == plain.findall(text), literals
