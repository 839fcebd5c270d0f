"""Chat messages as clients send them, brought to the one shape templates are written for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Content parts that are text, and the key that holds it (OpenAI's chat and Responses spellings).
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class TemplateError(ValueError):
    """The messages can't be made into a prompt; where the chat template refused them, in the template's own words."""


def normalize(messages: Any, *, as_parts: bool, keep_developer: bool, string_arguments: bool) -> list[dict[str, Any]]:
    """Messages with content always there, as text or as a list of text parts; ``developer`` is ``system`` unless the
    template knows it; tool calls with arguments as objects, or as JSON where the template joins them as text.

    Raises:
        TemplateError: not a message, or content that isn't text.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise TemplateError("messages must be a list with at least one message")
    return [_message(m, i, as_parts, keep_developer, string_arguments) for i, m in enumerate(messages)]


def _message(
    message: Mapping[str, Any], index: int, as_parts: bool, keep_developer: bool, string_arguments: bool
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"messages[{index}] is {type(message).__name__}; it must be an object with a role")
    role = message.get("role")
    if not isinstance(role, str) or _ROLE.fullmatch(role) is None:
        raise TemplateError(f"messages[{index}].role is {role!r}; it must be a word such as 'user' or 'assistant'")
    clean = {key: value for key, value in message.items() if value is not None}
    clean["role"] = "system" if role == "developer" and not keep_developer else role
    texts = _texts(message.get("content"), index)
    clean["content"] = [{"type": "text", "text": text} for text in texts] if as_parts else "".join(texts)
    if "tool_calls" in clean:
        clean["tool_calls"] = [_tool_call(call, index, string_arguments) for call in clean["tool_calls"]]
    return clean


def _texts(content: Any, index: int) -> list[str]:
    if content is None:
        return [""]
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        raise TemplateError(
            f"messages[{index}].content is {type(content).__name__}; it must be text or a list of parts"
        )
    return [_text(part, index) for part in content] or [""]


def _text(part: Any, index: int) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind not in TEXT_PARTS:
        raise TemplateError(f"messages[{index}].content has a part of type {kind!r}; this model takes text parts only")
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise TemplateError(f"messages[{index}].content has a {kind!r} part without text")
    return text


def _tool_call(call: Any, index: int, string_arguments: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"messages[{index}].tool_calls holds a call without a function name")
    arguments = function.get("arguments") or {}
    if string_arguments and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not string_arguments and isinstance(arguments, str):
        arguments = _parsed(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    """A JSON object as one; anything else stays the text the model wrote."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
