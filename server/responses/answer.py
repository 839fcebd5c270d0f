"""One response: the object that says everything about it, and the events of its stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..conversation import Conversation
from ..errors import ApiError
from ..generation import Piece, ScoredToken
from ..logprobs import chat_logprobs
from ..narration import named_event
from ..reply import Delta
from ..state import new_id
from .output import COMPLETED, IN_PROGRESS, INCOMPLETE, Event, Output
from .tools import ToolTable
from .types import Item, ResponsesRequest

FAILED = "failed"


@dataclass(slots=True)
class ResponseAnswer:
    """What a response needs beside its items. ``keep`` is called with the finished response."""

    body: ResponsesRequest
    conversation: Conversation
    table: ToolTable
    dropped: int  # input items that truncation left out
    keep: Callable[[Item], None]
    output: Output = field(init=False)
    response_id: str = field(default_factory=lambda: f"resp_{new_id()}")
    created: int = field(default_factory=lambda: int(time.time()))
    finish: str | None = None

    def __post_init__(self) -> None:
        self.output = Output(self.table, self._scores, summary=self.body.wants_summary, sealed=self.body.wants_sealed)

    def take(self, delta: Delta) -> list[Event]:
        self.finish = delta.finish or self.finish
        return self.output.take(delta)

    def close(self) -> tuple[str, list[Event]]:
        """The status that the response ends with, and the last events of its items."""
        status = COMPLETED if self.finish in ("stop", "tool_calls") else INCOMPLETE
        return status, self.output.finish(status)

    def ended(self, status: str) -> Item:
        """The whole response, kept where it is to be."""
        response = self.response(status)
        self.keep(response)
        return response

    def response(self, status: str, error: ApiError | None = None) -> Item:
        """The response object as it stands."""
        going = status == IN_PROGRESS
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == COMPLETED else None,
            "status": status,
            "background": False,
            "error": None if error is None else {"code": "server_error", "message": error.message},
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "model": self.conversation.model,
            "output": [] if going else self.output.items,
            "usage": None if going or error is not None else self._usage(),
            **self._asked(),
        }

    def _asked(self) -> dict[str, Any]:
        """The request's fields as they took effect."""
        body, params = self.body, self.conversation.group.generations[0].request.params
        reasoning, text = body.reasoning, body.text
        return {
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": None if reasoning is None else reasoning.effort,
                "summary": reasoning.summary or reasoning.generate_summary if reasoning is not None else None,
            },
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": params.temperature,
            "text": {"format": (text.format if text is not None else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "truncated_items": self.dropped,
            "user": body.user,
        }

    def _usage(self) -> dict[str, Any]:
        group = self.conversation.group
        spent, made = group.prompt_tokens, group.completion_tokens
        return {
            "input_tokens": spent,
            "input_tokens_details": {"cached_tokens": group.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": self.conversation.thought_tokens},
            "total_tokens": spent + made,
        }

    def _scores(self, tokens: Sequence[ScoredToken]) -> list[dict[str, Any]]:
        top = self.conversation.top_logprobs
        if top is None:
            return []
        found: list[dict[str, Any]] = chat_logprobs(tokens, self.conversation.frontend.tokenizer, top)["content"]
        return found


class ResponseNarrator:
    """Writes a response's stream: each event has its name, and a number that counts up."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._count = 0

    def opening(self) -> bytes:
        response = self._answer.response(IN_PROGRESS)
        return self._told([{"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")])

    def take(self, piece: Piece) -> bytes:
        delta = self._answer.conversation.read(piece)
        return self._told(self._answer.take(delta))

    def closing(self) -> bytes:
        status, events = self._answer.close()
        return self._told([*events, {"type": f"response.{status}", "response": self._answer.ended(status)}])

    def failed(self, error: ApiError) -> bytes:
        response = self._answer.response(FAILED, error)
        return self._told([{"type": f"response.{FAILED}", "response": response}])

    def _told(self, events: Sequence[Mapping[str, Any]]) -> bytes:
        found = []
        for event in events:
            found.append(named_event(event["type"], {**event, "sequence_number": self._count}))
            self._count += 1
        return b"".join(found)
