"""The tools of a Responses request, as functions that a chat template knows, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import bad_request
from .types import Item

#: Tools that agents send with every request, for hosts that have them. The model isn't told of these.
LEFT_OUT = ("web_search", "web_search_preview", "local_shell", "image_generation", "tool_search")
#: The one parameter that the text of a custom tool goes into.
CUSTOM_INPUT = "input"
_CUSTOM_PARAMETERS = {"type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT]}
_NAMESPACE_MARK = "__"


@dataclass(frozen=True, slots=True)
class ToolTable:
    """What the model is told of, and what its calls mean to the client."""

    functions: list[dict[str, Any]] = field(default_factory=list)  # as in chats
    custom: frozenset[str] = frozenset()  # names of tools that take text
    homes: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # a function -> its namespace, its name there

    def place(self, name: str) -> tuple[str | None, str]:
        """The namespace, if any, and the name there, of a function that was called."""
        return self.homes.get(name, (None, name))

    def flat_name(self, namespace: str | None, name: str) -> str:
        """What the model calls a function of a namespace."""
        if namespace is None:
            return name
        found = (flat for flat, home in self.homes.items() if home == (namespace, name))
        return next(found, name)


def tool_table(tools: list[dict[str, Any]] | None) -> ToolTable:
    """Raises ``ApiError`` 400 for a tool that nobody here could run, or that can't be kept to its form."""
    functions: list[dict[str, Any]] = []
    custom: set[str] = set()
    homes: dict[str, tuple[str, str]] = {}
    for at, tool in enumerate(tools or ()):
        place, kind = f"tools[{at}]", tool.get("type", "function")
        if kind == "function":
            functions.append(_function(tool))
        elif kind == "custom":
            functions.append(_custom(tool, place))
            custom.add(str(tool.get("name")))
        elif kind == "namespace":
            _open_namespace(tool, place, functions, homes)
        elif not str(kind).startswith(LEFT_OUT):
            raise bad_request(
                f"{place} is of type {kind!r}, which this server can't run; functions are called.", "tools"
            )
    return ToolTable(functions, frozenset(custom), homes)


def _function(tool: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    kept = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": kept | ({} if name is None else {"name": name})}


def _custom(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A tool that takes text: a function with that one parameter."""
    form = tool.get("format") or {}
    if not isinstance(form, Mapping) or form.get("type", "text") != "text":
        raise bad_request(f"{place}.format is no plain text; custom tools can't be held to a grammar here.", "tools")
    return _function({**tool, "parameters": _CUSTOM_PARAMETERS})


def _open_namespace(
    tool: Mapping[str, Any], place: str, functions: list[dict[str, Any]], homes: dict[str, tuple[str, str]]
) -> None:
    """The functions of a namespace, under their own names where these are free."""
    space, inner = tool.get("name"), tool.get("tools")
    if not isinstance(space, str) or not isinstance(inner, list):
        raise bad_request(f"{place} is a namespace; it must have a name and tools", "tools")
    taken = {one["function"].get("name") for one in functions}
    for at, one in enumerate(inner):
        name = one.get("name") if isinstance(one, Mapping) else None
        if not isinstance(name, str) or one.get("type", "function") != "function":
            raise bad_request(f"{place}.tools[{at}] must be a function with a name", "tools")
        flat = f"{space}{_NAMESPACE_MARK}{name}" if name in taken else name
        taken.add(flat)
        homes[flat] = (space, name)
        functions.append(_function(one, flat))


def tool_choice(choice: str | dict[str, Any] | None, table: ToolTable) -> str | dict[str, Any] | None:
    """The choice in the words of a chat; what can't be called here is refused there, by name."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "custom":
        return {**choice, "type": "function"}
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        return {**choice, "tools": [_allowed(one, table) for one in choice["tools"]]}
    if choice.get("type") == "function" and "namespace" in choice:
        return {"type": "function", "name": table.flat_name(choice["namespace"], str(choice.get("name")))}
    return choice


def _allowed(one: Any, table: ToolTable) -> Any:
    if isinstance(one, Mapping) and "namespace" in one:
        return {**one, "name": table.flat_name(one["namespace"], str(one.get("name")))}
    return one


def call_name(item: Item, table: ToolTable) -> str:
    """The name under which the model knows the function that a call of the history went to."""
    return table.flat_name(item.get("namespace"), item["name"])
