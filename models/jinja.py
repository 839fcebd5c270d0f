"""The Jinja environment chat templates run in: the helpers they expect, and bounds on what they may spend.

A template is a program out of a downloaded file. It runs in Jinja's immutable sandbox, and it may take no more than
``MAX_STEPS`` turns of its loops, build no value longer than ``MAX_LENGTH`` and write no more than that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000  # turns of all loops of one rendering
MAX_LENGTH = 32_000_000  # characters, or items of a list

_STEP, _JOIN = "_bireme_step", "_bireme_join"
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:[0-9]{6}|\*)")


class Refusal(jinja2.TemplateError):
    """What a template says through ``raise_exception``."""


class LimitError(jinja2.TemplateError):
    """A template spent more than it may."""


class _Turns:
    """Counts the turns of all loops of one rendering."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0

    def count(self) -> None:
        self.taken += 1
        if self.taken > MAX_STEPS:
            raise LimitError(f"its loops took more than {MAX_STEPS} turns")


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant said, for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounded(NodeTransformer):
    """Counts each turn of a loop, and measures what ``~`` joins."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call(_STEP, []), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call(_JOIN, node.nodes)


def _call(name: str, arguments: Sequence[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """As transformers sets it up; every value a template computes is bounded."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.globals[_JOIN] = _join

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Bounded().visit(super()._parse(source, name, filename))
        return template.set_environment(self)  # type: ignore[return-value]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, (str, list)) and isinstance(right, (str, list)):
            _check(len(left) + len(right))
        elif operator == "*" and (isinstance(left, (str, list)) or isinstance(right, (str, list))):
            sequence, count = (left, right) if isinstance(left, (str, list)) else (right, left)
            _check(len(sequence) * count)
        elif operator == "**" and isinstance(right, int):
            _check(10 ** min(right, 9))
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise LimitError(f"it formats with a width of its own making: {left!r}")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(function) is _Turns:
            return function.count()
        for argument in args:  # "x".center(10**9) and the like
            if isinstance(argument, int):
                _check(argument)
        return super().call(context, function, *args, **kwargs)


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Raises ``LimitError``, and whatever the template itself raises."""
    written, length = [], 0
    for piece in template.generate({**variables, _STEP: _Turns()}):
        length += len(piece)
        _check(length)
        written.append(piece)
    return "".join(written)


def _check(length: int) -> None:
    if length > MAX_LENGTH:
        raise LimitError(f"it builds a value of {length} characters or items; the limit is {MAX_LENGTH}")


def _join(*values: Any) -> str:
    texts = [str(value) for value in values]
    _check(sum(map(len, texts)))
    return "".join(texts)


def _raise_exception(message: str) -> None:
    raise Refusal(str(message))


def _strftime_now(template: str) -> str:
    return datetime.now().strftime(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes, characters as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
