"""Calls between two marks, as Hermes, Qwen, Granite, Phi-4, LFM2 and others write them."""

from __future__ import annotations

from .list_calls import ListCalls
from .machine import Steps
from .tools import Tools


class TaggedCalls(ListCalls):
    """One call as JSON, several, or a list between ``opening`` and ``closing``, which may be missing at the end."""

    def __init__(self, tools: Tools, opening: str = "<tool_call>", closing_mark: str = "</tool_call>") -> None:
        super().__init__(tools)
        self._opening = opening
        self._closing = closing_mark

    def run(self) -> Steps[None]:
        while (yield from self.until((self._opening,), self.content.push)):
            yield from self._block()

    def _block(self) -> Steps[None]:
        held = [self._opening]
        while True:
            yield from self.space(held.append)
            is_list = (yield from self.peek()) == "["
            whole = yield from (self.list_of_calls(held) if is_list else self.call_object(held))
            if self._in_call:
                yield from self.broken_call((self._closing,))
                return
            if not whole:
                self.give_back(held)
                return
            held = []
            if (yield from self.closing(self._closing)) or (yield from self.peek()) not in ("{", "["):
                return
