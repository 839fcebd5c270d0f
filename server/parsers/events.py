"""What a parser finds in a text: content, reasoning, and calls of tools, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Field(StrEnum):
    """Where a piece of text belongs."""

    CONTENT = "content"
    REASONING = "reasoning"


@dataclass(frozen=True, slots=True)
class Text:
    """Text for a reader."""

    field: Field
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the tool ``name`` begins; until its ``CallEnd`` come only its arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the call's arguments, as JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is over. ``complete``: its arguments are JSON from beginning to end."""

    complete: bool


Event = Text | CallStart | CallArguments | CallEnd


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbours of one kind joined, in linear time."""
    found: list[Event] = []
    texts: list[str] = []

    def close() -> None:
        if texts:
            last = found[-1]
            text = "".join(texts)
            found[-1] = Text(last.field, text) if isinstance(last, Text) else CallArguments(text)
            texts.clear()

    for event in events:
        if isinstance(event, (Text, CallArguments)):
            if texts and _joins(found[-1], event):
                texts.append(event.text)
                continue
            close()
            texts.append(event.text)
        else:
            close()
        found.append(event)
    close()
    return found


def _joins(last: Event, event: Text | CallArguments) -> bool:
    if isinstance(last, Text) and isinstance(event, Text):
        return last.field is event.field
    return isinstance(last, CallArguments) and isinstance(event, CallArguments)
