"""Calls whose arguments are written one by one between tags: Qwen3-Coder's and GLM's. They are told as JSON."""

from __future__ import annotations

import re

from .json_calls import JsonCalls
from .machine import Steps, drop
from .tools import Tools, dumps, is_name

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_TAG_TEXT = re.compile(r"[^<>{}\n]*")


class XmlCalls(JsonCalls):
    """A call's arguments as a JSON object, member by member, with types out of the tools' schemas.

    Strings are told as they come; of anything else only the whole text says what it is.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._name = ""
        self._separator = "{"  # what stands before the next member

    def begin(self, name: str) -> None:
        self.start_call(name)
        self._name, self._separator = name, "{"

    def member(self, key: str, ends: tuple[str, ...]) -> Steps[bool]:
        """One argument, whose value ends at one of ``ends``; False where the text ends first."""
        self.arguments(self._separator + dumps(key) + ": ")
        self._separator = ", "
        if self.tools.is_string(self._name, key):
            self.arguments('"')
            end = yield from self.until(ends, lambda text: self.arguments(dumps(text)[1:-1]))
            self.arguments('"' if end else "")
            return bool(end)
        pieces: list[str] = []
        end = yield from self.until(ends, pieces.append)
        text = "".join(pieces)
        self.arguments(self.tools.value(self._name, key, text) if end else text)
        return bool(end)

    def complete(self) -> None:
        self.arguments("{}" if self._separator == "{" else "}")
        self.end_call(complete=True)

    def tag_text(self, held: list[str]) -> Steps[str]:
        """A name inside or behind a tag."""
        pieces: list[str] = []
        yield from self.run_of(_TAG_TEXT, pieces.append)
        held += pieces
        return "".join(pieces).strip()


class QwenXmlCalls(XmlCalls):
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``; the outer tag may be
    missing, and JSON may stand in it."""

    def run(self) -> Steps[None]:
        while mark := (yield from self.until((OPENING, "<function="), self.content.push)):
            held = [mark]
            if mark == OPENING:
                yield from self.space(held.append)
                if (yield from self.take("<function=")):
                    held.append("<function=")
                else:
                    yield from self._json(held)
                    continue
            yield from self._function(held)

    def _json(self, held: list[str]) -> Steps[None]:
        whole = yield from self.call_object(held)
        if self._in_call:
            yield from self.broken_call((CLOSING,))
        elif whole:
            yield from self.closing(CLOSING)
        else:
            self.give_back(held)

    def _function(self, held: list[str]) -> Steps[None]:
        name = yield from self.tag_text(held)
        if not is_name(name) or not (yield from self.take(">")):
            self.give_back(held)
            return
        self.begin(name)
        while True:
            yield from self.space(drop)
            if (yield from self.take("<parameter=")):
                key = yield from self.tag_text([])
                if not (yield from self.take(">")):
                    break
                yield from self.take("\n")
                if not (yield from self.member(key, ("\n</parameter>", "</parameter>"))):
                    return
            elif mark := (yield from self.take_any(("</function>", CLOSING))):
                self.complete()
                if mark != CLOSING:
                    yield from self.closing(CLOSING)
                return
            else:
                break
        yield from self.broken_call((CLOSING,))


class GlmCalls(XmlCalls):
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``, with line breaks."""

    def run(self) -> Steps[None]:
        while (yield from self.until((OPENING,), self.content.push)):
            yield from self._call()

    def _call(self) -> Steps[None]:
        held = [OPENING]
        yield from self.space(held.append)
        name = yield from self.tag_text(held)
        yield from self.space(held.append)
        mark = yield from self.take_any(("<arg_key>", CLOSING))
        if not is_name(name) or not mark:
            self.content.push("".join(held) + mark)
            return
        self.begin(name)
        while mark == "<arg_key>":
            pieces: list[str] = []
            if not (yield from self.until(("</arg_key>",), pieces.append)):
                return
            yield from self.space(drop)
            if not (yield from self.take("<arg_value>")):
                break
            if not (yield from self.member("".join(pieces).strip(), ("</arg_value>",))):
                return
            yield from self.space(drop)
            mark = yield from self.take_any(("<arg_key>", CLOSING))
        if mark == CLOSING:
            self.complete()
        else:
            yield from self.broken_call((CLOSING,))
