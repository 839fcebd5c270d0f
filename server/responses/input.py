"""Input items as chat messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ...models.messages import TEXT_PARTS
from ..errors import ApiError, bad_request
from ..opaque import unseal
from .tools import CUSTOM_INPUT, ToolTable, call_name
from .types import Item

MAX_ITEMS = 20_000
Message = dict[str, Any]


def read_items(given: str | list[Any] | None, find: Callable[[str], Item | None]) -> list[Item]:
    """A request's own items, each an object; ``find`` knows those that are only referred to.

    Raises:
        ApiError: 400 for what is no item, 404 for a reference to one that is not stored.
    """
    if given is None:
        raise bad_request("input is missing: a text, or a list of items.", "input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if len(given) > MAX_ITEMS:
        raise bad_request(f"input has {len(given)} items; at most {MAX_ITEMS} are taken", "input")
    items = []
    for at, item in enumerate(given):
        if not isinstance(item, dict):
            raise bad_request(f"input[{at}] is {type(item).__name__}; it must be an object", "input")
        items.append(_found(item, at, find) if _kind(item) == "item_reference" else item)
    return items


def _found(item: Item, at: int, find: Callable[[str], Item | None]) -> Item:
    found = find(str(item.get("id")))
    if found is None:
        raise ApiError(
            404,
            f"input[{at}] refers to item {item.get('id')!r}, which is not stored here; send the item itself.",
            param="input",
        )
    return found


def _kind(item: Item) -> str:
    """An item with a role needs no type."""
    return str(item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else ""))


def chat_messages(items: list[Item], table: ToolTable) -> list[Message]:
    """The messages that ``items`` are. Raises ``ApiError`` 400 naming the item."""
    turns = _Turns(table)
    for at, item in enumerate(items):
        read = _READERS.get(_kind(item))
        if read is None:
            raise bad_request(f"input[{at}] is of type {_kind(item)!r}, which this model can't be given.", "input")
        read(turns, item, f"input[{at}]")
    turns.close()
    return turns.messages


class _Turns:
    """Messages in the making: reasoning, text and calls that follow each other are one turn of the assistant."""

    def __init__(self, table: ToolTable) -> None:
        self.table = table
        self.messages: list[Message] = []
        self._thought: list[str] = []  # reasoning that no message follows yet

    def add(self, message: Message) -> None:
        self.close()
        self.messages.append(message)

    def think(self, text: str) -> None:
        self._thought.append(text)

    def assistant(self, *, with_text: bool) -> Message:
        """The turn that text or a call belongs to: the last message, unless something else came between."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or self._thought or with_text:
            last = {"role": "assistant", "content": None}
            if self._thought:
                last["reasoning_content"] = "\n".join(self._thought)
                self._thought = []
            self.messages.append(last)
        return last

    def close(self) -> None:
        """Reasoning that led to nothing is a turn of its own."""
        if self._thought:
            self.assistant(with_text=False)


def _message(turns: _Turns, item: Item, place: str) -> None:
    role = item.get("role")
    if not isinstance(role, str):
        raise bad_request(f"{place}.role is {role!r}; it must be 'user', 'assistant', 'system' or 'developer'", "input")
    content = _content(item.get("content"), f"{place}.content")
    if role == "assistant":
        turns.assistant(with_text=True)["content"] = content
    else:
        turns.add({"role": role, "content": content})


def _content(content: Any, place: str) -> Any:
    """Text, or parts of text. Raises ``ApiError`` 400 naming a part that is neither."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{place} is {type(content).__name__}; it must be text or a list of parts", "input")
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(kind, str) or kind not in TEXT_PARTS or not isinstance(part.get(TEXT_PARTS[kind]), str):
            raise bad_request(f"{place}[{at}] is of type {kind!r}; this model takes text parts only", "input")
    return content


def _reasoning(turns: _Turns, item: Item, place: str) -> None:
    """What was thought: as text, else out of the token that we gave with it, else its summary."""
    sealed = item.get("encrypted_content")
    text = _joined(item.get("content")) or (isinstance(sealed, str) and unseal(sealed)) or _joined(item.get("summary"))
    if text:
        turns.think(text)


def _joined(parts: Any) -> str:
    if not isinstance(parts, list):
        return ""
    return "\n\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _call(turns: _Turns, item: Item, place: str) -> None:
    _add_call(turns, item, place, item.get("arguments") or "{}")


def _custom_call(turns: _Turns, item: Item, place: str) -> None:
    _add_call(turns, item, place, json.dumps({CUSTOM_INPUT: item.get("input") or ""}, ensure_ascii=False))


def _add_call(turns: _Turns, item: Item, place: str, arguments: Any) -> None:
    for name in ("name", "call_id"):
        if not isinstance(item.get(name), str):
            raise bad_request(f"{place}.{name} is {item.get(name)!r}; it must be a text", "input")
    function = {"name": call_name(item, turns.table), "arguments": arguments}
    calls = turns.assistant(with_text=False).setdefault("tool_calls", [])
    calls.append({"id": item["call_id"], "type": "function", "function": function})


def _output(turns: _Turns, item: Item, place: str) -> None:
    if not isinstance(item.get("call_id"), str):
        raise bad_request(f"{place}.call_id is {item.get('call_id')!r}; it must be a text", "input")
    content = _content(item.get("output"), f"{place}.output")
    turns.add({"role": "tool", "tool_call_id": item["call_id"], "content": content})


_READERS: dict[str, Callable[[_Turns, Item, str], None]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "custom_tool_call": _custom_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
}


def with_instructions(instructions: str | list[Any] | None, messages: list[Message]) -> list[Message]:
    """``instructions`` as the system's first words; what system and developer say next joins them, for templates know
    one system message at the head."""
    text = _instructions(instructions)
    if not text:
        return messages
    texts, rest = [text], 0
    while rest < len(messages) and messages[rest]["role"] in ("system", "developer"):
        texts.append(_plain(messages[rest]["content"]))
        rest += 1
    return [{"role": "system", "content": "\n\n".join(one for one in texts if one)}, *messages[rest:]]


def _instructions(instructions: str | list[Any] | None) -> str:
    if instructions is None or isinstance(instructions, str):
        return instructions or ""
    if not all(isinstance(one, dict) for one in instructions):
        raise bad_request("instructions must be a text, or a list of messages", "instructions")
    return "\n\n".join(_plain(_content(one.get("content"), "instructions")) for one in instructions)


def _plain(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part[TEXT_PARTS[part["type"]]] for part in content)
