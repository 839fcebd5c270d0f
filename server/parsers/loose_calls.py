"""Calls that no mark of the format's own surrounds: Llama 3's and Gemma's, and any model's that just writes JSON.

Only at the beginning of a line is a call looked for, and only tools that were offered can be called, so that JSON or
code in an answer stays what it is.
"""

from __future__ import annotations

import re

from .list_calls import ListCalls
from .machine import Steps, drop
from .tools import Tools

FENCE = "```"
_LABEL = re.compile(r"[a-z_]*")
_BETWEEN = re.compile(r"[\s;,]*")
_JSON_LABELS = frozenset({"", "json", "tool_call", "tool_calls", "tool_code"})
_PYTHON_LABELS = frozenset({"tool_code", "tool_call", "python"})


class LooseCalls(ListCalls):
    """``tag``: a mark that may stand before calls (Llama's ``<|python_tag|>``)."""

    strict = True

    def __init__(self, tools: Tools, tag: str = "") -> None:
        super().__init__(tools)
        self._tag = tag
        self._stops = ("\n", tag) if tag else ("\n",)

    def run(self) -> Steps[None]:
        lead: list[str] = []  # what stands before the place where a call may begin
        while True:
            yield from self.space(lead.append)
            if self._tag and (yield from self.take(self._tag)):
                lead.append(self._tag)
                yield from self.space(lead.append)
            held: list[str] = []
            told = yield from self._line_start(held)
            if self._in_call:
                yield from self.broken_call(())
            elif told:
                yield from self.run_of(_BETWEEN, drop)
                lead = []
                continue
            self.content.push("".join(lead))
            self.give_back(held)
            mark = yield from self.until(self._stops, self.content.push)
            if not mark:
                return
            lead = [mark]

    def _line_start(self, held: list[str]) -> Steps[bool]:
        """Calls, if there are any here. False: none; ``held`` has what was read."""
        first = yield from self.peek()
        if first == "{":
            return (yield from self.call_object(held))
        if first == "[":
            return (yield from self.list_of_calls(held))
        if first == "`":
            return (yield from self._block(held))
        return False

    def _block(self, held: list[str]) -> Steps[bool]:
        """A fenced block that holds nothing but calls."""
        if not (yield from self.take(FENCE)):
            return False
        pieces: list[str] = []
        yield from self.run_of(_LABEL, pieces.append)
        label = "".join(pieces)
        held += [FENCE, label]
        yield from self.space(held.append)
        first = yield from self.peek()
        if label in _JSON_LABELS and first in ("{", "["):
            if not (yield from self._line_start(held)):
                return False
            yield from self.space(drop)
            yield from self.take(FENCE)
            return True
        if label not in _PYTHON_LABELS:
            return False
        return (yield from self._python_block(held))

    def _python_block(self, held: list[str]) -> Steps[bool]:
        code: list[str] = []
        end = yield from self.until((FENCE,), code.append)
        held += [*code, end]
        return bool(end) and self.tell_python("".join(code))
