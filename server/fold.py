"""An answer that is not streamed: the pieces of each choice put together."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from ..core.request import FinishReason
from .generation import GenerationGroup, Piece, ScoredToken


@dataclass(slots=True)
class WholeChoice:
    """One choice. One that got no piece ended before its first token."""

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
    """Run ``group`` to its end and close it. Raises ``ApiError`` where it is refused or fails."""
    choices = [WholeChoice() for _ in range(count)]
    try:
        await group.start(None)
        async with contextlib.aclosing(group.pieces()) as batches:
            async for pieces in batches:
                for piece in pieces:
                    choices[piece.index].take(piece)
    finally:
        group.close()
    return choices
