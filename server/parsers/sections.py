"""Calls in sections between control tokens: DeepSeek V3, R1 and V3.1, and Kimi K2."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .json_calls import JsonCalls
from .machine import Steps, drop
from .tools import Tools


@dataclass(frozen=True, slots=True)
class SectionMarks:
    """The control tokens of a format."""

    begin: str
    call: str
    separator: str  # between what is called and its arguments
    call_end: str
    end: str

    @property
    def all(self) -> tuple[str, ...]:
        return (self.begin, self.call, self.separator, self.call_end, self.end)


DEEPSEEK = SectionMarks(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
KIMI = SectionMarks(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
_WORD = re.compile(r"[^\s<{`]*")
_FENCE = "```"


class SectionCalls(JsonCalls):
    """``begin``, then per call: ``call`` NAME ``separator`` ARGUMENTS ``call_end``, then ``end``.

    DeepSeek V3 and R1 write ``function`` before the separator, and after it the name and a fenced block of JSON. Kimi's
    name is ``functions.NAME:INDEX``.
    """

    def __init__(self, tools: Tools, marks: SectionMarks) -> None:
        super().__init__(tools)
        self._marks = marks

    def run(self) -> Steps[None]:
        marks = self._marks
        while mark := (yield from self.until((marks.begin, marks.call), self.content.push)):
            held = [mark]
            if mark == marks.begin:
                yield from self.space(held.append)
                if not (yield from self.mark(marks.call, held)):
                    self.give_back(held)
                    continue
            yield from self._calls(held)

    def _calls(self, held: list[str]) -> Steps[None]:
        """Calls, the first one's mark read, up to the section's end."""
        marks = self._marks
        while True:
            if not (yield from self._call(held)):
                self.give_back(held)
                return
            yield from self.space(drop)
            if (yield from self.take(marks.end)) or not (yield from self.take(marks.call)):
                return
            held = [marks.call]

    def _call(self, held: list[str]) -> Steps[bool]:
        """One call; it is told, whole or broken, when this is True."""
        marks = self._marks
        yield from self.space(held.append)
        name = yield from self._word(held)
        if not (yield from self.mark(marks.separator, held)):
            return False
        fenced = False
        if (yield from self.peek()) != "{":
            yield from self.space(held.append)
            word = yield from self._word(held)
            name = word or name
            yield from self.space(held.append)
            fenced = yield from self.mark(_FENCE + "json", held)
            yield from self.space(held.append)
        name = re.sub(r":\d+\Z", "", name).removeprefix("functions.")
        if not self.accepts(name) or (yield from self.peek()) != "{":
            return False
        self.start_call(name)
        whole = yield from self.json(self.arguments)
        if not whole:
            yield from self.broken_call((marks.call_end, marks.end))
            return True
        self.end_call(complete=True)
        yield from self.space(drop)
        if fenced:
            yield from self.take(_FENCE)
        yield from self.closing(marks.call_end)
        return True

    def _word(self, held: list[str]) -> Steps[str]:
        pieces: list[str] = []
        yield from self.run_of(_WORD, pieces.append)
        held += pieces
        return "".join(pieces)
