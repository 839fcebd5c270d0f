"""Calls written as Python: ``[get_weather(city="Paris"), get_time()]``, or lines of a ``tool_code`` block."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from .machine import Machine, Steps
from .tools import Tools, dumps

#: A longer text is no call, and is not parsed.
MAX_PYTHON = 100_000
_NAMES = {"true": True, "false": False, "null": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def read_calls(source: str, tools: Tools) -> list[tuple[str, str]] | None:
    """Names and arguments (JSON) of the calls that ``source`` consists of; None where it is anything else."""
    if len(source) > MAX_PYTHON:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # a model's odd escapes are no concern of the log
            body = ast.parse(source.strip()).body
        nodes = [_expression(statement) for statement in body]
        if len(nodes) == 1 and isinstance(nodes[0], ast.List):
            nodes = list(nodes[0].elts)
        return [_call(node, tools) for node in nodes] or None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _expression(statement: ast.stmt) -> ast.expr:
    """The value of ``f()``, ``print(f())`` or ``x = f()``."""
    if not isinstance(statement, (ast.Expr, ast.Assign)):
        raise ValueError("no call")
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print":
        if len(value.args) != 1 or value.keywords:
            raise ValueError("print of something else")
        return value.args[0]
    return value


def _call(node: ast.expr, tools: Tools) -> tuple[str, str]:
    if not isinstance(node, ast.Call):
        raise ValueError("no call")
    name = ast.unparse(node.func)
    name = name if name in tools else name.rpartition(".")[2]
    if name not in tools:
        raise ValueError("not offered")
    known = tools.parameters[name].get("properties")
    names = list(known) if isinstance(known, dict) else []
    if len(node.args) > len(names):
        raise ValueError("more arguments than parameters")
    arguments = {key: _value(value) for key, value in zip(names, node.args, strict=False)}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** in a call")
        arguments[keyword.arg] = _value(keyword.value)
    text = dumps(arguments)
    text.encode()
    return name, text


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)


def balanced(machine: Machine, held: list[str]) -> Steps[bool]:
    """Consume Python text up to the bracket that closes a list whose beginning was read; False where none does."""
    wanted = ["]"]
    quote = ""
    escaped = False
    for _ in range(MAX_PYTHON):
        character = yield from machine.take_character()
        held.append(character)
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            wanted.append(_CLOSING[character])
        elif character in ")]}":
            if wanted.pop() != character:
                return False
            if not wanted:
                return True
        elif not character:
            return False
    return False
