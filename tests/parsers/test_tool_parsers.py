"""Parsers of reasoning and tool calls: each format's own examples, any cut of any text, linear time, nothing lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bireme.server.parsers.choose import ParserChoice, choose
from bireme.server.parsers.events import CallArguments, CallEnd, CallStart, Event, Field, Text, merged
from bireme.server.parsers.formats import REASONING_FORMATS, TOOL_FORMATS
from bireme.server.parsers.machine import Machine, Parser
from bireme.server.parsers.tools import Tools

WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "options": {"type": "object"}},
    },
}
TOOLS = Tools.of([{"function": WEATHER}, {"function": {"name": "get_time"}}])
FORMATS = {one.name: one for one in TOOL_FORMATS}
REASONING = {one.name: one for one in REASONING_FORMATS}

PARIS = ("get_weather", '{"city": "Paris"}', True)
TIME = ("get_time", "{}", True)


def parser(tools: str, reasoning: str = "none", prompt_end: str = "", offered: Tools | None = TOOLS) -> Parser:
    choice = ParserChoice(FORMATS.get(tools), REASONING.get(reasoning), harmony="harmony" in (tools, reasoning))
    found = choice.parser(offered, prompt_end)
    assert found is not None
    return found


def events(one: Parser, pieces: Sequence[str]) -> list[Event]:
    found: list[Event] = []
    for piece in pieces:
        found += one.push(piece)
    return merged([*found, *one.finish()])


def told(found: Sequence[Event]) -> dict[str, Any]:
    """Events put together: content, reasoning, and calls as (name, arguments, complete)."""
    content = "".join(event.text for event in found if isinstance(event, Text) and event.field is Field.CONTENT)
    reasoning = "".join(event.text for event in found if isinstance(event, Text) and event.field is Field.REASONING)
    calls: list[list[Any]] = []
    for event in found:
        if isinstance(event, CallStart):
            calls.append([event.name, "", None])
        elif isinstance(event, CallArguments):
            calls[-1][1] += event.text
        elif isinstance(event, CallEnd):
            calls[-1][2] = event.complete
    return {"content": content, "reasoning": reasoning, "calls": [tuple(call) for call in calls]}


HERMES_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES_TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
DEEPSEEK_R1 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
HARMONY_CALL = (
    "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
)

#: format, text, content, calls
WELL_FORMED: list[tuple[str, str, str, list[tuple[str, str, bool]]]] = [
    ("hermes", f"I'll look.\n\n{HERMES_CALL}", "I'll look.", [PARIS]),
    ("hermes", f"{HERMES_CALL}\n{HERMES_TIME}\n", "", [PARIS, TIME]),
    ("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call> done', "done", [TIME]),
    ("hermes", HERMES_CALL.removesuffix("\n</tool_call>"), "", [PARIS]),
    ("hermes", HERMES_CALL.replace("}\n<", "}}\n<"), "", [PARIS]),
    ("hermes", HERMES_CALL.removesuffix("call>"), "", [PARIS]),
    ("hermes", f"<tool_call>[{HERMES_CALL[12:-13]}, {HERMES_TIME[12:-13]}]</tool_call>", "", [PARIS, TIME]),
    (
        "hermes",
        '<tool_call>{"type": "function", '
        '"function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}}',
        "",
        [("get_weather", '{"city": "Paris"}', True)],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}', "", [("f", '{"a": "x\\ny"}', True)]),
    (
        "qwen3_coder",
        'Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPa"ris\n</parameter>\n<parameter=days>\n3\n'
        '</parameter>\n<parameter=options>\n{"a": [true]}\n</parameter>\n</function>\n</tool_call>\n',
        "Sure.",
        [("get_weather", '{"city": "Pa\\"ris", "days": 3, "options": {"a": [true]}}', True)],
    ),
    ("qwen3_coder", "<function=get_time>\n</function>", "", [TIME]),
    ("qwen3_coder", HERMES_CALL, "", [PARIS]),
    (
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time</tool_call>",
        "",
        [("get_weather", '{"city": "Paris", "days": 3}', True), TIME],
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]',
        "",
        [PARIS, TIME],
    ),
    ("mistral", 'Let me.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "Let me.", [PARIS]),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time{}', "", [PARIS, TIME]),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama3",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time"}',
        "",
        [PARIS, TIME],
    ),
    ("llama3", '{"name": "Ada", "parameters": {}}\nis JSON', '{"name": "Ada", "parameters": {}}\nis JSON', []),
    ("llama3", '<|python_tag|>print("hi")', '<|python_tag|>print("hi")', []),
    ("deepseek", f"Looking.{DEEPSEEK_R1}", "Looking.", [PARIS, TIME]),
    (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "",
        [PARIS],
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [PARIS, TIME],
    ),
    ("phi4", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>', "", [PARIS]),
    ("lfm2", 'Ok<|tool_call_start|>[get_weather(city="Paris"), get_time()]<|tool_call_end|>', "Ok", [PARIS, TIME]),
    ("lfm2", '<|tool_call_start|>[{"name": "get_time", "arguments": {}}]<|tool_call_end|>done', "done", [TIME]),
    ("nemotron", '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>', "", [PARIS]),
    ("harmony", HARMONY_CALL, "", [PARIS]),
    ("harmony", HARMONY_CALL + "<|call|>", "", [PARIS]),
    ("harmony", " to=functions.get_time<|channel|>commentary json<|message|>{}", "", [TIME]),
    (
        "harmony",
        "<|channel|>commentary<|message|>I'll look.<|end|><|start|>assistant" + HARMONY_CALL,
        "I'll look.",
        [PARIS],
    ),
    ("harmony", "<|channel|>final<|message|>Hello <b>there</b>", "Hello <b>there</b>", []),
    ("harmony", "no header at all", "no header at all", []),
    (
        "functiongemma",
        '<start_function_call>call:get_weather{city:<escape>Pa"ris, 1<escape>,days:3,options:{a:[1,true,<escape>x'
        "<escape>],b:{}}}<end_function_call><start_function_call>call:get_time{}<end_function_call>",
        "",
        [("get_weather", '{"city": "Pa\\"ris, 1", "days": 3, "options": {"a": [1, true, "x"], "b": {}}}', True), TIME],
    ),
    ("gemma4", '<|tool_call>call:get_weather{<|"|>city<|"|>:<|"|>Paris<|"|>}<tool_call|>', "", [PARIS]),
    ("gemma4", "<|tool_call>call:get_weather{city:Paris}<tool_call|> ok", "ok", [PARIS]),
    ("gemma4", '<|tool_call>{"name": "get_time"}<tool_call|>', "", [TIME]),
    ("gemma", 'Sure:\n```tool_code\nprint(get_weather(city="Paris"))\n```', "Sure:", [PARIS]),
    ("gemma", '```json\n{"name": "get_weather", "parameters": {"city": "Paris"}}\n```', "", [PARIS]),
    ("json", '[get_weather(city="Paris"), get_time()]', "", [PARIS, TIME]),
    ("json", "[get_weather('Paris')]", "", [PARIS]),
    ("json", '[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    ("json", '```json\n{"x": 1}\n```', '```json\n{"x": 1}\n```', []),
    ("json", "[1, 2]\n[get_weather]", "[1, 2]\n[get_weather]", []),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), WELL_FORMED)
def test_each_format_is_read(name: str, text: str, content: str, calls: list[tuple[str, str, bool]]) -> None:
    found = told(events(parser(name), [text]))
    assert (found["content"], found["calls"]) == (content, calls)


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("hermes", HERMES_CALL[: HERMES_CALL.index("is")], [("get_weather", '{"city": "Par', False)]),
        ("hermes", HERMES_CALL.replace('"Paris"', "Paris"), [("get_weather", '{"city": Paris}}\n', False)]),
        ("qwen3_coder", "<function=get_weather><parameter=city>Par", [("get_weather", '{"city": "Par', False)]),
        (
            "glm",
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
            [("get_weather", '{"city": "Par', False)],
        ),
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Par', [("get_weather", '{"city": "Par', False)]),
        ("llama3", '{"name": "get_weather", "parameters": {"city": "Par', [("get_weather", '{"city": "Par', False)]),
        ("deepseek", DEEPSEEK_R1[: DEEPSEEK_R1.index("is")], [("get_weather", '{"city": "Par', False)]),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Par', [("get_weather", '{"city": "Par', False)]),
        ("gemma4", "<|tool_call>call:get_weather{days:3", [("get_weather", '{"days": 3', False)]),
        ("gemma4", "<|tool_call>call:f{a:1]}<tool_call|>", [("f", '{"a": 1]}', False)]),
        ("harmony", HARMONY_CALL[:-4], [("get_weather", '{"city": "Par', False)]),
    ],
)  # fmt: skip
def test_a_call_cut_short_is_known_as_such(name: str, text: str, calls: list[tuple[str, str, bool]]) -> None:
    """What was told stays told, and is marked incomplete."""
    assert told(events(parser(name), [text]))["calls"] == calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>let me see</tool_call> <tool_"),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get_weather"'),
        ("glm", "<tool_call>{}</tool_call>"),
        ("qwen3_coder", "<function=get_weather"),
        ("mistral", "[TOOL_CALLS] none"),
        ("deepseek", "<｜tool▁calls▁begin｜> nothing"),
        ("kimi", "<|tool_call_begin|>x"),
        ("gemma", "```tool_code\nimport os\nos.system('x')\n```"),
        ("gemma", "```python\nprint(1)\n```"),
        ("json", "[get_weather(city=open('x'))]"),
        ("json", "[get_weather(**x)]"),
    ],
)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    assert told(events(parser(name), [text])) == {"content": text, "reasoning": "", "calls": []}


@pytest.mark.parametrize(
    ("reasoning", "prompt_end", "text", "thought", "content"),
    [
        ("think", "", "<think>\nhm\n</think>\n\nYes", "hm", "Yes"),
        ("think", "assistant\n<think>\n", "hm\n</think>\n\nYes", "hm", "Yes"),
        ("think", "<think>\n", "<think>hm</think>Yes", "hm", "Yes"),
        ("think", "<think>\n\n</think>\n\n", " Yes", "", " Yes"),
        ("think", "<think>", "never ends", "never ends", ""),
        ("think", "", "2 < 3 <think>", "", "2 < 3 <think>"),
        ("mistral", "", "[THINK]hm[/THINK]Yes", "hm", "Yes"),
        ("gemma4", "", "<|channel>thought\nhm\n<channel|>Yes", "hm", "Yes"),
        ("seed", "", "<seed:think>hm</seed:think>Yes", "hm", "Yes"),
        ("harmony", "", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes",
         "hm", "Yes"),
    ],
)  # fmt: skip
def test_reasoning_is_told_apart(reasoning: str, prompt_end: str, text: str, thought: str, content: str) -> None:
    found = told(events(parser("none", reasoning, prompt_end, offered=None), [text]))
    assert (found["reasoning"], found["content"]) == (thought, content)


def test_reasoning_comes_before_calls() -> None:
    found = told(events(parser("hermes", "think"), [f"<think>\nI call {HERMES_TIME}\n</think>\n\n{HERMES_CALL}"]))
    assert found == {"content": "", "reasoning": f"I call {HERMES_TIME}", "calls": [PARIS]}


def test_arguments_stream_as_they_come() -> None:
    one = parser("hermes")
    one.push('<tool_call>{"name": "get_weather", "arguments": ')
    assert one.push('{"ci') == [CallStart("get_weather"), CallArguments('{"ci')]
    assert one.push('ty": "Pa') == [CallArguments('ty": "Pa')]
    one = parser("qwen3_coder")
    one.push("<function=get_weather><parameter=city>\nPa")
    assert one.push("ri\n") == [CallArguments("ri")]  # the line break may belong to the closing tag


#: What texts are made of: marks, parts of calls, and odd ends.
FRAGMENTS = sorted(
    {
        *(text for _, text, _, _ in WELL_FORMED),
        *(special for one in TOOL_FORMATS for special in one.specials),
        *'{}[],:"`<>\n',
        *("<think>", "</think>", "<function=", "<parameter=city>", "</parameter>", "</function>", "```json\n", "```"),
        *('{"name": "get_time", "arguments": ', '{"city": "é😀\\u00e9"}', "get_weather", "to=functions.get_time", "\\"),
        *("  \n", " " * 20, "get_time()", "<tool_call", "</tool", "text", "null", "tru", "-1e5", "function"),
    }
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=10).map("".join)
#: (tool format, reasoning format)
PAIRS = [(name, "none") for name in FORMATS] + [("hermes", "think"), ("mistral", "mistral"), ("deepseek", "think")]


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize(("name", "reasoning"), PAIRS)
@settings(max_examples=40, deadline=None)
@given(cut_texts())
@example(("a<think>b</think>", list("a<think>b</think>")))
def test_any_cut_of_any_text_is_read_alike(name: str, reasoning: str, cut: tuple[str, list[str]]) -> None:
    text, pieces = cut
    whole = events(parser(name, reasoning), [text])
    assert events(parser(name, reasoning), pieces) == whole
    assert events(parser(name, reasoning), list(text)) == whole
    found = told(whole)
    for _, arguments, complete in found["calls"]:
        assert not complete or isinstance(json.loads(arguments), (dict, list, int, float, str))
    if not found["calls"] and reasoning == "none" and name != "harmony":
        assert found["content"] == text


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _, _ in WELL_FORMED])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_damaged_call_is_never_an_error(name: str, text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 3))
    damaged = text[:at] + data.draw(st.sampled_from(["", "{", '"', "<", "x", "\\"])) + text[at + length :]
    assert events(parser(name), list(damaged)) == events(parser(name), [damaged])


#: Texts that would cost a parser that looks back much.
TRAPS = [
    "<tool_call>",
    '<tool_call>{"arguments": [',
    '<tool_call>{"name": "f", "arguments": {"a": "',
    "<function=f><parameter=",
    "[TOOL_CALLS][",
    "<｜tool▁calls▁begin｜>",
    "<|channel|>analysis",
    "[get_time(",
    "<|tool_call>call:f{a:[",
    "<start_function_call>call:f{a:<escape>",
    "```tool_code\n",
    "\n",
    '{"function":',
    "{" * 50,
]


def work(one: Parser, pieces: Sequence[str]) -> tuple[int, int]:
    """Function calls made for ``pieces``, and the most text held."""
    calls = 0
    longest = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        for piece in pieces:
            one.push(piece)
            longest = max(longest, len(getattr(one, "_text", "")))
        one.finish()
    finally:
        sys.setprofile(None)
    return calls, longest


@pytest.mark.parametrize("name", FORMATS)
def test_work_grows_with_the_text_alone(name: str) -> None:
    for trap in TRAPS:
        small, large = (parser(name) for _ in range(2))
        assert isinstance(small, Machine)
        short, _ = work(small, list(trap * 20))
        long, held = work(large, list(trap * 80))
        assert long < 5 * short + 1000, trap
        assert held < 600, trap


def test_deep_json_is_no_recursion() -> None:
    deep = "[" * 100_000
    found = told(events(parser("hermes"), ['<tool_call>{"name": "f", "arguments": ' + deep]))
    assert found["calls"] == [("f", deep, False)]
    nested = told(events(parser("hermes"), ["<tool_call>" + '{"function": ' * 50_000]))
    assert nested["calls"] == []


@pytest.mark.parametrize(
    ("template", "specials", "takes_tools", "names"),
    [
        ("{{ tools }}<tool_call></tool_call>{{ c }}</think>", [], True, ("hermes", "think")),
        ("<tool_call><function=x><parameter=y>", [], True, ("qwen3_coder", "none")),
        ("<tool_call>x<arg_key></think>", [], True, ("glm", "think")),
        ("<｜tool▁call▁begin｜><think>", [], True, ("deepseek", "think")),
        ("<|start|>a<|channel|>analysis<|message|>", [], True, ("harmony", "harmony")),
        ("[AVAILABLE_TOOLS][THINK]", [], True, ("mistral", "mistral")),
        ('<|start_header_id|>{"name": n, "parameters": p}', [], True, ("llama3", "none")),
        ("<|turn>model<|tool_call>call:<|channel>thought", [], True, ("gemma4", "gemma4")),
        ("List of tools: ", ["<|im_end|>", "<|tool_call_start|>"], True, ("lfm2", "none")),
        ("{{ tools }}", ["<|im_end|>"], True, ("json", "none")),
        ("{{ messages }}", ["<|python_tag|>", "<tool_call>"], False, ("hermes", "none")),
    ],
)
def test_formats_are_found_by_their_marks(
    template: str, specials: list[str], takes_tools: bool, names: tuple[str, str]
) -> None:
    """In the template first; what a tokenizer alone knows counts only where tools reach the template."""
    found = choose(template, specials, takes_tools=takes_tools)
    assert (found.tool_name, found.reasoning_name) == names
    named = choose(template, specials, takes_tools=takes_tools, tools="llama3_json", reasoning="deepseek_r1")
    assert (named.tool_name, named.reasoning_name) == ("llama3", "think")
    assert choose(template, specials, takes_tools=takes_tools, tools="none", reasoning="none").tools is None


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", '"5"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["integer", "string"]}, "5", '"5"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, " 5 ", "5"),
        ({"enum": ["a", "5"]}, "5", '"5"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "object"}, '{"a": [1]}', '{"a": [1]}'),
        ({"type": "array"}, "[" * 100_000, json.dumps("[" * 100_000)),
        ({}, "[1]", "[1]"),
        ({"type": 5, "anyOf": 5, "enum": 5}, "x", '"x"'),
        (5, "x", '"x"'),
    ],
)
def test_values_between_tags_have_the_schemas_types(schema: Any, text: str, value: str) -> None:
    tools = Tools({"f": {"properties": {"p": schema}}})
    assert tools.value("f", "p", text) == value


def test_arguments_inside_a_string_are_taken_out_where_that_is_json() -> None:
    for written, expected in (
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ("null", "{}"),
        ('"plain"', '"plain"'),
        ('"\\"\\\\ud800\\""', '"\\"\\\\ud800\\""'),
        ('"\\ud800"', '"\\ud800"'),
    ):
        found = told(events(parser("hermes"), [f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>']))
        assert found["calls"] == [("f", expected, True)]
