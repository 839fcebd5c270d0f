"""Calls written as JSON objects: ``{"name": ..., "arguments": {...}}``, the part that most formats share."""

from __future__ import annotations

import json
import re

from .machine import Machine, Sink, Steps
from .tools import Tools, is_name

ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input"})
#: What a call may hold beside its arguments. Where any JSON may be an answer, an object with other keys is no call.
CALL_KEYS = ARGUMENT_KEYS | {"name", "function", "type", "id", "tool_call_id", "thought"}
#: Brackets that models write too many of at a call's end.
_STRAY = re.compile(r"[\s}\]]*")


class _Call:
    """A call being read: nothing of it is told before its name and its first argument are known."""

    def __init__(self) -> None:
        self.name = ""
        self.started = False
        self.nested = False  # inside {"function": {...}}
        self.early: list[str] | None = None  # arguments that came before the name


class JsonCalls(Machine):
    """``strict``: only tools that were offered may be called, and only keys of a call may stand in it."""

    strict = False

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self.tools = tools

    def accepts(self, name: str) -> bool:
        """Whether a call of ``name`` is one."""
        return name in self.tools if self.strict else is_name(name)

    def call_object(self, held: list[str]) -> Steps[bool]:
        """Read one call. True: it is told whole. False: it is broken; if it has begun (``_in_call``) its text goes on
        as arguments, otherwise ``held`` has what was read and not told, and it is content."""
        call = _Call()
        whole = yield from self._members(call, held)
        if whole and not call.started and self.accepts(call.name):
            self.start_call(call.name)
            self.arguments("".join(call.early) if call.early else "{}")
            self.end_call(complete=True)
            call.started = True
        return whole and call.started

    def calls_array(self, held: list[str]) -> Steps[bool]:
        """Read a list of calls; as ``call_object``."""
        return (yield from self.mark("[", held)) and (yield from self.rest_of_array(held))

    def rest_of_array(self, held: list[str]) -> Steps[bool]:
        """Read a list of calls behind its opening bracket."""
        while True:
            yield from self.space(held.append)
            if not (yield from self.call_object(held)):
                return False
            held.clear()
            yield from self.space(held.append)
            if (yield from self.mark("]", held)):
                return True
            if not (yield from self.mark(",", held)):
                return False

    def closing(self, mark: str) -> Steps[bool]:
        """After a call: take ``mark``, be it cut off by the text's end, and stray brackets before it. Without the mark
        they are content."""
        stray: list[str] = []
        yield from self.run_of(_STRAY, stray.append)
        if (yield from self.take(mark)) or self.take_beginning(mark):
            return True
        self.content.push("".join(stray))
        return False

    def give_back(self, held: list[str]) -> None:
        """What was read is no call: it is content."""
        self.content.push("".join(held))
        held.clear()

    def mark(self, mark: str, held: list[str]) -> Steps[bool]:
        """Take ``mark``, and keep it in ``held``."""
        found = yield from self.take(mark)
        if found:
            held.append(mark)
        return found

    def _members(self, call: _Call, held: list[str]) -> Steps[bool]:
        def keep(text: str) -> None:
            if not call.started:
                held.append(text)

        if not (yield from self.mark("{", held)):
            return False
        while True:
            yield from self.space(keep)
            key = yield from self.json_string(keep)
            if key is None or (self.strict and key not in CALL_KEYS):
                return False
            yield from self.space(keep)
            if not (yield from self.take(":")):
                return False
            keep(":")
            yield from self.space(keep)
            if not (yield from self._member(key, call, held, keep)):
                return False
            yield from self.space(keep)
            if (yield from self.take("}")):
                keep("}")
                return True
            if not (yield from self.take(",")):
                return False
            keep(",")

    def _member(self, key: str, call: _Call, held: list[str], keep: Sink) -> Steps[bool]:
        first = yield from self.peek()
        if key == "function" and first == "{" and not call.nested:
            call.nested = True
            return (yield from self._members(call, held))
        if key == "name" or (key == "function" and first == '"'):
            name = yield from self.json_string(keep)
            call.name = call.name or name or ""
            return name is not None
        if key not in ARGUMENT_KEYS or call.started or call.early is not None:
            return (yield from self.json(keep))
        if self.accepts(call.name):
            self.start_call(call.name)
            call.started = True
            held.clear()
            whole = yield from self._arguments(self.arguments)
            if whole:
                self.end_call(complete=True)
            return whole
        call.early = []
        early = call.early

        def both(text: str) -> None:
            early.append(text)
            held.append(text)

        return (yield from self._arguments(both))

    def _arguments(self, sink: Sink) -> Steps[bool]:
        """An object passes as it comes. JSON inside a string is taken out of it; null is no arguments."""
        if (yield from self.peek()) in "{[":
            return (yield from self.json(sink))
        pieces: list[str] = []
        whole = yield from self.json(pieces.append)
        text = "".join(pieces)
        sink(_unwrapped(text) if whole else text)
        return whole


def _unwrapped(text: str) -> str:
    value = json.loads(text)
    if value is None:
        return "{}"
    if not isinstance(value, str):
        return text
    try:
        inner = json.loads(value)
        value.encode()
    except (ValueError, RecursionError):
        return text
    return value if isinstance(inner, dict) else text
