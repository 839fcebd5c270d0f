"""Texts that a grammar allows, drawn at random over a model's own tokens; and whether it allows a given one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np

from bireme.backends.rows import unpack_masks
from bireme.core.grammar import GrammarSpec, mask_width
from bireme.grammar.library import LibraryGrammar, grammar_text, open_tokens
from bireme.grammar.vocabulary import TokenTable
from bireme.models.checkpoint import open_checkpoint
from bireme.models.demo import demo_model
from bireme.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    tokenizer: Tokenizer
    table: TokenTable
    tokens: object  # the library's

    def compile(self, spec: GrammarSpec) -> LibraryGrammar:
        return LibraryGrammar(self.tokens, grammar_text(spec))  # type: ignore[arg-type]

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def allows(self, spec: GrammarSpec, text: str) -> bool:
        """Whether ``text`` can be written, and end there."""
        matcher = self.compile(spec).matcher()
        for token in self.ids(text):
            mask = np.zeros(mask_width(self.tokenizer.vocab_size), np.int32)
            matcher.fill(mask)
            if not unpack_masks(mask[None], self.tokenizer.vocab_size)[0, token]:
                return False
            matcher.accept(token)
        return matcher.accepting

    def walk(self, spec: GrammarSpec, seed: int, most: int = 400) -> str | None:
        """A text drawn token by token, ended where it may end; None: not ended within ``most`` tokens."""
        rng, matcher = random.Random(seed), self.compile(spec).matcher()
        made: list[int] = []
        while not (matcher.complete or (matcher.accepting and rng.random() < 0.5)):
            mask = np.zeros(mask_width(self.tokenizer.vocab_size), np.int32)
            matcher.fill(mask)
            allowed = np.flatnonzero(unpack_masks(mask[None], self.tokenizer.vocab_size)[0])
            allowed = [i for i in allowed.tolist() if i not in self.table.ends]
            if len(made) > most or not allowed:
                return None
            # Closing signs more often than chance would have them, or strings would never end.
            closing = [i for i in allowed if self.table.tokens[i] in (b'"', b"}", b"]", b"</")]
            token = rng.choice(closing if closing and rng.random() < 0.4 else allowed)
            matcher.accept(token)
            made.append(token)
        return self.tokenizer.decode(made, skip_special_tokens=False)


@cache
def demo_vocabulary() -> Vocabulary:
    """The demo model's 49,152 tokens."""
    checkpoint = open_checkpoint(demo_model())
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
    table = TokenTable.of(tokenizer, checkpoint.end_ids)
    encode = lambda data: tokenizer.encode(data.decode("utf-8", "replace"), add_special_tokens=False)  # noqa: E731
    checkpoint.close()
    return Vocabulary(tokenizer, table, open_tokens(table, encode))
