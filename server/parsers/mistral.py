"""Mistral's calls: ``[TOOL_CALLS][{...}, {...}]``, or ``[TOOL_CALLS]name[ARGS]{...}`` from tokenizer version 11 on."""

from __future__ import annotations

import re

from .json_calls import JsonCalls
from .machine import Steps, drop

OPENING, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[\w.:/-]*")


class MistralCalls(JsonCalls):
    def run(self) -> Steps[None]:
        mark = yield from self.until((OPENING,), self.content.push)
        while mark:
            held = [OPENING]
            whole = yield from self._calls(held)
            if self._in_call:
                mark = yield from self.broken_call((OPENING,))
                continue
            if not whole:
                self.give_back(held)
            mark = yield from self.until((OPENING,), self.content.push)

    def _calls(self, held: list[str]) -> Steps[bool]:
        yield from self.space(held.append)
        first = yield from self.peek()
        if first == "[":
            return (yield from self.calls_array(held))
        if first == "{":
            return (yield from self.call_object(held))
        return (yield from self._named(held))

    def _named(self, held: list[str]) -> Steps[bool]:
        """``name[ARGS]{...}``, with or without ``[CALL_ID]id`` before the arguments, or the mark before them."""
        name: list[str] = []
        yield from self.run_of(_NAME, name.append)
        held += name
        if (yield from self.take(CALL_ID)):
            held.append(CALL_ID)
            yield from self.run_of(_NAME, held.append)
        if (yield from self.take(ARGS)):
            held.append(ARGS)
        yield from self.space(held.append)
        called = "".join(name)
        if not self.accepts(called) or (yield from self.peek()) != "{":
            return False
        self.start_call(called)
        if not (yield from self.json(self.arguments)):
            return False
        self.end_call(complete=True)
        yield from self.space(drop)
        return True
