"""Where prompts come from: stretches of about so many tokens, as text or as token ids."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from zlib import crc32

from .text import real_text

#: Tokens that a word of English usually makes.
USUAL_TOKENS = 1.35
_PIECE = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s")  # about as long as tokens are

Content = Any  # a string or a tuple of ids: both can be joined with +


class Source(Protocol):
    """Makes prompts of about so many tokens."""

    def draw(self, rng: random.Random, tokens: int) -> Content:
        """A stretch behind a beginning drawn at random, so that a prefix cache holds next to nothing of it."""
        ...

    def empty(self) -> Content: ...

    def count(self, text: str) -> int:
        """About how many tokens ``text`` has."""
        ...


@dataclass(slots=True)
class WordSource:
    """English prose. ``tokens_per_word`` comes from asking the server how long a text was."""

    tokens_per_word: float = USUAL_TOKENS
    _words: list[str] = field(default_factory=lambda: real_text(150_000).split())

    def draw(self, rng: random.Random, tokens: int) -> Content:
        count = max(1, round(tokens / self.tokens_per_word))
        start = rng.randrange(len(self._words))
        words = [self._words[(start + i) % len(self._words)] for i in range(count)]
        words[0] = "".join(rng.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(3))  # hardly two begin alike
        return " ".join(words) + " "

    def empty(self) -> Content:
        return ""

    def count(self, text: str) -> int:
        return max(1, round(len(text.split()) * self.tokens_per_word))


@dataclass(slots=True)
class IdSource:
    """Token ids, so lengths are exact: drawn from ``ids`` (of real text), or any below ``vocab_size``.

    ``encode`` makes ids of text that a file brings; without it ids are made up, about as many as there would be, and
    the same for the same words.
    """

    vocab_size: int
    ids: Sequence[int] = ()
    encode: Callable[[str], Sequence[int]] | None = None

    def draw(self, rng: random.Random, tokens: int) -> Content:
        if not self.ids:
            return tuple(rng.randrange(3, self.vocab_size) for _ in range(tokens))
        start = rng.randrange(len(self.ids))
        body = tuple(self.ids[(start + i) % len(self.ids)] for i in range(tokens - 1))
        return (self.ids[rng.randrange(len(self.ids))], *body)

    def empty(self) -> Content:
        return ()

    def count(self, text: str) -> int:
        return max(1, len(self._read(text)))

    def ids_of(self, content: Content) -> tuple[int, ...]:
        """What a request asks, as ids: those given, or those of its text, the words of messages one after the other."""
        if isinstance(content, str):
            return self._read(content)
        if content and isinstance(content[0], dict):
            return self._read("\n".join(f"{message.get('role')}: {message.get('content')}" for message in content))
        return tuple(content)

    def _read(self, text: str) -> tuple[int, ...]:
        if self.encode is not None:
            return tuple(self.encode(text))
        return tuple(3 + crc32(piece.encode()) % (self.vocab_size - 3) for piece in _PIECE.findall(text))
