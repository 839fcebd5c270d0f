"""One choice as clients see it: reasoning, content and numbered calls of tools, out of the text that the model writes.

Chats, streamed or not, and every other endpoint that knows tools read an answer through ``ReplyReader``, so a whole
answer is by construction the fold of its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core.request import FinishReason
from .generation import Piece, ScoredToken
from .parsers.events import CallArguments, CallEnd, CallStart, Event, Field, Text
from .parsers.machine import Parser

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call begins."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """A call is over; ``complete``: its arguments are whole."""

    index: int
    complete: bool


Part = Text | CallOpened | CallDelta | CallClosed


@dataclass(slots=True)
class Delta:
    """What one piece of text added to a reply."""

    index: int
    parts: list[Part]
    tokens: tuple[ScoredToken, ...] = ()  # those whose text came out, or was held back until now
    finish: str | None = None  # a FinishReason, or "tool_calls"
    cut: bool = False  # the reply is over and the model isn't: it is to be ended


class ReplyReader:
    """Reads one choice. ``parser``: None where the text is all content. ``single``: the first call is the end."""

    def __init__(self, parser: Parser | None, new_id: Callable[[], str], *, single: bool = False) -> None:
        self._parser = parser
        self._new_id = new_id
        self._single = single
        self._calls = 0  # begun
        self._complete = 0
        self._over = False
        self._told = 0  # tokens whose text has come out
        self.thought_tokens = 0  # of those, the ones of reasoning, with the mark before it
        self._tokens: list[ScoredToken] = []

    def take(self, piece: Piece) -> Delta:
        """Read what came; the last piece brings all that was held back."""
        if self._over:
            return Delta(piece.index, [])
        self._tokens += piece.tokens
        parts = self._parts(piece)
        self._count(parts, piece.made)
        finish = self._finish(piece.finish)
        cut = finish is not None and piece.finish is None
        tokens: tuple[ScoredToken, ...] = ()
        if parts or finish:
            tokens, self._tokens = tuple(self._tokens), []
        return Delta(piece.index, parts, tokens, finish, cut)

    def _count(self, parts: Sequence[Part], made: int) -> None:
        """Tokens whose text came out together are shared out by its length."""
        lengths = {True: 0, False: 0}
        for part in parts:
            if isinstance(part, Text | CallDelta):
                lengths[isinstance(part, Text) and part.field is Field.REASONING] += len(part.text)
        if total := sum(lengths.values()):
            self.thought_tokens += round((made - self._told) * lengths[True] / total)
            self._told = made

    def _parts(self, piece: Piece) -> list[Part]:
        if self._parser is None:
            return [Text(Field.CONTENT, piece.text)] if piece.text else []
        events = self._parser.push(piece.text) if piece.text else []
        if piece.finish is not None:
            events = events + self._parser.finish()
        parts: list[Part] = []
        for event in events:
            if self._over:
                break
            parts.append(self._part(event))
        return parts

    def _part(self, event: Event) -> Part:
        if isinstance(event, CallStart):
            self._calls += 1
            return CallOpened(self._calls - 1, self._new_id(), event.name)
        if isinstance(event, CallArguments):
            return CallDelta(self._calls - 1, event.text)
        if isinstance(event, CallEnd):
            self._complete += event.complete
            self._over = self._single and event.complete
            return CallClosed(self._calls - 1, event.complete)
        return event

    def _finish(self, reason: FinishReason | None) -> str | None:
        """``tool_calls`` where calls were made, all of them whole, and nothing else ended the text."""
        if self._over:
            return TOOL_CALLS if reason is not FinishReason.LENGTH else str(reason)
        if reason is FinishReason.STOP and self._calls and self._complete == self._calls:
            return TOOL_CALLS
        return None if reason is None else str(reason)


@dataclass(slots=True)
class WholeCall:
    """A call of a whole reply."""

    call_id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class WholeReply:
    """A reply put together. One that got no piece ended before its first token."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[WholeCall] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    finish: str = str(FinishReason.LENGTH)

    def take(self, delta: Delta) -> None:
        self.tokens.extend(delta.tokens)
        self.finish = delta.finish or self.finish
        for part in delta.parts:
            if isinstance(part, CallOpened):
                self.calls.append(WholeCall(part.call_id, part.name))
            elif isinstance(part, CallDelta):
                self.calls[part.index].pieces.append(part.text)
            elif isinstance(part, Text):
                (self.content if part.field is Field.CONTENT else self.reasoning).append(part.text)
