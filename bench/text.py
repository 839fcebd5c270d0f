"""Real text that every Python has: the reference prose of ``pydoc_data.topics``, taken in the order of its titles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from ..models.checkpoint import open_checkpoint
from ..models.tokenizer import Tokenizer


def real_text(characters: int) -> str:
    """The first so many characters of the topics, one after the other. It differs a little between Python versions."""
    text = "\n\n".join(topics[title].strip() for title in sorted(topics))
    if len(text) < characters:
        raise ValueError(f"this Python's topics hold {len(text)} characters; {characters} were asked for")
    return text[:characters]


def load_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of the model at ``model``."""
    checkpoint: Any = open_checkpoint(model)
    try:
        return Tokenizer.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
    finally:
        checkpoint.close()


class PromptMaker:
    """Prompts of an exact number of tokens, no two of which ever begin alike unless asked to."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._ids: Sequence[int] = tokenizer.encode(real_text(600_000 // 4), add_special_tokens=False)
        self._first = self._first_tokens(tokenizer)
        self._at = 0

    def distinct(self, tokens: int) -> tuple[int, ...]:
        """``tokens`` ids of real text behind a first token that no other prompt of this maker has."""
        start = self._at % (len(self._ids) - tokens)
        self._at += 7 * tokens + 1  # far enough on that the texts differ too
        return (next(self._first), *self._ids[start : start + tokens - 1])

    def shared(self, prefix: int, tokens: int, count: int) -> list[tuple[int, ...]]:
        """``count`` prompts: the same ``prefix`` ids, then ``tokens`` of their own."""
        head = self.distinct(prefix)
        return [(*head, *self.distinct(tokens)) for _ in range(count)]

    @staticmethod
    def _first_tokens(tokenizer: Tokenizer) -> Iterator[int]:
        """Ids of whole words, each once."""
        for token in range(tokenizer.vocab_size):
            text = tokenizer.decode([token])
            if len(text) > 3 and text.strip().isalpha() and text.isascii():
                yield token
