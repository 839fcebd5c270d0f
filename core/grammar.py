"""Output that must follow a grammar, as the engine sees it: what was asked, and one sequence's way through it.

The engine knows no grammar library. Whoever compiles a ``GrammarSpec`` (``bireme.grammar``) hands over a ``Grammar``;
for each sequence the engine takes a ``Matcher`` from it, tells it every token, and asks it which may come next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

#: A set bit per allowed token id, the lowest id in the lowest bit: int32 [ceil(vocab_size / 32)].
Mask = NDArray[np.int32]

GrammarKind = Literal["json_schema", "regex", "choice", "grammar"]


class GrammarError(ValueError):
    """A grammar that can't be compiled, or led to nothing that a token can continue; the message says why."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What a sequence's text must match, from its first character to its last.

    Raises ``ValueError`` for a kind that there isn't.
    """

    kind: GrammarKind
    text: str  # the schema or the list of choices as JSON, the expression, or a Lark or GBNF grammar's own text
    before: str = ""  # Lark: what may stand before it, e.g. reasoning; its first rule is ``before``
    instead: str = ""  # Lark: what may stand in its place, e.g. a call; its first rule is ``start``
    field: str = field(default="grammar", compare=False)  # of a request's body, that errors about it name

    def __post_init__(self) -> None:
        if self.kind not in (kinds := get_args(GrammarKind)):
            raise ValueError(f"a grammar's kind is {self.kind!r}; it must be one of {', '.join(kinds)}")


class Matcher(Protocol):
    """One sequence's place in a grammar. Used by one thread at a time, whichever; long calls release the GIL."""

    @property
    def accepting(self) -> bool:
        """Whether the text so far is a whole one."""
        ...

    @property
    def complete(self) -> bool:
        """Whether it is a whole one and nothing can follow."""
        ...

    def accept(self, token: int) -> None:
        """Go on by one token, which is no end token. Raises ``GrammarError`` where the grammar has no such way."""
        ...

    def fill(self, mask: Mask) -> None:
        """Set the bits of the tokens that may come next, clear all others. End tokens' bits are unspecified.

        Raises ``GrammarError`` where the grammar turns out to be too complex to go on.
        """
        ...


class Grammar(Protocol):
    """A compiled grammar. Any number of sequences may follow it."""

    @property
    def first_mask(self) -> Mask:
        """What ``fill`` gives at the start; never changed."""
        ...

    def matcher(self) -> Matcher:
        """A matcher at the start."""
        ...


def mask_width(vocab_size: int) -> int:
    """Words in a mask."""
    return -(-vocab_size // 32)


def allow(mask: Mask, ids: tuple[int, ...], allowed: bool) -> None:
    """Set or clear single tokens' bits."""
    for token in ids:
        word, bit = divmod(token, 32)
        one = np.uint32(1 << bit).view(np.int32)
        mask[word] = mask[word] | one if allowed else mask[word] & ~one
