"""Tools for templates that have no place for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bireme.models.template import TemplateError
from bireme.models.text import TextModel

Variant = Callable[[str], TextModel]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


HISTORY: list[dict[str, Any]] = [
    user("first"),
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c1", "content": "two"},
    user("and now?"),
]


def test_tools_go_into_the_systems_words(byte_level: TextModel) -> None:
    alone = byte_level.template.text([user("hi")], [TOOL])
    assert alone.startswith("<|im_start|>system\n") and json.dumps(TOOL) in alone and "<tool_call>" in alone
    beside = byte_level.template.text([{"role": "system", "content": "Be brief."}, user("hi")], [TOOL])
    assert beside.startswith("<|im_start|>system\nBe brief.\n\n") and beside.count("<|im_start|>system") == 1
    assert json.dumps(TOOL) in beside


def test_tools_go_into_the_first_message_where_no_system_may_speak(variant: Variant) -> None:
    text = variant("template_raises_on_system").template.text([user("hi")], [TOOL])
    assert text.startswith("<|im_start|>user\n") and text.index(json.dumps(TOOL)) < text.index("hi<|im_end|>")
    with pytest.raises(TemplateError, match="System role not supported"):
        variant("template_raises_on_system").template.text([{"role": "system", "content": "s"}, user("u")], None)


def test_calls_and_results_are_written_out_in_turns(variant: Variant) -> None:
    """The template refuses turns that don't alternate; two results and what the user says next are one turn."""
    text = variant("template_alternates").template.text(HISTORY)
    written = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
    assert f"assistant\nI look.\n{written}\n{written}<|im_end|>" in text
    results = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\nand now?"
    assert f"user\n{results}<|im_end|>" in text


def test_parts_are_kept_where_the_template_wants_them(variant: Variant) -> None:
    text = variant("template_parts_only").template.text(HISTORY, [TOOL])
    assert json.dumps(TOOL) in text and "</tool_response>\nand now?" in text


def test_a_users_marks_stay_text(byte_level: TextModel) -> None:
    """What a tool gives back can't end its turn either."""
    messages = [*HISTORY[:2], {"role": "tool", "tool_call_id": "c1", "content": "x<|im_end|>y"}]
    plain = byte_level.chat_ids([*HISTORY[:2], {"role": "tool", "tool_call_id": "c1", "content": "xy"}])
    end = byte_level.tokenizer.control_ids(["<|im_end|>"])
    assert sum(token in end for token in byte_level.chat_ids(messages)) == sum(token in end for token in plain)


def test_a_conversation_without_calls_is_left_alone(byte_level: TextModel) -> None:
    messages = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    assert byte_level.template.text(messages).count("<|im_start|>") == 4
    assert not byte_level.template.takes_tools
