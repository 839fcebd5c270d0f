"""A Messages request as a chat."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..errors import bad_request
from ..openai_types import ChatRequest, GenerationRequest
from ..thinking import thinking_off
from .input import chat_messages
from .types import MessagesRequest

#: What the chat's fields are called here, for errors.
FIELD_NAMES = {
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"max": "xhigh"}
#: Effort where thinking is on and nobody said how much.
DEFAULT_EFFORT = "medium"
_SHARED = tuple(name for name in GenerationRequest.__struct_fields__ if name not in ("n", "stream_options", "stop"))


def chat_request(body: MessagesRequest, known: Collection[str]) -> ChatRequest:
    """The chat that asks for the same. ``known``: the variables of the chat template.

    Raises:
        ApiError: 400 naming what has no counterpart; other values are checked where chats are.
    """
    if body.mcp_servers:
        raise bad_request("mcp_servers is not supported: this server calls no other.", "mcp_servers")
    if body.n not in (None, 1):
        raise bad_request(f"n is {body.n}; a message is one answer", "n")
    shared: dict[str, Any] = {name: getattr(body, name) for name in _SHARED}
    shared["response_format"] = _format(body) or body.response_format
    if body.metadata is not None and body.metadata.user_id:
        shared["user"] = body.metadata.user_id
    choice = body.tool_choice or {}
    effort, options = _thinking(body, known)
    return ChatRequest(
        **shared,
        messages=chat_messages(body),
        stop=[*([body.stop] if isinstance(body.stop, str) else body.stop or []), *(body.stop_sequences or [])],
        tools=[_tool(tool, at) for at, tool in enumerate(body.tools or ())] or None,
        tool_choice=_choice(choice, bool(body.tools)),
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") is True else None,
        reasoning_effort=effort,
        chat_template_kwargs=options | (body.chat_template_kwargs or {}),
    )


def _format(body: MessagesRequest) -> dict[str, Any] | None:
    """What the answer must match, by either of its names."""
    new = None if body.output_config is None else body.output_config.format
    if new is not None and body.output_format is not None:
        raise bad_request(
            "output_format and output_config.format both say what the answer must match.", "output_format"
        )
    return new or body.output_format


def _thinking(body: MessagesRequest, known: Collection[str]) -> tuple[str | None, dict[str, Any]]:
    """The effort, and template variables. As in the API, a model thinks only where asked to, if it has a choice."""
    kind = None if body.thinking is None else body.thinking.type
    if kind not in (None, "enabled", "adaptive", "disabled"):
        raise bad_request(f"thinking.type is {kind!r}; it can be 'enabled', 'adaptive' or 'disabled'", "thinking")
    effort = None if body.effort is None else _EFFORTS.get(body.effort, body.effort)
    if kind == "disabled" or (kind is None and effort is None):
        return None, thinking_off(known)
    return effort or DEFAULT_EFFORT, {}


def _tool(tool: dict[str, Any], at: int) -> dict[str, Any]:
    """A tool with a schema, as a function."""
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise bad_request(
            f"tools[{at}] is of type {kind!r:.100}, whose form only Anthropic's models know; give the tool a name and "
            "an input_schema",
            "tools",
        )
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _choice(choice: dict[str, Any], with_tools: bool) -> str | dict[str, Any] | None:
    if not choice:
        return None
    kind = choice.get("type")
    if kind == "tool" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise bad_request(
            f"tool_choice.type is {kind!r:.100}; it can be 'auto', 'any', 'none', or 'tool' with a name", "tool_choice"
        )
    return _CHOICES[kind] if with_tools or kind == "any" else None
