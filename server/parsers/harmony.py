"""OpenAI's harmony format (gpt-oss): messages in channels (https://github.com/openai/harmony, docs/format.md)."""

from __future__ import annotations

import re

from .json_calls import JsonCalls
from .machine import Sink, Steps, drop
from .tools import Tools

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
SPECIALS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)
_ENDS = (END, RETURN, CALL)
#: No header is as long as this.
_MAX_HEADER = 512
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


class HarmonyParser(JsonCalls):
    """``analysis`` is reasoning, ``final`` and a ``commentary`` to nobody are content, one to a function is a call.

    The prompt ends with ``<|start|>assistant``, so the text begins inside a header. Without ``tools`` a call is
    content.
    """

    def __init__(self, tools: Tools | None) -> None:
        super().__init__(tools or Tools())
        self._with_tools = tools is not None

    def run(self) -> Steps[None]:
        held: list[str] = []
        yield from self.space(held.append)
        mark = yield from self.take_any((CHANNEL, START, "to="))
        held.append(mark)
        if not mark:
            self.give_back(held)
        while True:
            while mark:
                header = yield from self._header(held)
                mark = (yield from self._message(header)) if header is not None else ""
                held = [mark]
            mark = yield from self.until((START, CHANNEL), self.content.push)
            held = [mark]
            if not mark:
                return

    def _header(self, held: list[str]) -> Steps[str | None]:
        """The header up to ``<|message|>``; None where it is none, and content."""
        while True:
            limit = self._at + _MAX_HEADER
            at = self._text.find(MESSAGE, self._at, limit)
            if at >= 0:
                held.append(self._text[self._at : at])
                self._at = at + len(MESSAGE)
                return "".join(held)
            if len(self._text) >= limit or not (yield from self.more()):
                break
        self.give_back(held)
        return None

    def _message(self, header: str) -> Steps[str]:
        """A message's text; returns the mark of a header that follows at once."""
        channel = match[1] if (match := _CHANNEL.search(header)) else "final"
        recipient = match[1] if (match := _RECIPIENT.search(header)) else ""
        if recipient and self._with_tools and self.accepts(recipient.removeprefix("functions.")):
            end = yield from self._call(recipient.removeprefix("functions."))
        elif channel == "analysis" and not recipient:
            end = yield from self._body(self.reasoning.push)
            self.reasoning.cut()
            self.content.cut()
        else:
            self.content.push("" if not recipient else header + MESSAGE)
            end = yield from self._body(self.content.push)
        if end == START:
            return START
        yield from self.space(drop)
        return (yield from self.take_any((START, CHANNEL)))

    def _body(self, sink: Sink) -> Steps[str]:
        return (yield from self.until((*_ENDS, START), sink))

    def _call(self, name: str) -> Steps[str]:
        self.start_call(name)
        yield from self.space(drop)
        if (yield from self.peek()) in ("", "<"):
            end = yield from self._body(self.arguments)
            self.arguments("" if end in ("", START) else "{}")
            self.end_call(complete=end not in ("", START))
            return end
        if not (yield from self.json(self.arguments)):
            return (yield from self.broken_call((*_ENDS, START)))
        self.end_call(complete=True)
        return (yield from self._body(self.content.push))
