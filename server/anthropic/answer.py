"""One message: the object that says everything about it, and the events of its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..conversation import Conversation
from ..errors import ApiError
from ..generation import Piece
from ..narration import named_event
from ..reply import TOOL_CALLS, Delta
from ..state import new_id
from .errors import error_body
from .output import Blocks, Event
from .types import Block, MessagesRequest

PING = named_event("ping", {"type": "ping"})


@dataclass(slots=True)
class MessageAnswer:
    """What a message needs beside its blocks."""

    body: MessagesRequest
    conversation: Conversation
    blocks: Blocks = field(init=False)
    message_id: str = field(default_factory=lambda: f"msg_{new_id()}")
    finish: str | None = None

    def __post_init__(self) -> None:
        self.blocks = Blocks(hidden=self.body.hides_thoughts)

    def take(self, delta: Delta) -> list[Event]:
        self.finish = delta.finish or self.finish
        return self.blocks.take(delta)

    def message(self, content: list[Block], ending: Mapping[str, Any]) -> dict[str, Any]:
        """The message with what it holds and how it ended, so far."""
        head = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.conversation.model}
        return {**head, "content": content, **ending, "usage": self.usage()}

    def ending(self) -> dict[str, Any]:
        """Why the model stopped."""
        stop = self.conversation.group.stop_string(0)
        reason = "end_turn" if stop is None else "stop_sequence"
        if self.finish == TOOL_CALLS:
            reason, stop = "tool_use", None
        elif self.finish != "stop":
            reason, stop = self._limit(), None
        return {"stop_reason": reason, "stop_sequence": stop}

    def _limit(self) -> str:
        """Which limit the answer came to: its own, or the context's."""
        asked = self.body.max_tokens
        short = asked is None or self.conversation.group.completion_tokens < asked
        return "model_context_window_exceeded" if short else "max_tokens"

    def usage(self) -> dict[str, int]:
        """Prompt tokens out of the prefix cache are counted apart; nothing is written to it at a price."""
        group = self.conversation.group
        return {
            "input_tokens": group.prompt_tokens - group.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": group.cached_tokens,
            "output_tokens": group.completion_tokens,
        }


class MessageNarrator:
    """Writes a message's stream. What the cache saved is known at the end only, and told there."""

    def __init__(self, answer: MessageAnswer) -> None:
        self._answer = answer

    def opening(self) -> bytes:
        message = self._answer.message([], {"stop_reason": None, "stop_sequence": None})
        return _told([{"type": "message_start", "message": message}]) + PING

    def take(self, piece: Piece) -> bytes:
        delta = self._answer.conversation.read(piece)
        return _told(self._answer.take(delta))

    def closing(self) -> bytes:
        events = self._answer.blocks.finish()
        delta = {"type": "message_delta", "delta": self._answer.ending(), "usage": self._answer.usage()}
        return _told([*events, delta, {"type": "message_stop"}])

    def failed(self, error: ApiError) -> bytes:
        return named_event("error", error_body(error.status, error.message))


def _told(events: Sequence[Event]) -> bytes:
    return b"".join([named_event(event["type"], event) for event in events])
