"""What a request's body says its answer must match: one specification, checked for size, or none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..core.grammar import GrammarKind, GrammarSpec
from .errors import bad_request
from .openai_types import GenerationRequest

#: Fields that ask for an answer of some form; at most one of them may be set.
FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
)
_ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """What is looked at, at all."""

    max_bytes: int  # of a schema, expression, grammar or list of choices, as UTF-8
    max_depth: int  # of a schema's objects and arrays in each other


def grammar_of(body: GenerationRequest, limits: SchemaLimits) -> GrammarSpec | None:
    """What the answer must match; None: anything.

    Raises:
        ApiError: 400 naming the field: a malformed one, two at once, or one above the limits.
    """
    found = []
    for name in FIELDS:
        value = getattr(body, name)
        if value is None:
            continue
        check_depth(value, limits, name)
        spec = _READERS[name](value, name)
        if spec is not None:
            found.append((name, spec))
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise bad_request(f"{names} both say what the answer must match; give one of them.", found[1][0])
    name, spec = found[0]
    check_size(spec, name, limits)
    if spec.kind == "json_schema":  # it may have come as text
        check_depth(msgspec.json.decode(spec.text), limits, name)
    return dataclasses.replace(spec, field=name)


def check_size(spec: GrammarSpec, field: str, limits: SchemaLimits) -> None:
    """Raises ``ApiError`` 400 where there is more text than is looked at."""
    size = len(spec.text.encode("utf-8", "replace"))
    if size > limits.max_bytes:
        raise bad_request(
            f"{field} is {size} bytes long; at most {limits.max_bytes} are taken (--max-schema-bytes)", field
        )


def check_depth(value: Any, limits: SchemaLimits, field: str) -> None:
    """Raises ``ApiError`` 400 where objects and arrays lie in each other more deeply than is taken."""
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > limits.max_depth:
            raise bad_request(
                f"{field} is nested more than {limits.max_depth} levels deep, the most taken (--max-schema-depth)",
                field,
            )
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]


def _response_format(value: Mapping[str, Any], field: str) -> GrammarSpec | None:
    kind = value.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(value["schema"], f"{field}.schema") if value.get("schema") is not None else _any_object()
    if kind == "json_schema":
        inner = value.get("json_schema", value)
        if not isinstance(inner, Mapping) or inner.get("schema") is None:
            raise bad_request(f"{field}.json_schema.schema is missing; it must be a JSON schema (an object)", field)
        return _schema(inner["schema"], f"{field}.json_schema.schema")
    if kind == "grammar" and isinstance(value.get("grammar"), str):
        return _text("grammar", value["grammar"], f"{field}.grammar")
    known = "'text', 'json_object' and 'json_schema'"
    raise bad_request(f"{field} of type {kind!r} is not supported; {known} are.", field)


def _structured_outputs(value: Mapping[str, Any], field: str) -> GrammarSpec | None:
    asked = {name: one for name, one in value.items() if name in _PARTS and one is not None and one is not False}
    if "structural_tag" in value and value["structural_tag"] is not None:
        raise bad_request(f"{field}.structural_tag is not supported; use a grammar.", field)
    if len(asked) != 1:
        raise bad_request(f"{field} must hold exactly one of {', '.join(_PARTS)}", field)
    name, one = next(iter(asked.items()))
    return _PARTS[name](one, f"{field}.{name}")


def _schema(value: Any, field: str) -> GrammarSpec:
    """A schema as an object, or as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{field} is not valid JSON: {error}", field.split(".")[0]) from None
    if value is True:
        value = {}
    if not isinstance(value, dict):
        raise bad_request(f"{field} must be a JSON schema (an object)", field.split(".")[0])
    return GrammarSpec("json_schema", msgspec.json.encode(value).decode())


def _any_object(value: Any = True, field: str = "") -> GrammarSpec:
    return GrammarSpec("json_schema", _ANY_OBJECT)


def _text(kind: GrammarKind, value: Any, field: str) -> GrammarSpec:
    if not isinstance(value, str) or not value:
        raise bad_request(f"{field} must be a text that is not empty", field.split(".")[0])
    return GrammarSpec(kind, value)


def _regex(value: Any, field: str) -> GrammarSpec:
    return _text("regex", value, field)


def _grammar(value: Any, field: str) -> GrammarSpec:
    return _text("grammar", value, field)


def _choice(value: Any, field: str) -> GrammarSpec:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise bad_request(f"{field} must be a list of texts, none of them empty", field.split(".")[0])
    return GrammarSpec("choice", msgspec.json.encode(value).decode())


_Reader = Callable[[Any, str], GrammarSpec | None]
_PARTS: dict[str, _Reader] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _any_object,
}
_READERS: dict[str, _Reader] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _schema,
    "grammar": _grammar,
}
