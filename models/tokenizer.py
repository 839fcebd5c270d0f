"""Text to token ids and back, from ``tokenizer.json`` or from GGUF metadata.

Control tokens are found by this module, never by the library underneath, so that the same words typed by a user stay
ordinary text where the caller says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from os.path import commonprefix

from .gguf_tokenizer import read_gguf_tokenizer
from .hf_tokenizer import read_tokenizer_json
from .vocabulary import SpacePrefix, Vocabulary
from .weight import CheckpointError, TokenizerFiles

_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """One model's vocabulary. Never changes after construction; safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._pattern = _control_pattern(vocabulary)
        self.vocab_size = vocab_size  # rows of the model's embedding: every id is below it
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.special_ids = frozenset(token.id for token in vocabulary.control.values())

    @classmethod
    def from_files(cls, files: TokenizerFiles, vocab_size: int) -> Tokenizer:
        """Raises ``CheckpointError`` when the files hold no tokenizer, or one that can't be read right."""
        if files.tokenizer_json is not None:
            return cls(read_tokenizer_json(files), vocab_size)
        if files.gguf_metadata is not None:
            return cls(read_gguf_tokenizer(files.gguf_metadata), vocab_size)
        raise CheckpointError("the model has no tokenizer: neither tokenizer.json nor tokenizer.* keys were found")

    @property
    def control_literals(self) -> tuple[str, ...]:
        """The texts of the control tokens."""
        return tuple(self._vocabulary.control)

    def control_ids(self, literals: Iterable[str]) -> frozenset[int]:
        """Ids of those of ``literals`` that are control tokens."""
        control = self._vocabulary.control
        return frozenset(control[literal].id for literal in literals if literal in control)

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """What the files put after a text: only where it is embedded, for nothing could go on behind it."""
        return self._vocabulary.suffix_ids

    @property
    def context_free(self) -> bool:
        """Whether a token's bytes are the same whatever stands beside it."""
        return self._vocabulary.context_free

    @property
    def adds_bos_to_chat(self) -> bool:
        """Whether a chat prompt gets a BOS even where its template writes none (a GGUF file's ``add_bos_token``)."""
        return self._vocabulary.adds_bos_to_chat

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True, guard: str = ""
    ) -> list[int]:
        """Token ids of ``text``.

        ``add_special_tokens`` puts the model's own beginning (BOS) in front, once; an end token is never added.
        ``parse_special`` reads the literals of control tokens as those tokens; off, they are ordinary text.
        ``guard``, a character, is dropped from the text after control tokens were found: a literal with one inside
        is ordinary text (see ``ChatTemplate``). A lone surrogate, which no encoding can carry, becomes U+FFFD.
        """
        text = _without_surrogates(text)
        pieces = list(self._pieces(text)) if parse_special else [text]
        ids = self._encode_pieces([piece.replace(guard, "") if isinstance(piece, str) else piece for piece in pieces])
        prefix = self._vocabulary.prefix_ids
        if add_special_tokens and prefix and tuple(ids[: len(prefix)]) != prefix:
            ids = [*prefix, *ids]
        if ids and max(ids) >= self.vocab_size:
            raise ValueError(
                f"the text holds {self.token_text(max(ids))!r}, token {max(ids)}, which this model has no "
                f"embedding for (it has {self.vocab_size})"
            )
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, continues: bool = False) -> str:
        """The text of ``ids``; bytes that form no character become U+FFFD.

        ``continues``: the ids follow other text, so a word's leading space is kept; otherwise a SentencePiece
        tokenizer's space before the first word is taken away again.
        """
        vocabulary = self._vocabulary
        if not vocabulary.context_free:
            return str(vocabulary.inner.decode(list(ids), skip_special_tokens=skip_special_tokens))
        kept = (i for i in ids if not (skip_special_tokens and i in self.special_ids))
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text[1:] if vocabulary.strips_first_space and not continues and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for an id the model has a row for and the tokenizer no token."""
        tokens = self._vocabulary.tokens
        if 0 <= token_id < len(tokens):
            return tokens[token_id]
        if 0 <= token_id < self.vocab_size:
            return b""
        raise ValueError(f"token id {token_id} is out of range; this model's ids run from 0 to {self.vocab_size - 1}")

    def token_text(self, token_id: int) -> str:
        """A token's text, for people: U+FFFD where it is part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _pieces(self, text: str) -> Iterator[str | int]:
        """``text`` cut at its control tokens."""
        if self._pattern is None:
            yield text
            return
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start:
                yield text[start : match.start()]
            control = self._vocabulary.control
            yield (control.get(match[0]) or control[match[0].strip()]).id
            start = match.end()
        if start < len(text):
            yield text[start:]

    def _encode_pieces(self, pieces: Sequence[str | int]) -> list[int]:
        vocabulary = self._vocabulary
        texts = [self._spaced(piece, first=i == 0) for i, piece in enumerate(pieces) if isinstance(piece, str)]
        encoded = iter(vocabulary.inner.encode_batch_fast(texts, add_special_tokens=False))
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(next(encoded).ids)
        return ids

    def _spaced(self, text: str, first: bool) -> str:
        vocabulary = self._vocabulary
        wanted = vocabulary.space_prefix is SpacePrefix.ALWAYS or (
            first and vocabulary.space_prefix is SpacePrefix.FIRST
        )
        if not text or not wanted or (text[0] in " ▁" and not vocabulary.space_prefix_always_added):
            return text
        return " " + text


def _control_pattern(vocabulary: Vocabulary) -> re.Pattern[str] | None:
    """Finds control tokens, the longest first, with the white space they take along."""
    if not vocabulary.control:
        return None
    if not any(token.strip_left or token.strip_right for token in vocabulary.control.values()):
        return re.compile(_any_of(sorted(vocabulary.control)))
    alternatives = []
    for literal in sorted(vocabulary.control, key=len, reverse=True):
        token = vocabulary.control[literal]
        found = re.escape(literal) + (r"\s*" if token.strip_right else "")
        if token.strip_left:
            alternatives.append(r"(?<!\s)\s+" + found)  # from a run's start only, so that a long run costs little
        alternatives.append(found)
    return re.compile("|".join(alternatives))


def _any_of(literals: Sequence[str], known: int = 0) -> str:
    """A pattern for the longest of sorted ``literals``, which share their first ``known`` characters, from there on.

    Those that begin alike are told apart by their next character and not one by one: Gemma's vocabulary has 6,249
    control tokens that begin with "<".
    """
    ends = len(literals[0]) == known  # the first, the shortest, is complete
    parts = []
    for _, group in groupby(literals[ends:], key=lambda literal: literal[known]):
        alike = list(group)
        shared = len(commonprefix((alike[0], alike[-1])))
        parts.append(re.escape(alike[0][known:shared]) + _any_of(alike, shared))
    if not parts:
        return ""
    return f"(?:{'|'.join(parts)})" + "?" * ends


def _without_surrogates(text: str) -> str:
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
