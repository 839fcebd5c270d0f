"""Chat messages as clients send them, brought to the one shape templates are written for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Content parts that are text, and the key that holds it (OpenAI's chat and Responses spellings).
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


class TemplateError(ValueError):
    """The messages can't be made into a prompt; where the chat template refused them, in the template's own words."""


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What a chat template expects of messages."""

    as_parts: bool = False  # content as a list of text parts
    keep_developer: bool = False  # the template knows that role; otherwise it is the system's
    string_arguments: bool = False  # tool calls' arguments as JSON text, not as objects
    short_ids: bool = False  # ids of tool calls have nine letters and digits (Mistral)


def normalize(messages: Any, shape: MessageShape) -> list[dict[str, Any]]:
    """Messages with content always there, in the shape a template wants; what clients still send in the API's older
    form (``function_call``, the role ``function``) in the newer one; tool messages with the names of their calls.

    Raises:
        TemplateError: not a message, or content that isn't text.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise TemplateError("messages must be a list with at least one message")
    names: dict[str, str] = {}  # by the id of the call
    return [_message(_newer(message), index, shape, names) for index, message in enumerate(messages)]


def _message(message: Any, index: int, shape: MessageShape, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"messages[{index}] is {type(message).__name__}; it must be an object with a role")
    role = message.get("role")
    if not isinstance(role, str) or _ROLE.fullmatch(role) is None:
        raise TemplateError(f"messages[{index}].role is {role!r}; it must be a word such as 'user' or 'assistant'")
    clean = {key: value for key, value in message.items() if value is not None}
    clean["role"] = "system" if role == "developer" and not shape.keep_developer else role
    texts = _texts(message.get("content"), index)
    clean["content"] = [{"type": "text", "text": text} for text in texts] if shape.as_parts else "".join(texts)
    _spell_reasoning(clean)
    if "tool_calls" in clean:
        clean["tool_calls"] = _tool_calls(clean["tool_calls"], index, shape, names)
        if not clean["tool_calls"]:
            del clean["tool_calls"]
    if isinstance(clean.get("tool_call_id"), str):
        if role == "tool" and clean["tool_call_id"] in names:
            clean.setdefault("name", names[clean["tool_call_id"]])
        clean["tool_call_id"] = _call_id(clean["tool_call_id"], shape)
    return clean


def _newer(message: Any) -> Any:
    """A message of the time before tools, as one of today."""
    if not isinstance(message, Mapping):
        return message
    clean = dict(message)
    if isinstance(call := clean.pop("function_call", None), Mapping) and not clean.get("tool_calls"):
        clean["tool_calls"] = [{"id": f"call_{call.get('name')}", "type": "function", "function": call}]
    if clean.get("role") == "function":
        clean["role"] = "tool"
        clean.setdefault("tool_call_id", f"call_{clean.get('name')}")
    return clean


def _spell_reasoning(message: dict[str, Any]) -> None:
    """What an assistant thought, under every name that templates look for."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and thought:
        for name in ("reasoning_content", "reasoning", "thinking"):
            message.setdefault(name, thought)


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
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise TemplateError(f"messages[{index}].content has a part of type {kind!r}; this model takes text parts only")
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise TemplateError(f"messages[{index}].content has a {kind!r} part without text")
    return text


def _tool_calls(calls: Any, index: int, shape: MessageShape, names: dict[str, str]) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise TemplateError(f"messages[{index}].tool_calls is {type(calls).__name__}; it must be a list")
    return [_tool_call(call, index, shape, names) for call in calls]


def _tool_call(call: Any, index: int, shape: MessageShape, names: dict[str, str]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"messages[{index}].tool_calls holds a call without a function name")
    arguments = function.get("arguments") or {}
    if shape.string_arguments and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not shape.string_arguments and isinstance(arguments, str):
        arguments = _parsed(arguments)
    clean = {**call, "type": "function", "function": {**function, "arguments": arguments}}
    if isinstance(call.get("id"), str):
        names[call["id"]] = function["name"]
        clean["id"] = _call_id(call["id"], shape)
    return clean


def _call_id(call_id: str, shape: MessageShape) -> str:
    """An id as the template takes it; equal ids stay equal."""
    if not shape.short_ids or _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _parsed(arguments: str) -> Any:
    """A JSON object as one; anything else stays the text the model wrote."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
