"""Parsers written as generators: straight code that reads characters, and yields where it needs more of them.

What is read is consumed at once, and text that turns out to be no call is content: no character is read twice, so a
parser takes time linear in the text, and its result can't depend on how the text was cut.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from .events import CallArguments, CallEnd, CallStart, Event, Field, Text, merged
from .json_scanner import JsonScanner, ScanState
from .trimmed import TrimmedText

T = TypeVar("T")
#: A part of a parser; ``yield`` asks for more text.
Steps = Generator[None, None, T]
Sink = Callable[[str], object]


class Parser(Protocol):
    """Text in, events out."""

    def push(self, text: str) -> list[Event]:
        """What is certain by now and wasn't told before."""
        ...

    def finish(self) -> list[Event]:
        """The text is over: all the rest."""
        ...


class Machine(ABC):
    """A parser whose ``run`` reads the text from beginning to end."""

    def __init__(self) -> None:
        self.content = TrimmedText(lambda text: self._events.append(Text(Field.CONTENT, text)))
        self.reasoning = TrimmedText(lambda text: self._events.append(Text(Field.REASONING, text)), fresh=True)
        self._events: list[Event] = []
        self._text = ""
        self._at = 0
        self._ended = False
        self._in_call = False
        self._steps = self.run()

    def push(self, text: str) -> list[Event]:
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._advance()

    def finish(self) -> list[Event]:
        self._ended = True
        for _ in self._steps:
            pass
        if self._in_call:
            self.end_call(complete=False)
        self.reasoning.flush()
        self.content.flush()
        return self._advance()

    @abstractmethod
    def run(self) -> Steps[None]:
        """Read everything; returns only where ``more`` says that nothing more comes."""

    def _advance(self) -> list[Event]:
        next(self._steps, None)
        found, self._events = self._events, []
        return merged(found) if len(found) > 1 else found

    # What a parser tells.

    def start_call(self, name: str) -> None:
        self.content.cut()
        self._in_call = True
        self._events.append(CallStart(name))

    def arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(text))

    def end_call(self, *, complete: bool) -> None:
        self._in_call = False
        self._events.append(CallEnd(complete))

    # How a parser reads.

    def more(self) -> Steps[bool]:
        """Wait for text; False at the end."""
        if self._ended:
            return False
        yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, "" at the end. It stays where it is."""
        while self._at == len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self._at]

    def take_character(self) -> Steps[str]:
        """Consume a character; "" at the end."""
        character = yield from self.peek()
        self._at += len(character)
        return character

    def take(self, literal: str) -> Steps[bool]:
        """Consume ``literal``, if it comes next."""
        while not self._text.startswith(literal, self._at):
            if not literal.startswith(self._text[self._at :]) or not (yield from self.more()):
                return False
        self._at += len(literal)
        return True

    def take_beginning(self, literal: str) -> bool:
        """Where ``take`` failed: consume the beginning of ``literal`` in which the text ended, if it did."""
        rest = self._text[self._at :]
        found = bool(rest) and literal.startswith(rest)
        self._at += len(rest) if found else 0
        return found

    def take_any(self, literals: Sequence[str]) -> Steps[str]:
        """Consume the first of ``literals`` that comes next; "" where none does."""
        for literal in literals:
            if (yield from self.take(literal)):
                return literal
        return ""

    def run_of(self, characters: re.Pattern[str], sink: Sink) -> Steps[None]:
        """Consume what matches ``characters``, a pattern of a run that may be empty."""
        while True:
            match = characters.match(self._text, self._at)
            assert match is not None
            if match[0]:
                sink(match[0])
            self._at = match.end()
            if self._at < len(self._text) or not (yield from self.more()):
                return

    def space(self, sink: Sink) -> Steps[None]:
        """Consume white space."""
        yield from self.run_of(_SPACE, sink)

    def until(self, marks: Sequence[str], sink: Sink) -> Steps[str]:
        """Hand text to ``sink`` up to the first of ``marks``, which is consumed and returned; "" at the end."""
        pattern = _mark_pattern(tuple(marks))
        while True:
            match = pattern.search(self._text, self._at)
            start, end = match.span() if match else (len(self._text), len(self._text))
            if start > self._at:
                sink(self._text[self._at : start])
            self._at = start
            if match and match["whole"] is not None:
                self._at = end
                return match["whole"]
            if not (yield from self.more()):
                if self._at < len(self._text):
                    sink(self._text[self._at :])
                self._at = len(self._text)
                return ""

    def json(self, sink: Sink) -> Steps[bool]:
        """Consume a JSON value; False where it is broken or cut off. A broken one is consumed up to the breach."""
        scanner = JsonScanner()
        while True:
            self._at, text = scanner.feed(self._text, self._at)
            if text:
                sink(text)
            if scanner.state is not ScanState.OPEN:
                return scanner.state is ScanState.DONE
            if not (yield from self.more()):
                return scanner.finish()

    def json_string(self, sink: Sink) -> Steps[str | None]:
        """Consume a JSON string and return what it says; None where there is none."""
        if (yield from self.peek()) != '"':
            return None
        pieces: list[str] = []

        def both(text: str) -> None:
            pieces.append(text)
            sink(text)

        whole = yield from self.json(both)
        return str(json.loads("".join(pieces))) if whole else None

    def broken_call(self, marks: Sequence[str]) -> Steps[str]:
        """A call that has begun and is no JSON: its text up to a mark is kept as it is, so that nothing is lost."""
        mark = yield from self.until(marks, self.arguments)
        self.end_call(complete=False)
        return mark


_SPACE = re.compile(r"\s*")


def drop(text: str) -> None:
    """A sink for what means nothing."""


@lru_cache(maxsize=256)
def _mark_pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Finds a mark, or at the text's end what may be the beginning of one, whichever stands first."""
    whole = "|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)) or "(?!)"
    begun = {mark[:length] for mark in marks for length in range(1, len(mark))}
    parts = "|".join(re.escape(part) for part in sorted(begun, key=len, reverse=True))
    return re.compile(f"(?P<whole>{whole})" + (rf"|(?:{parts})\Z" if parts else ""))
