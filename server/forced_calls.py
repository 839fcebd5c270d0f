"""Grammars of tool calls in a model's own format: for answers that must be calls, or may be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.grammar import GrammarSpec
from ..grammar.lark import TERMINALS, ControlIds, json_value, literal, until
from .parsers import harmony, mistral
from .parsers.formats import TOOL_FORMATS
from .parsers.gemma_calls import FUNCTION_GEMMA, GEMMA_4
from .parsers.sections import DEEPSEEK, KIMI, SectionMarks
from .parsers.tools import Tools

#: In one answer: a model that can't find an end is a known trap.
MAX_CALLS = 32
NAME, ARGUMENTS = "{name}", "{arguments}"
_PLACES = re.compile(r"(\{name\}|\{arguments\})")
#: A comment before a call's rules, with the tool's name as JSON behind it.
_OF_TOOL = "// tool "
#: How the compiler speaks of a place in a grammar: line and column, and behind the reason the lines around it.
_AT_LINE = re.compile(r"at (?P<line>\d+)\(\d+\): failed to compile JSON schema: (?P<reason>.+?)(?: \d+ \| .*)?$")
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallShape:
    """How calls are written. ``call`` holds the places ``{name}`` and ``{arguments}``."""

    call: str
    opening: str = ""  # once, before the first
    separator: str = ""
    closing: str = ""
    arguments: Callable[[str, Schema, ControlIds], str] | None = None  # Lark; None: a JSON object


def _tags(prefix: str, schema: Schema, control_id: ControlIds, tag: tuple[str, str, str]) -> str:
    """Rules for arguments written one by one between tags: those that are required, and any of the others, in the
    order of the schema. ``tag`` is what stands before the name, between name and value, and after the value."""
    properties = schema.get("properties")
    required = set(schema.get("required") or ())
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    members, rules = [], ""
    for at, (key, part) in enumerate((properties or {}).items()):
        before, between, after = tag
        rule = f"{prefix}_{at}"
        kinds = Tools({"": {"properties": {key: part}}})
        if kinds.is_string("", key) and not (isinstance(part, Mapping) and {"enum", "pattern", "const"} & part.keys()):
            value = f"{rule}_text"
            rules += until(value, after, control_id)
        elif kinds.is_string("", key) and isinstance(part.get("enum"), list):
            value = "(" + " | ".join(json.dumps(str(one)) for one in part["enum"]) + ")" + f" {json.dumps(after)}"
        else:
            inner = {**shared, **part} if isinstance(part, Mapping) else {}
            value = f"{json_value(inner)} {literal(after, _MARKS, control_id)}"
        rules += f"{rule}: {literal(before + key + between, _MARKS, control_id)} {value}\n"
        members.append(rule if key in required else f"{rule}?")
    return f"{prefix}: {' '.join(members)}\n{rules}" if members else f'{prefix}: ""\n'


def _qwen_tags(prefix: str, schema: Schema, control_id: ControlIds) -> str:
    return _tags(prefix, schema, control_id, ("<parameter=", ">\n", "\n</parameter>\n"))


def _glm_tags(prefix: str, schema: Schema, control_id: ControlIds) -> str:
    return _tags(prefix, schema, control_id, ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"))


def _object(key: str = "arguments") -> str:
    return f'{{"name": "{NAME}", "{key}": {ARGUMENTS}}}'


def _section(marks: SectionMarks, name: str) -> CallShape:
    call = f"{marks.call}{name}{marks.separator}{ARGUMENTS}{marks.call_end}"
    return CallShape(call, marks.begin, "", marks.end)


_SHAPES: dict[str, CallShape] = {
    "harmony": CallShape(
        f"{harmony.CHANNEL}commentary to=functions.{NAME} {harmony.CONSTRAIN}json{harmony.MESSAGE}{ARGUMENTS}"
    ),
    "deepseek": _section(DEEPSEEK, NAME),
    "kimi": _section(KIMI, f"functions.{NAME}:0"),
    "glm": CallShape(f"<tool_call>{NAME}\n{ARGUMENTS}</tool_call>", separator="\n", arguments=_glm_tags),
    "qwen3_coder": CallShape(
        f"<tool_call>\n<function={NAME}>\n{ARGUMENTS}</function>\n</tool_call>", separator="\n", arguments=_qwen_tags
    ),
    "mistral": CallShape(_object(), f"{mistral.OPENING}[", ", ", "]"),
    "functiongemma": CallShape(f"{FUNCTION_GEMMA.opening}{_object()}{FUNCTION_GEMMA.closing}"),
    "gemma4": CallShape(f"{GEMMA_4.opening}{_object()}{GEMMA_4.closing}"),
    "hermes": CallShape(f"<tool_call>\n{_object()}\n</tool_call>", separator="\n"),
    "phi4": CallShape(_object(), "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "lfm2": CallShape(_object(), "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "nemotron": CallShape(_object(), "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "llama3": CallShape(_object("parameters"), separator="; "),
    "gemma": CallShape(_object(), "[", ", ", "]"),
    "json": CallShape(_object(), "[", ", ", "]"),
}
#: From tokenizer version 11 on.
_MISTRAL_NAMED = CallShape(f"{mistral.OPENING}{NAME}{mistral.ARGS}{ARGUMENTS}")
#: One call and no more: the model is trained to stop behind it.
_ALWAYS_ONE = frozenset({"harmony", "kimi"})
_MARKS = tuple({mark for one in TOOL_FORMATS for mark in one.specials} | {"</parameter>", "<parameter="})


def calls_grammar(tools: Tools, format_name: str, control_id: ControlIds, *, single: bool) -> str:
    """Lark for one call or, unless ``single``, several of ``tools`` in the format named (``parsers/formats.py``)."""
    shape = _SHAPES[format_name]
    if format_name == "mistral" and control_id(mistral.ARGS) is not None:
        shape = _MISTRAL_NAMED
    rules = ""
    for at, (name, schema) in enumerate(tools.parameters.items()):
        rules += _call(f"call_{at}", name, schema, shape, control_id)
    calls = " | ".join(f"call_{at}" for at in range(len(tools.parameters)))
    more = "" if single or format_name in _ALWAYS_ONE else _more(shape, control_id)
    opening, closing = (literal(text, _MARKS, control_id) for text in (shape.opening, shape.closing))
    return f"start: {opening} call {more} {closing}\ncall: {calls}\n{rules}{TERMINALS}"


def forced_calls(tools: Tools, format_name: str, control_id: ControlIds, *, single: bool, field: str) -> GrammarSpec:
    """An answer that is one call, or several, and nothing else. ``field`` of the body asked for it."""
    return GrammarSpec("grammar", calls_grammar(tools, format_name, control_id, single=single), field=field)


def _more(shape: CallShape, control_id: ControlIds) -> str:
    separator = literal(shape.separator, _MARKS, control_id)
    return f"({separator} call){{0,{MAX_CALLS - 1}}}"


def _call(rule: str, name: str, schema: Schema, shape: CallShape, control_id: ControlIds) -> str:
    """Definition of a rule for a call of ``name``."""
    parts, rules = [], ""
    for piece in _PLACES.split(shape.call):
        if piece == NAME:
            parts.append(json.dumps(name if shape.arguments or '"name"' not in shape.call else json.dumps(name)[1:-1]))
        elif piece != ARGUMENTS:
            parts.append(literal(piece, _MARKS, control_id))
        elif shape.arguments is not None:
            parts.append(f"{rule}_arguments")
            rules += shape.arguments(f"{rule}_arguments", schema, control_id)
        else:
            parts.append(json_value(schema))
    return f"{_OF_TOOL}{json.dumps(name)}\n{rule}: {' '.join(part for part in parts if part)}\n{rules}"


def blamed(spec: GrammarSpec, reason: str) -> str | None:
    """``reason``, which the compiler gave for a grammar of calls, said of the tool whose schema is at fault, without
    the grammar, which nobody who sent that tool knows. None: it speaks of no tool's schema."""
    found = _AT_LINE.match(reason)
    if found is None:
        return None
    for grammar in (spec.text, spec.instead):
        lines = grammar.split("\n")[: int(found["line"])]
        if lines and "%json" in lines[-1]:
            name = next((line for line in reversed(lines) if line.startswith(_OF_TOOL)), None)
            if name is not None:
                return f"the parameters of the tool {name.removeprefix(_OF_TOOL)}: {found['reason']}"
    return None


def thought(opening: str, closing: str, control_id: ControlIds, *, opened: bool) -> str:
    """Lark of what may stand before an answer (``GrammarSpec.before``): reasoning up to ``closing``. ``opened``: the
    prompt ends inside it, so there is some."""
    end = until("thought", closing, control_id)
    start = "" if opened else f"{literal(opening, (opening,), control_id)} "
    rest = f"{start}thought SPACE?"
    return f"before: {rest if opened else f'({rest})?'}\n{end}{TERMINALS}"
