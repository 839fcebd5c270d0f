"""An answer that is not streamed: the pieces of each choice put together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.request import FinishReason
from .generation import GenerationGroup, Piece, ScoredToken


@dataclass(slots=True)
class WholeChoice:
    """The text of one choice. One that got no piece ended before its first token."""

    texts: list[str] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    finish: FinishReason | None = FinishReason.LENGTH

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def take(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.tokens.extend(piece.tokens)
        self.finish = piece.finish


async def whole_choices(group: GenerationGroup, count: int) -> list[WholeChoice]:
    """The texts of ``group``'s choices; as ``read_all``."""
    choices = [WholeChoice() for _ in range(count)]
    await read_all(group, lambda piece: choices[piece.index].take(piece))
    return choices


async def read_all(group: GenerationGroup, take: Callable[[Piece], object]) -> None:
    """Run ``group`` to its end, hand each piece to ``take``, and close it.

    Raises ``ApiError`` where it is refused or fails.
    """
    try:
        await group.start(None)
        async with contextlib.aclosing(group.pieces()) as batches:
            async for pieces in batches:
                for piece in pieces:
                    take(piece)
    finally:
        group.close()
