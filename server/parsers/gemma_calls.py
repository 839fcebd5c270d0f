"""Gemma's own calls: ``call:get_weather{city:"Paris",days:3}`` between two marks, its quotes a mark of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .json_calls import JsonCalls
from .machine import Steps, drop
from .tools import Tools, dumps

_NAME = re.compile(r"[\w.-]*")
_KEY = re.compile(r"[^:,{}\[\]<>\s]*")
_SCALAR = re.compile(r"[^,{}\[\]<>\n]*")


@dataclass(frozen=True, slots=True)
class GemmaMarks:
    """The control tokens of one generation of models."""

    opening: str
    closing: str
    quote: str


FUNCTION_GEMMA = GemmaMarks("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = GemmaMarks("<|tool_call>", "<tool_call|>", '<|"|>')


class GemmaCalls(JsonCalls):
    """Arguments are told as JSON while they come: keys get quotes, quoting marks become them. JSON is read too."""

    def __init__(self, tools: Tools, marks: GemmaMarks) -> None:
        super().__init__(tools)
        self._marks = marks

    def run(self) -> Steps[None]:
        marks = self._marks
        while (yield from self.until((marks.opening,), self.content.push)):
            held = [marks.opening]
            yield from self.space(held.append)
            first = yield from self.peek()
            if first == "{":
                whole = yield from self.call_object(held)
            elif first == "[":
                whole = yield from self.calls_array(held)
            else:
                whole = yield from self._call(held)
            if self._in_call:
                yield from self.broken_call((marks.closing,))
            elif whole:
                yield from self.closing(marks.closing)
            else:
                self.give_back(held)

    def _call(self, held: list[str]) -> Steps[bool]:
        if not (yield from self.mark("call:", held)):
            return False
        name: list[str] = []
        yield from self.run_of(_NAME, name.append)
        held += name
        called = "".join(name)
        if not self.accepts(called) or not (yield from self.take("{")):
            return False
        self.start_call(called)
        held.clear()
        if not (yield from self._object()):
            return False
        self.end_call(complete=True)
        return True

    def _object(self) -> Steps[bool]:
        """An object behind its opening bracket, and all that it holds; False where it is broken or cut off."""
        self.arguments("{")
        closing = ["}"]  # brackets wanted, innermost last
        may_end = True
        while closing:
            yield from self.space(drop)
            if may_end and (yield from self._ends(closing)):
                if closing and not (yield from self._goes_on(closing)):
                    return False
                may_end = False
                continue
            if closing[-1] == "}" and not (yield from self._key()):
                return False
            yield from self.space(drop)
            opened = yield from self.take_any(("{", "["))
            if opened:
                self.arguments(opened)
                closing.append("}" if opened == "{" else "]")
                may_end = True
            elif not (yield from self._scalar()) or not (yield from self._goes_on(closing)):
                return False
            else:
                may_end = False
        return True

    def _ends(self, closing: list[str]) -> Steps[bool]:
        ended = yield from self.take(closing[-1])
        if ended:
            self.arguments(closing.pop())
        return ended

    def _goes_on(self, closing: list[str]) -> Steps[bool]:
        """After a value: as many closing brackets as there are, then a comma unless all is closed."""
        while closing:
            yield from self.space(drop)
            if (yield from self.take(",")):
                self.arguments(", ")
                return True
            if not (yield from self._ends(closing)):
                return False
        return True

    def _key(self) -> Steps[bool]:
        pieces: list[str] = []
        if (yield from self.take(self._marks.quote)):
            if not (yield from self.until((self._marks.quote,), pieces.append)):
                return False
        else:
            yield from self.run_of(_KEY, pieces.append)
        yield from self.space(drop)
        key = "".join(pieces)
        if not key or not (yield from self.take(":")):
            self.arguments(key)
            return False
        self.arguments(dumps(key) + ": ")
        return True

    def _scalar(self) -> Steps[bool]:
        if (yield from self.take(self._marks.quote)):
            self.arguments('"')
            whole = yield from self.until((self._marks.quote,), lambda text: self.arguments(dumps(text)[1:-1]))
            self.arguments('"' if whole else "")
            return bool(whole)
        pieces: list[str] = []
        yield from self.run_of(_SCALAR, pieces.append)
        text = "".join(pieces)
        cut = not (yield from self.peek())
        self.arguments(text if cut or not text else self.tools.value("", "", text.strip()))
        return bool(text) and not cut
