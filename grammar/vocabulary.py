"""What a grammar library must know of a model's tokens: their bytes, and which of them are no text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.grammar import GrammarError
from ..models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A vocabulary as plain data, which may cross to another process."""

    tokens: list[bytes]  # by id; empty where the model has a row and the tokenizer no token
    control: list[int]  # ids that are no text: only a grammar that names them may use them
    ends: list[int]  # ids that end a turn

    @classmethod
    def of(cls, tokenizer: Tokenizer, ends: Iterable[int]) -> TokenTable:
        """Raises ``GrammarError`` for a tokenizer whose tokens have no bytes of their own."""
        if not tokenizer.context_free:
            raise GrammarError("this model's tokens depend on their neighbours, so no grammar can be held to them")
        tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        return cls(tokens, sorted(tokenizer.special_ids), sorted(ends))
