"""The tools a request offers, as parsers need to know them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_NAME = 256
#: What a function takes that says nothing of parameters: none, as the API has it. ``{}`` would be anything.
_NONE: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions offered: their parameters' schemas by name."""

    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Iterable[Mapping[str, Any]]) -> Tools:
        """From OpenAI's ``tools``, already checked."""
        functions = [tool["function"] for tool in tools]
        return cls({one["name"]: _NONE if one.get("parameters") is None else one["parameters"] for one in functions})

    def __contains__(self, name: str) -> bool:
        return name in self.parameters

    def value(self, function: str, parameter: str, text: str) -> str:
        """A parameter's value, written as text, as JSON: what the schema allows decides, then what it looks like."""
        kinds = self.kinds(function, parameter)
        stripped = text.strip()
        if kinds and "string" in kinds and not (stripped == "null" and "null" in kinds):
            return dumps(text)
        found = _as_json(stripped)
        if found is None and stripped in _PYTHON:
            found = _PYTHON[stripped]
        return dumps(text) if found is None else found

    def is_string(self, function: str, parameter: str) -> bool:
        """Whether the parameter can be nothing but a string."""
        return self.kinds(function, parameter) == frozenset({"string"})

    def kinds(self, function: str, parameter: str) -> frozenset[str]:
        """JSON types that the parameter's schema names; empty where it names none."""
        properties = self.parameters.get(function, {}).get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        return frozenset(_kinds(schema, 0))


#: Values as Python writes them, which models do too.
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_MAX_DEPTH = 8


def is_name(name: str) -> bool:
    """Whether this can be a function's name at all."""
    return bool(name) and len(name) <= MAX_NAME and name.isprintable()


def dumps(value: Any) -> str:
    """Raises ``ValueError`` or ``TypeError`` for what JSON can't hold."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _as_json(text: str) -> str | None:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _kinds(schema: Any, depth: int) -> Iterable[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    kind = schema.get("type")
    yield from [kind] if isinstance(kind, str) else [one for one in _list(kind) if isinstance(one, str)]
    if isinstance(schema.get("enum"), list) and kind is None:
        yield from {"string" if isinstance(value, str) else "any" for value in schema["enum"]}
    for name in ("anyOf", "oneOf", "allOf"):
        for one in _list(schema.get(name)):
            yield from _kinds(one, depth + 1)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
