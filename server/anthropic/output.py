"""Content blocks in the making: what a reply says becomes thinking, text and tool use, with the events that tell them.

A whole message is what the events of its stream add up to, by construction.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..opaque import seal
from ..parsers.events import Field, Text
from ..reply import CallClosed, CallDelta, CallOpened, Delta
from .types import Block

Event = dict[str, Any]
#: Where the input of a call goes that was cut short, so that it is no JSON object: to the model's own words.
BROKEN_INPUT = "INVALID_JSON"


class Blocks:
    """The blocks of one reply. ``take`` and ``finish`` return the events that are due.

    ``hidden``: thinking is not shown; its signature brings it back in the next turn.
    """

    def __init__(self, *, hidden: bool = False) -> None:
        self.done: list[Block] = []
        self._hidden = hidden
        self._open: Block | None = None
        self._texts: list[str] = []  # of the open block

    def take(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        for part in delta.parts:
            if isinstance(part, CallOpened):
                events += self._begin({"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}})
            elif isinstance(part, CallDelta):
                events += self._add("input_json_delta", "partial_json", part.text)
            elif isinstance(part, CallClosed):
                events += self._end()
            else:
                events += self._text(part)
        return events

    def finish(self) -> list[Event]:
        """The end of the last block."""
        return self._end()

    def _text(self, part: Text) -> list[Event]:
        kind = "text" if part.field is Field.CONTENT else "thinking"
        events = []
        if self._open is None or self._open["type"] != kind:
            empty = {"text": ""} if kind == "text" else {"thinking": "", "signature": ""}
            events = self._begin({"type": kind, **empty})
        if kind == "thinking" and self._hidden:
            self._texts.append(part.text)
            return events
        return events + self._add(f"{kind}_delta", kind, part.text)

    def _begin(self, block: Block) -> list[Event]:
        events = self._end()
        self._open, self._texts = block, []
        return [*events, {"type": "content_block_start", "index": len(self.done), "content_block": block}]

    def _add(self, kind: str, field: str, text: str) -> list[Event]:
        self._texts.append(text)
        return [self._delta({"type": kind, field: text})]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.done), "delta": delta}

    def _end(self) -> list[Event]:
        if self._open is None:
            return []
        block, text = self._open, "".join(self._texts)
        events: list[Event] = []
        if block["type"] == "text":
            block = {**block, "text": text}
        elif block["type"] == "tool_use":
            block = {**block, "input": _input(text)}
        else:
            signature = seal(text) if self._hidden else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
            block = {**block, "thinking": "" if self._hidden else text, "signature": signature}
            events.append(self._delta({"type": "signature_delta", "signature": signature}))
        events.append({"type": "content_block_stop", "index": len(self.done)})
        self.done.append(block)
        self._open = None
        return events


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object; what was cut short keeps its text."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {BROKEN_INPUT: arguments}
