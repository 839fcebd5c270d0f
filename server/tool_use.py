"""What a request says of tools, brought to one form and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import bad_request
from .openai_types import ChatRequest
from .parsers.tools import MAX_NAME, Tools, is_name

MAX_TOOLS = 1024


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request."""

    shown: tuple[dict[str, Any], ...] = ()  # what the model is told of
    tools: Tools | None = None  # what may be called; None: an answer holds no calls
    forced: bool = False  # the answer must be a call
    single: bool = False  # at most one call
    legacy: bool = False  # asked for as ``functions``, so answered as ``function_call``


@dataclass(frozen=True, slots=True)
class _Choice:
    """What was said of calling."""

    mode: str = "auto"  # none, auto or required
    names: tuple[str, ...] = ()  # the tools it is narrowed to; (): all
    one: bool = False  # a single call was named


def tool_use(body: ChatRequest) -> ToolUse:
    """Raises ``ApiError`` 400 naming the field."""
    legacy = not body.tools and bool(body.functions)
    field, choice_field = ("functions", "function_call") if legacy else ("tools", "tool_choice")
    if not legacy and body.function_call not in (None, "none", "auto"):
        raise bad_request("function_call goes with functions; use tool_choice with tools.", "function_call")
    given = [{"type": "function", "function": one} for one in body.functions or ()] if legacy else body.tools or []
    if len(given) > MAX_TOOLS:
        raise bad_request(f"{field} has {len(given)} entries; at most {MAX_TOOLS}", field)
    tools = [_tool(tool, f"{field}[{index}]", field) for index, tool in enumerate(given)]
    choice = _choice(body.function_call if legacy else body.tool_choice, choice_field)
    allowed = Tools.of(tools)
    for name in choice.names:
        if name not in allowed:
            known = ", ".join(allowed.parameters) or "none"
            raise bad_request(f"{choice_field} names {name!r}, which is not among the {field} ({known}).", choice_field)
    if choice.mode == "required" and not tools:
        raise bad_request(f"{choice_field} demands a call, but no {field} are offered.", choice_field)
    if choice.mode == "none" or not tools:
        return ToolUse(legacy=legacy)
    if choice.names:
        allowed = Tools({name: allowed.parameters[name] for name in choice.names})
    single = legacy or choice.one or body.parallel_tool_calls is False
    return ToolUse(tuple(tools), allowed, choice.mode == "required", single, legacy)


def _choice(choice: Any, field: str) -> _Choice:
    if choice is None:
        return _Choice()
    if isinstance(choice, str):
        mode = {"any": "required"}.get(choice, choice)
        if mode not in ("none", "auto", "required"):
            raise bad_request(f"{field} is {choice!r}; it can be 'none', 'auto', 'required' or name a tool", field)
        return _Choice(mode)
    kind = choice.get("type", "function")
    if kind == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        if not isinstance(inner, Mapping) or not isinstance(inner.get("tools"), list) or not inner["tools"]:
            raise bad_request(f"{field} of type 'allowed_tools' must hold a list of tools", field)
        mode = inner.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise bad_request(f"{field}.mode is {mode!r}; it can be 'auto' or 'required'", field)
        return _Choice(mode, tuple(_named(one, field) for one in inner["tools"]))
    if kind != "function":
        raise bad_request(f"{field} of type {kind!r} is not supported; only functions can be called.", field)
    return _Choice("required", (_named(choice, field),), one=True)


def _named(choice: Any, field: str) -> str:
    """The name in ``{"function": {"name": ...}}`` or, as the older field has it, ``{"name": ...}``."""
    inner = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise bad_request(f"{field} must name a function: {{'type': 'function', 'function': {{'name': ...}}}}", field)
    return name


def _tool(tool: Mapping[str, Any], place: str, field: str) -> dict[str, Any]:
    """One tool as templates expect it: a function with a name and parameters."""
    kind = tool.get("type", "function")
    if kind != "function":
        raise bad_request(f"{place} is of type {kind!r}; only functions are supported.", field)
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise bad_request(f"{place}.function is missing; it must be an object with a name", field)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not is_name(name):
        raise bad_request(f"{place}.function.name is {name!r}; it must be a text of 1 to {MAX_NAME} characters", field)
    if parameters is not None and not isinstance(parameters, Mapping):
        raise bad_request(f"{place}.function.parameters must be a JSON schema (an object)", field)
    clean = {key: value for key, value in function.items() if value is not None}
    clean["parameters"] = dict(parameters or {"type": "object", "properties": {}})
    return {"type": "function", "function": clean}
