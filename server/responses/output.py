"""Output items in the making: what a reply says becomes reasoning, messages and calls, with the events that tell them.

A whole answer is what the events of its stream add up to, by construction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..generation import ScoredToken
from ..opaque import seal
from ..parsers.events import Field, Text
from ..reply import CallClosed, CallDelta, CallOpened, Delta
from ..state import new_id
from .tools import CUSTOM_INPUT, ToolTable
from .types import Item

#: A streaming event without its number.
Event = dict[str, Any]
#: Log-probabilities of tokens, in the API's shape.
Scores = Callable[[Sequence[ScoredToken]], list[dict[str, Any]]]
COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


class OpenItem(Protocol):
    """An item that is being written."""

    def item(self, status: str) -> Item: ...
    def opening(self) -> list[Event]: ...
    def add(self, text: str, tokens: Sequence[ScoredToken]) -> list[Event]: ...
    def closing(self) -> list[Event]: ...


class _Message:
    """An assistant's message: one part of text."""

    def __init__(self, index: int, scores: Scores) -> None:
        self._place = {"item_id": f"msg_{new_id()}", "output_index": index, "content_index": 0}
        self._scores = scores
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def item(self, status: str) -> Item:
        content = [] if status == IN_PROGRESS else [self._part()]
        head = {"id": self._place["item_id"], "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": content}

    def _part(self) -> dict[str, Any]:
        text = "".join(self._texts)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}

    def opening(self) -> list[Event]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [{"type": "response.content_part.added", **self._place, "part": part}]

    def add(self, text: str, tokens: Sequence[ScoredToken]) -> list[Event]:
        scores = self._scores(tokens)
        self._texts.append(text)
        self._logprobs += scores
        return [{"type": "response.output_text.delta", **self._place, "delta": text, "logprobs": scores}]

    def closing(self) -> list[Event]:
        part = self._part()
        said = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            {"type": "response.output_text.done", **self._place, **said},
            {"type": "response.content_part.done", **self._place, "part": part},
        ]


class _Reasoning:
    """What the model thought: as it is, or, where a summary was asked for, as that."""

    def __init__(self, index: int, *, summary: bool, sealed: bool) -> None:
        self._summary = summary
        self._sealed = sealed
        self.texts: list[str] = []
        part = "summary_index" if summary else "content_index"
        self._place = {"item_id": f"rs_{new_id()}", "output_index": index, part: 0}
        self._kind = "summary_text" if summary else "reasoning_text"
        self._part_event = "response.reasoning_summary_part" if summary else "response.content_part"
        self._text_event = "response.reasoning_summary_text" if summary else "response.reasoning_text"

    def item(self, status: str) -> Item:
        text = "".join(self.texts)
        parts = [] if status == IN_PROGRESS else [{"type": self._kind, "text": text}]
        found: Item = {"id": self._place["item_id"], "type": "reasoning", "status": status}
        found["summary"] = parts if self._summary else []
        if not self._summary:
            found["content"] = parts
        if self._sealed and status != IN_PROGRESS:
            found["encrypted_content"] = seal(text)
        return found

    def opening(self) -> list[Event]:
        return [{"type": f"{self._part_event}.added", **self._place, "part": {"type": self._kind, "text": ""}}]

    def add(self, text: str, tokens: Sequence[ScoredToken]) -> list[Event]:
        self.texts.append(text)
        return [{"type": f"{self._text_event}.delta", **self._place, "delta": text}]

    def closing(self) -> list[Event]:
        text = "".join(self.texts)
        return [
            {"type": f"{self._text_event}.done", **self._place, "text": text},
            {"type": f"{self._part_event}.done", **self._place, "part": {"type": self._kind, "text": text}},
        ]


class _FunctionCall:
    """A call of a function; its arguments are JSON text."""

    def __init__(self, index: int, call: CallOpened, table: ToolTable) -> None:
        self._place = {"item_id": f"fc_{new_id()}", "output_index": index}
        self._call_id = call.call_id
        self._space, self._name = table.place(call.name)
        self._texts: list[str] = []

    def item(self, status: str) -> Item:
        found = {"id": self._place["item_id"], "type": "function_call", "status": status, "call_id": self._call_id}
        home = {} if self._space is None else {"namespace": self._space}
        return {**found, **home, "name": self._name, "arguments": "".join(self._texts)}

    def opening(self) -> list[Event]:
        return []

    def add(self, text: str, tokens: Sequence[ScoredToken]) -> list[Event]:
        self._texts.append(text)
        return [{"type": "response.function_call_arguments.delta", **self._place, "delta": text}]

    def closing(self) -> list[Event]:
        said = {"name": self._name, "arguments": "".join(self._texts)}
        return [{"type": "response.function_call_arguments.done", **self._place, **said}]


class _CustomCall:
    """A call of a tool that takes text. The model writes it as a function's one argument, so it is told at its end."""

    def __init__(self, index: int, call: CallOpened) -> None:
        self._place = {"item_id": f"ctc_{new_id()}", "output_index": index}
        self._call = call
        self._texts: list[str] = []

    def item(self, status: str) -> Item:
        found = {"id": self._place["item_id"], "type": "custom_tool_call", "status": status}
        return {**found, "call_id": self._call.call_id, "name": self._call.name, "input": self._input()}

    def _input(self) -> str:
        arguments = "".join(self._texts)
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments  # cut short, or broken: what the model wrote
        text = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
        return text if isinstance(text, str) else arguments

    def opening(self) -> list[Event]:
        return []

    def add(self, text: str, tokens: Sequence[ScoredToken]) -> list[Event]:
        self._texts.append(text)
        return []

    def closing(self) -> list[Event]:
        text = self._input()
        return [
            {"type": "response.custom_tool_call_input.delta", **self._place, "delta": text},
            {"type": "response.custom_tool_call_input.done", **self._place, "input": text},
        ]


class Output:
    """The items of one reply. ``take`` and ``finish`` return the events that are due."""

    def __init__(self, table: ToolTable, scores: Scores, *, summary: bool = False, sealed: bool = False) -> None:
        self.items: list[Item] = []  # that are over
        self.thoughts: list[str] = []  # all reasoning, in pieces
        self._table = table
        self._scores = scores
        self._summary = summary
        self._sealed = sealed
        self._open: OpenItem | None = None

    def take(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        tokens = delta.tokens
        for part in delta.parts:
            if isinstance(part, CallOpened):
                events += self._begin(self._call(part))
            elif isinstance(part, CallClosed):
                events += self._end(COMPLETED if part.complete else INCOMPLETE)
            elif isinstance(part, CallDelta):
                assert self._open is not None
                events += self._open.add(part.text, ())
            elif part.field is Field.CONTENT:
                events += self._text(part, tokens)
                tokens = ()
            else:
                events += self._thought(part)
        return events

    def finish(self, status: str) -> list[Event]:
        """The end. An answer without anything in it is one empty message."""
        events = self._end(status)
        if not self.items:
            events += self._begin(_Message(0, self._scores)) + self._end(status)
        return events

    def _text(self, part: Text, tokens: Sequence[ScoredToken]) -> list[Event]:
        events = [] if isinstance(self._open, _Message) else self._begin(_Message(self._next(), self._scores))
        assert self._open is not None
        return events + self._open.add(part.text, tokens)

    def _thought(self, part: Text) -> list[Event]:
        self.thoughts.append(part.text)
        events: list[Event] = []
        if not isinstance(self._open, _Reasoning):
            events = self._begin(_Reasoning(self._next(), summary=self._summary, sealed=self._sealed))
        assert self._open is not None
        return events + self._open.add(part.text, ())

    def _call(self, call: CallOpened) -> OpenItem:
        if call.name in self._table.custom:
            return _CustomCall(self._next(), call)
        return _FunctionCall(self._next(), call, self._table)

    def _next(self) -> int:
        """The place of an item that begins now."""
        return len(self.items) + (self._open is not None)

    def _begin(self, item: OpenItem) -> list[Event]:
        events = self._end(COMPLETED)
        self._open = item
        added = {"type": "response.output_item.added", "output_index": len(self.items), "item": item.item(IN_PROGRESS)}
        return [*events, added, *item.opening()]

    def _end(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        events = self._open.closing()
        item = self._open.item(status)
        done = {"type": "response.output_item.done", "output_index": len(self.items), "item": item}
        self.items.append(item)
        self._open = None
        return [*events, done]
