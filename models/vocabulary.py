"""What a tokenizer file comes down to, whichever kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class SpacePrefix(Enum):
    """Where a space is put before text, so that a first word is written like any other (SentencePiece)."""

    NONE = "none"
    FIRST = "first"  # at the start of a text only
    ALWAYS = "always"  # and after each control token


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that steers the model, e.g. an end-of-turn marker; never made from ordinary text."""

    id: int
    strip_left: bool = False  # takes the white space before it along
    strip_right: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer's parts, as ``Tokenizer`` wants them."""

    inner: Any  # tokenizers.Tokenizer, to which control tokens in text are ordinary text
    tokens: list[bytes]  # what each id stands for
    control: dict[str, ControlToken]  # by literal
    bos_id: int | None
    eos_id: int | None
    prefix_ids: tuple[int, ...] = ()  # put before a text that doesn't begin with them: BOS, mostly
    suffix_ids: tuple[int, ...] = ()  # put after a text that is to be embedded, and after no other: EOS, mostly
    space_prefix: SpacePrefix = SpacePrefix.NONE
    space_prefix_always_added: bool = True  # False: not before a text that begins with a space
    context_free: bool = True  # a token's bytes don't depend on its neighbours
    strips_first_space: bool = False  # a decoded text loses the space that ``space_prefix`` put there
    adds_bos_to_chat: bool = False  # a chat prompt whose template wrote no BOS gets one all the same
