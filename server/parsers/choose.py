"""Which parsers a model's answers go through: found from its chat template, or named by an option."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .events import Event, Field, Text
from .formats import (
    ANY_JSON,
    AUTO,
    HARMONY,
    NONE,
    REASONING_ALIASES,
    REASONING_FORMATS,
    TOOL_ALIASES,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
)
from .harmony import SPECIALS, HarmonyParser
from .machine import Parser
from .think import ThinkParser
from .tools import Tools

TOOL_NAMES = (AUTO, NONE, *(one.name for one in TOOL_FORMATS))
REASONING_NAMES = (AUTO, NONE, *(one.name for one in REASONING_FORMATS), HARMONY)
#: What the prompt of a model without tools in its template asks for.
PROMPTED = "hermes"


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """The formats of one model. None: that part of an answer stays text."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    harmony: bool = False  # one format for both

    def new_call_id(self) -> str:
        """An id that the model's own template takes back: nine letters and digits (Mistral), or as OpenAI's are."""
        short = self.tools is not None and self.tools.short_ids
        return secrets.token_hex(5)[:9] if short else f"call_{secrets.token_hex(12)}"

    @property
    def tool_name(self) -> str:
        return self.tools.name if self.tools else NONE

    @property
    def reasoning_name(self) -> str:
        return HARMONY if self.harmony else self.reasoning.name if self.reasoning else NONE

    def specials(self, tools: Tools | None) -> frozenset[str]:
        """Control tokens that the parsers must see in an answer's text."""
        found: set[str] = set(SPECIALS) if self.harmony else set()
        if self.reasoning:
            found |= {self.reasoning.opening, self.reasoning.closing}
        if tools is not None and self.tools:
            found |= set(self.tools.specials)
        return frozenset(found)

    def parser(self, tools: Tools | None, prompt_end: str) -> Parser | None:
        """A parser for one answer; None where there is nothing to find. ``prompt_end``: the prompt's last words."""
        if self.harmony:
            return HarmonyParser(tools if self.tools else None)
        calls = self.tools.make(tools) if self.tools and tools is not None else None
        if self.reasoning is None:
            return calls
        opening, closing = self.reasoning.opening, self.reasoning.closing
        think = ThinkParser(opening, closing, opened=prompt_end.rstrip().endswith(opening))
        return think if calls is None else _Chain(think, calls)


class _Chain:
    """Reasoning first; its parser's content is the other parser's text."""

    def __init__(self, first: Parser, then: Parser) -> None:
        self._first = first
        self._then = then

    def push(self, text: str) -> list[Event]:
        return self._hand_on(self._first.push(text))

    def finish(self) -> list[Event]:
        return self._hand_on(self._first.finish()) + self._then.finish()

    def _hand_on(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if isinstance(event, Text) and event.field is Field.CONTENT:
                found += self._then.push(event.text)
            else:
                found.append(event)
        return found


def choose(
    template: str, specials: Iterable[str], *, takes_tools: bool, tools: str = AUTO, reasoning: str = AUTO
) -> ParserChoice:
    """The formats for a chat template's text. ``takes_tools``: whether it has a place for tools at all. Where it shows
    none of the marks, the tokenizer's control tokens, ``specials``, may.

    Raises:
        ValueError: a name that is no format's.
    """
    tool_format = _tool_format(tools, template, specials, takes_tools)
    reasoning_name = _known("reasoning-parser", reasoning, REASONING_NAMES, REASONING_ALIASES)
    by_template = tool_format is not None and tool_format.name == HARMONY
    if reasoning_name == HARMONY or (by_template and reasoning_name == AUTO):
        return ParserChoice(tool_format, None, harmony=True)
    found = next(
        (
            one
            for one in REASONING_FORMATS
            if one.name == reasoning_name or (reasoning_name == AUTO and any(mark in template for mark in one.marks))
        ),
        None,
    )
    return ParserChoice(tool_format, found, harmony=by_template)


def check_names(tools: str, reasoning: str) -> None:
    """Raises ``ValueError`` for a name that is no format's."""
    _known("tool-parser", tools, TOOL_NAMES, TOOL_ALIASES)
    _known("reasoning-parser", reasoning, REASONING_NAMES, REASONING_ALIASES)


def _tool_format(name: str, template: str, specials: Iterable[str], takes_tools: bool) -> ToolFormat | None:
    name = _known("tool-parser", name, TOOL_NAMES, TOOL_ALIASES)
    if name == NONE:
        return None
    if name == AUTO:
        by_tokens = _marked(" ".join(specials)) or ANY_JSON if takes_tools else PROMPTED
        name = _marked(template) or by_tokens
    return next(one for one in TOOL_FORMATS if one.name == name)


def _marked(text: str) -> str:
    """The first format whose marks ``text`` holds; "" where none does."""
    found = (one.name for one in TOOL_FORMATS for marks in one.marks if all(mark in text for mark in marks))
    return next(found, "")


def _known(option: str, name: str, names: tuple[str, ...], aliases: Mapping[str, str]) -> str:
    name = aliases.get(name, name)
    if name not in names:
        raise ValueError(f"--{option} is {name!r}; it can be {', '.join(names)}")
    return name
