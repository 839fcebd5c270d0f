"""Grammars of forced calls: what they let through is what the format's own parser reads as calls, and valid."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import numpy as np
import pytest
from grammar_walk import demo_vocabulary

from bireme.backends.rows import unpack_masks
from bireme.core.grammar import GrammarError, GrammarSpec
from bireme.server.forced_calls import blamed, calls_grammar, forced_calls, thought
from bireme.server.parsers.events import CallArguments, CallEnd, CallStart, Text, merged
from bireme.server.parsers.formats import TOOL_FORMATS
from bireme.server.parsers.tools import Tools

TOOLS = Tools(
    {
        "weather": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "exact": {"type": "boolean"},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
    }
)
FORMATS = {one.name: one for one in TOOL_FORMATS}


def no_control(literal: str) -> int | None:
    """Of the demo model's vocabulary no format's marks are control tokens."""
    return None


def calls(name: str, text: str) -> list[tuple[str, object]]:
    """(function, arguments) of each call in ``text``, which must hold nothing else."""
    parser = FORMATS[name].make(TOOLS)
    found, told = [], ""
    for event in merged(parser.push(text) + parser.finish()):
        if isinstance(event, CallStart):
            told = event.name
        elif isinstance(event, CallArguments):
            found.append((told, json.loads(event.text)))
        elif isinstance(event, CallEnd):
            assert event.complete, text
        elif isinstance(event, Text):
            assert not event.text.strip(), text
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_grammar_lets_through_is_calls(name: str) -> None:
    spec = forced_calls(TOOLS, name, no_control, single=False, field="tool_choice")
    seen = set()
    for seed in range(12):
        text = demo_vocabulary().walk(spec, seed)
        if text is None:
            continue
        found = calls(name, text)
        assert found, text
        for function, arguments in found:
            jsonschema.validate(arguments, TOOLS.parameters[function])
            seen.add(function)
    assert seen == {"weather", "nothing"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_single_call_is_one(name: str) -> None:
    spec = forced_calls(TOOLS, name, no_control, single=True, field="tool_choice")
    texts = [text for seed in range(8) if (text := demo_vocabulary().walk(spec, seed)) is not None]
    assert texts and all(len(calls(name, text)) == 1 for text in texts)


def test_marks_that_are_control_tokens_are_written_as_such() -> None:
    ids = demo_vocabulary().tokenizer.encode("<|im_start|>", add_special_tokens=False)
    known = {"<tool_call>": ids[0]}
    text = calls_grammar(TOOLS, "hermes", known.get, single=True)
    assert f"<[{ids[0]}]>" in text and '"<tool_call>' not in text
    assert '}\\n</tool_call>"' in text  # no control token of this model
    grammar = demo_vocabulary().compile(GrammarSpec("grammar", text))
    assert np.flatnonzero(unpack_masks(grammar.first_mask[None], 49152)[0]).tolist() == ids


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_may_stand_before_an_answer(opened: bool) -> None:
    before = thought("<think>", "</think>", no_control, opened=opened)
    spec = GrammarSpec("json_schema", '{"type":"object"}', before=before)
    assert demo_vocabulary().allows(spec, ("" if opened else "<think>") + 'So {"b" is wrong.\n</think>\n\n{"a": 1}')
    assert demo_vocabulary().allows(spec, '{"a": 1}') is not opened
    assert not demo_vocabulary().allows(spec, "<think>only thoughts")


def test_an_answer_or_a_call() -> None:
    instead = calls_grammar(TOOLS, "hermes", no_control, single=True)
    spec = GrammarSpec("json_schema", '{"type":"object","required":["answer"]}', instead=instead)
    assert demo_vocabulary().allows(spec, '{"answer": 1}')
    assert demo_vocabulary().allows(spec, '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>')
    assert not demo_vocabulary().allows(spec, "I would rather talk.")


def test_tools_whose_schema_can_not_be_kept_to_are_refused() -> None:
    tools = Tools({"f": {"type": "object", "properties": {"a": {"type": "strng"}}}})
    with pytest.raises(GrammarError, match="strng"):
        demo_vocabulary().compile(forced_calls(tools, "hermes", no_control, single=True, field="tool_choice"))


def test_a_function_that_says_nothing_of_parameters_takes_none() -> None:
    """OpenAI: leaving ``parameters`` out defines an empty list of them. A schema that says nothing allows anything."""
    tools = Tools.of([{"function": {"name": "now"}}, {"function": {"name": "any", "parameters": {}}}])
    spec = forced_calls(tools, "hermes", no_control, single=True, field="tool_choice")
    for name, arguments, good in (("now", "{}", True), ("now", '{"a": 1}', False), ("any", '{"a": 1}', True)):
        text = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        assert demo_vocabulary().allows(spec, text) is good


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "strng"}, "strng"),
        ({"$ref": "#/nowhere"}, "/nowhere"),
        ({"type": "integer", "description": "long " * 300, "not": {}, "contains": 1}, "not"),
    ],
)
def test_a_schema_that_can_not_be_kept_to_is_blamed_on_its_tool(name: str, schema: object, reason: str) -> None:
    good = TOOLS.parameters["weather"]
    tools = Tools({"weather": good, 'a "bad" one': {"type": "object", "properties": {"x": schema}}, "last": good})
    forced = forced_calls(tools, name, no_control, single=False, field="tool_choice")
    before = thought("<think>", "</think>", no_control, opened=False)
    instead = GrammarSpec("json_schema", json.dumps(good), instead=calls_grammar(tools, name, no_control, single=True))
    for spec in (forced, dataclasses.replace(forced, before=before), instead):
        with pytest.raises(GrammarError) as error:
            demo_vocabulary().compile(spec)
        told = blamed(spec, str(error.value))
        assert told is not None and 'the tool "a \\"bad\\" one"' in told and reason in told
        assert "%json" not in told and " | " not in told and len(told) < 200


def test_other_reasons_are_no_tools_fault() -> None:
    spec = forced_calls(TOOLS, "hermes", no_control, single=False, field="tool_choice")
    assert blamed(spec, "it took longer than 5 s to compile") is None
    assert (
        blamed(GrammarSpec("grammar", "start: %json {}"), "at 1(2): failed to compile JSON schema: x 1 | start") is None
    )
