"""What a chat's answer must match: a form that was asked for, a call that must be made, and the reasoning before."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core.grammar import GrammarSpec
from ..grammar.lark import TERMINALS, ControlIds, literal, until
from ..models.tokenizer import Tokenizer
from .errors import bad_request
from .forced_calls import calls_grammar, forced_calls, thought
from .openai_types import ChatRequest
from .parsers import harmony
from .parsers.choose import ParserChoice
from .parsers.formats import HARMONY
from .structured import SchemaLimits, check_depth, check_size, grammar_of
from .tool_use import ToolUse


def chat_grammar(
    body: ChatRequest, use: ToolUse, parsers: ParserChoice, tokenizer: Tokenizer, prompt_end: str, limits: SchemaLimits
) -> GrammarSpec | None:
    """None: anything. ``prompt_end``: the prompt's last words, which may open the reasoning.

    A call that must be made is all there is. With tools that may be called, a form is that of an answer without calls.

    Raises:
        ApiError: 400 naming the field.
    """

    def control_id(mark: str) -> int | None:
        return next(iter(tokenizer.control_ids((mark,))), None)

    spec = _with_calls(body, use, parsers, control_id, limits)
    if spec is None:
        return None
    return dataclasses.replace(spec, before=_before(parsers, prompt_end, control_id, content=not use.forced))


def _with_calls(
    body: ChatRequest, use: ToolUse, parsers: ParserChoice, control_id: ControlIds, limits: SchemaLimits
) -> GrammarSpec | None:
    asked, tools = grammar_of(body, limits), use.tools
    if tools is None or not (use.forced or asked is not None):
        return asked
    field = "function_call" if use.legacy else "tool_choice"
    if parsers.tools is None and not parsers.harmony:
        if use.forced:
            raise bad_request(f"{field} demands a call, but this server reads none (--tool-parser none).", field)
        return asked
    for schema in tools.parameters.values():
        check_depth(schema, limits, "functions" if use.legacy else "tools")
    name = HARMONY if parsers.harmony else parsers.tool_name
    if use.forced or asked is None:
        single = use.single or _names_one(body.function_call if use.legacy else body.tool_choice)
        spec = forced_calls(tools, name, control_id, single=single, field=field)
        check_size(spec, field, limits)
        return spec
    return dataclasses.replace(asked, instead=calls_grammar(tools, name, control_id, single=use.single))


def _names_one(choice: Any) -> bool:
    """Whether a choice names the function to call: once, then."""
    return isinstance(choice, dict) and choice.get("type", "function") == "function"


def _before(parsers: ParserChoice, prompt_end: str, control_id: ControlIds, *, content: bool) -> str:
    """Lark of what stands before the answer: reasoning, as this model marks it, or nothing."""
    if parsers.harmony:
        return _harmony_before(control_id, content=content)
    reasoning = parsers.reasoning
    if reasoning is None or prompt_end.rstrip().endswith(reasoning.closing):
        return ""
    opened = prompt_end.rstrip().endswith(reasoning.opening)
    return thought(reasoning.opening, reasoning.closing, control_id, opened=opened)


def _harmony_before(control_id: ControlIds, *, content: bool) -> str:
    """An analysis or none, and the head of the final message where the answer is one."""

    def write(text: str) -> str:
        return literal(text, harmony.SPECIALS, control_id)

    analysis = write(f"{harmony.CHANNEL}analysis{harmony.MESSAGE}")
    again = write(f"{harmony.START}assistant")
    final = write(f"{harmony.CHANNEL}final{harmony.MESSAGE}") if content else ""
    return f"before: ({analysis} thought {again})? {final}\n" + until("thought", harmony.END, control_id) + TERMINALS
