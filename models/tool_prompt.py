"""Tools for a model whose chat template has no place for them: said in the system's words, calls and answers as text.

The form is the one that most models have seen: JSON between ``<tool_call>`` marks (Hermes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """\
You can call functions to help with the task. These are the functions, one JSON object a line:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as a JSON object between <tool_call> marks, one pair for each call:
<tool_call>
{{"name": "<function name>", "arguments": {{"<parameter>": "<value>"}}}}
</tool_call>
The results come back between <tool_response> marks. If no function helps, just answer."""


def introduction(tools: Sequence[Any]) -> str:
    """What the model is told of its tools."""
    return _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def introduce(messages: list[dict[str, Any]], tools: Sequence[Any], *, takes_system: bool) -> list[dict[str, Any]]:
    """``messages``, contents as texts, with the tools in the system message, or in the first one where the template
    takes no system's words."""
    text = introduction(tools)
    first = messages[0]
    if first["role"] == "system" or not takes_system:
        content = first["content"]
        ordered = (content, text) if first["role"] == "system" else (text, content)
        return [{**first, "content": "\n\n".join(filter(None, ordered))}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def has_calls(messages: Any) -> bool:
    """Whether a conversation holds calls or their results."""
    return isinstance(messages, Sequence) and any(
        isinstance(message, Mapping)
        and (message.get("tool_calls") or message.get("function_call") or message.get("role") in ("tool", "function"))
        for message in messages
    )


def write_out(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``messages``, contents and arguments as texts: calls become part of what the assistant said, results part of what
    the user says next, so that the turns still alternate."""
    found: list[dict[str, Any]] = []
    answering = False  # the last message found has results and no user's words yet
    for message in messages:
        role = message["role"]
        if role == "tool":
            content = f"<tool_response>\n{message['content']}\n</tool_response>"
        else:
            content = _with_calls(message)
        kept = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        if answering and role in ("tool", "user"):
            found[-1]["content"] += "\n" + content
        elif role == "tool":
            found.append({"role": "user", "content": content})
        else:
            found.append({**kept, "content": content})
        answering = role == "tool"
    return found


def _with_calls(message: Mapping[str, Any]) -> str:
    parts = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = function["arguments"] or "{}"
        name = json.dumps(function["name"], ensure_ascii=False)
        parts.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
    return "\n".join(parts)
