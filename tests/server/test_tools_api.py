"""Tools and reasoning over HTTP, in each format, whole and streamed. Case numbers are those of the fault list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import scripted
from api_bodies import chat, events
from dictated import Dictation, model

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, TIME]
PARIS = ("get_weather", {"city": "Paris"})
NOW = ("get_time", {})

#: A template's beginning that names tools, and its messages.
HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}"
TAIL = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>")

HERMES_PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES_NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'

#: name -> marks in the template, control tokens, an answer with two calls, its reasoning, its content
FORMATS: dict[str, tuple[str, tuple[str, ...], str, str, str]] = {
    "hermes": (
        "<tool_call><think></think>",
        ("<tool_call>", "</tool_call>"),
        f"<think>\nhm\n</think>\n\nI look.\n{HERMES_PARIS}\n{HERMES_NOW}",
        "hm",
        "I look.",
    ),
    "qwen3_coder": (
        "<tool_call><function=x><parameter=y>",
        (),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        "",
        "",
    ),
    "llama3": (
        "<|start_header_id|><|python_tag|>",
        ("<|python_tag|>",),
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time"}',
        "",
        "",
    ),
    "mistral": (
        "[TOOL_CALLS][THINK]",
        ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        '[THINK]hm[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        "hm",
        "I look.",
    ),
    "harmony": (
        "<|channel|>analysis<|message|>",
        HARMONY,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}",
        "hm",
        "I look.",
    ),
    "deepseek": (
        "".join(DEEPSEEK) + "<think></think>",
        DEEPSEEK,
        "<think>hm</think>I look."
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "hm",
        "I look.",
    ),
    "glm": (
        "<tool_call><arg_key><think>",
        ("<tool_call>", "</tool_call>"),
        "<think>hm</think>\n"
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
        "<tool_call>get_time\n</tool_call>",
        "hm",
        "",
    ),
    "gemma": ("tool_code", (), 'I look.\n```tool_code\nget_weather(city="Paris")\nget_time()\n```', "", "I look."),
    "json": ("", (), '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time"}]', "", ""),
}


@pytest.fixture(scope="module")
def dictations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dictation]:
    """An application per format."""
    found = {}
    for name, (marks, specials, *_) in FORMATS.items():
        template = HEAD + "{% if false %}" + marks + "{% endif %}" + TAIL
        found[name] = Dictation(model(tmp_path_factory.mktemp(name), template, specials))
    return found


@pytest.fixture(scope="module")
def hermes(dictations: dict[str, Dictation]) -> Dictation:
    return dictations["hermes"]


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": TOOLS, **fields}


def joined(response: httpx.Response, index: int = 0) -> dict[str, Any]:
    """A stream's choice put together as clients do: by the calls' index; and its finish reason."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for chunk in events(response):
        for choice in (one for one in chunk["choices"] if one["index"] == index):
            assert finish is None
            finish = choice["finish_reason"]
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    for one in value:
                        call = calls.setdefault(one["index"], {"arguments": "", "first": one})
                        assert "id" not in one or call["first"] is one
                        call["arguments"] += one["function"]["arguments"]
                elif key == "function_call":
                    call = calls.setdefault(0, {"arguments": "", "first": {"function": value}})
                    call["arguments"] += value["arguments"]
                else:
                    message[key] = message.get(key, "") + value
    message["calls"] = [(call["first"]["function"]["name"], call["arguments"]) for _, call in sorted(calls.items())]
    return {**message, "finish": finish, "ids": [call["first"].get("id") for _, call in sorted(calls.items())]}


def whole(response: httpx.Response, index: int = 0) -> dict[str, Any]:
    """A whole answer's choice in the same words."""
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][index]
    message = dict(choice["message"])
    assert message.pop("refusal") is None
    calls = message.pop("tool_calls", [])
    functions = [call["function"] for call in calls] or [
        call for call in [message.pop("function_call", None)] if call is not None
    ]
    message["calls"] = [(one["name"], one["arguments"]) for one in functions]
    return {
        **message,
        "content": message["content"] or "",
        "finish": choice["finish_reason"],
        "ids": [call["id"] for call in calls],
    }


def both(dictation: Dictation, request: dict[str, Any], *answers: str) -> dict[str, Any]:
    """The first choice, whole and streamed alike (B37), ids aside."""
    found = whole(dictation.ask(request, *answers))
    streamed = joined(dictation.ask({**request, "stream": True}, *answers))
    for one in (found, streamed):
        assert len(set(one["ids"])) == len(one["ids"])
    assert {**streamed, "ids": None} == {**found, "ids": None}
    return found


def parsed(found: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in found["calls"]]


@pytest.mark.parametrize("name", FORMATS)
def test_calls_and_reasoning_in_each_format(dictations: dict[str, Dictation], name: str) -> None:
    """B05, B15, B37: found by the template's marks; numbered, with ids; the same whole and streamed."""
    _, _, answer, reasoning, content = FORMATS[name]
    found = both(dictations[name], body(), answer)
    assert parsed(found) == [PARIS, NOW]
    assert found["finish"] == "tool_calls"
    assert found["content"] == content
    assert found.get("reasoning_content", "") == found.get("reasoning", "") == reasoning
    assert '"get_weather"' in dictations[name].prompt


@pytest.mark.parametrize("name", FORMATS)
def test_without_calls_an_answer_just_stops(dictations: dict[str, Dictation], name: str) -> None:
    """B05: tools offered and none called."""
    found = both(dictations[name], body(), "It is 3 < 4, [fine] {really}.")
    assert found["finish"] == "stop" and found["calls"] == []
    assert found["content"] == "It is 3 < 4, [fine] {really}."


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_cut_by_length_is_no_call_made(dictations: dict[str, Dictation], name: str) -> None:
    """B01: wherever the limit falls, the end is 'length', both ways."""
    _, _, answer, *_ = FORMATS[name]
    count = len(dictations[name].tokens(answer))
    for limit in (count // 3, count // 2, count - 4):
        assert both(dictations[name], body(max_tokens=limit), answer)["finish"] == "length"


def test_mistral_ids_can_go_back_to_its_template(dictations: dict[str, Dictation]) -> None:
    found = whole(dictations["mistral"].ask(body(), FORMATS["mistral"][2]))
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in found["ids"])


def test_calls_stay_text_where_no_tools_are_offered(hermes: Dictation) -> None:
    for request in (body(tools=None), body(tools=[]), body(tool_choice="none")):
        found = both(hermes, request, f"<think>hm</think>{HERMES_PARIS}")
        assert (found["content"], found["calls"], found["finish"]) == (
            HERMES_PARIS.removeprefix("<tool_call>\n").removesuffix("</tool_call>"),
            [],
            "stop",
        )
        assert found["reasoning_content"] == "hm"
    assert "get_weather" not in hermes.prompt


def test_one_call_where_parallel_ones_are_not_wanted(hermes: Dictation) -> None:
    """The model is stopped after the first."""
    found = both(hermes, body(parallel_tool_calls=False), f"{HERMES_PARIS}\n{HERMES_NOW} and on it goes")
    assert parsed(found) == [PARIS] and found["finish"] == "tool_calls" and found["content"] == ""
    assert hermes.client.aborted == [(hermes.client.requests[0].request_id, None)]


def test_each_of_n_has_its_own_calls(hermes: Dictation) -> None:
    answers = (HERMES_PARIS, "No tools.", f"{HERMES_NOW}{HERMES_NOW}")
    response = hermes.ask(body(n=3), *answers)
    streamed = hermes.ask(body(n=3, stream=True), *answers)
    for index, calls in enumerate(([PARIS], [], [NOW, NOW])):
        for found in (whole(response, index), joined(streamed, index)):
            assert parsed(found) == calls
            assert found["finish"] == ("tool_calls" if calls else "stop")


def test_one_of_n_can_end_early(hermes: Dictation) -> None:
    answers = (f"{HERMES_PARIS} more and more", "x" * 100)
    found = [whole(hermes.ask(body(n=2, parallel_tool_calls=False), *answers), index) for index in range(2)]
    assert [one["finish"] for one in found] == ["tool_calls", "stop"]
    assert hermes.client.aborted == [(hermes.client.requests[0].request_id, 0)]


def test_a_stop_string_inside_a_call_ends_it(hermes: Dictation) -> None:
    found = both(hermes, body(stop=["ris"]), HERMES_PARIS)
    assert found["finish"] == "stop" and found["calls"] == [("get_weather", '{"city": "Pa')]


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>'),
        ("<tool_call>oops", "<tool_call>oops"),
    ],
)
def test_what_is_no_call_is_content(hermes: Dictation, answer: str, content: str) -> None:
    found = both(hermes, body(), answer)
    assert (found["content"], found["calls"], found["finish"]) == (content, [], "stop")


def test_every_token_is_scored_once(hermes: Dictation) -> None:
    """Log-probabilities of what became a call or reasoning are told with the next chunk that says something."""
    answer = f"<think>hm</think>Yes. {HERMES_PARIS}"
    request = body(logprobs=True, top_logprobs=1)
    choice = hermes.ask(request, answer).json()["choices"][0]
    count = len(choice["logprobs"]["content"])
    assert count == len(hermes.ask(request, answer).json()["choices"][0]["logprobs"]["content"])
    streamed = [
        entry["token"]
        for chunk in events(hermes.ask({**request, "stream": True}, answer))
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == [entry["token"] for entry in choice["logprobs"]["content"]]
    assert "".join(streamed).startswith("<think>hm</think>Yes. <tool_call>")


def test_functions_of_the_older_api(hermes: Dictation) -> None:
    request = body(tools=None, functions=[WEATHER["function"], TIME["function"]])
    found = both(hermes, request, f"{HERMES_PARIS}{HERMES_NOW}")
    assert parsed(found) == [PARIS] and found["finish"] == "function_call"
    message = hermes.ask(request, HERMES_PARIS).json()["choices"][0]["message"]
    assert message["function_call"]["name"] == "get_weather" and "tool_calls" not in message
    assert both(hermes, {**request, "function_call": "none"}, "Hi")["finish"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "no_such"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"function_call": {"name": "get_time"}}, "function_call"),
        ({"tools": None, "functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
def test_senseless_fields_are_named(hermes: Dictation, fields: dict[str, Any], param: str) -> None:
    response = hermes.ask(body(**fields), "Hi")
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == param and param in error["message"]


def test_hints_that_change_no_meaning_are_accepted(hermes: Dictation) -> None:
    hints = {
        "prediction": {"type": "content", "content": "Hi"},
        "modalities": ["text"],
        "service_tier": "auto",
        "verbosity": "low",
        "store": False,
        "metadata": {"a": "b"},
    }
    assert both(hermes, body(**hints), "Hi")["content"] == "Hi"


def test_a_choice_of_tools_narrows_what_may_be_called(hermes: Dictation) -> None:
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "get_time"}]},
    }
    assert parsed(both(hermes, body(tool_choice=allowed), HERMES_NOW)) == [NOW]


def test_a_stream_that_withholds_text_is_kept_alive(hermes: Dictation) -> None:
    """B40: white space before a call is held back until it is known what follows."""
    patient = Dictation(hermes.path, keep_alive=0.02)
    raw = patient.ask(body(stream=True), f"{' ' * 12}{HERMES_NOW}", pause=0.02).text
    assert ": keep-alive\n\n" in raw[: raw.index("get_time")]
    assert raw.endswith("data: [DONE]\n\n")


# Reasoning.


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Dictation:
    """Its prompt opens the reasoning itself, unless told not to."""
    off = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    switch = off + "{% else %}<think>\n{% endif %}"
    return Dictation(model(tmp_path_factory.mktemp("thinker"), TAIL + "{{ reasoning_effort }}" + switch))


def test_reasoning_that_the_prompt_opens(thinker: Dictation) -> None:
    found = both(thinker, body(tools=None), "hm\n</think>\n\nYes")
    assert (found["reasoning_content"], found["content"]) == ("hm", "Yes")
    cut = both(thinker, body(tools=None, max_tokens=2), "hm hm hm")
    assert (cut["reasoning_content"], cut["content"], cut["finish"]) == ("hm", "", "length")


def test_tokens_of_reasoning_are_counted(thinker: Dictation) -> None:
    """From the mark before it to the mark after it, and only where somebody thought; the same whole and streamed."""
    thought = "one two three four five"
    for answer, least in ((f"{thought}\n</think>\n\nYes, yes", len(thinker.tokens(thought)) - 1), ("</think>Yes", 0)):
        usage = thinker.ask(body(tools=None), answer).json()["usage"]
        counted = usage["completion_tokens_details"]["reasoning_tokens"]
        assert least <= counted <= (least and least + 3) and counted < usage["completion_tokens"]
        stream = thinker.ask(body(tools=None, stream=True, stream_options={"include_usage": True}), answer)
        told = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
        assert told[-1]["usage"] == usage


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_thinking_can_be_switched_off(thinker: Dictation, fields: dict[str, Any]) -> None:
    found = both(thinker, body(tools=None, **fields), "Yes")
    assert found["content"] == "Yes" and "reasoning_content" not in found
    assert thinker.prompt.endswith("</think>\n\n")


def test_effort_reaches_templates_that_know_it(thinker: Dictation, hermes: Dictation) -> None:
    thinker.ask(body(tools=None, reasoning_effort="high"), "hm</think>")
    assert "[assistant]high<think>" in thinker.prompt
    assert both(hermes, body(reasoning_effort="high"), "Hi")["content"] == "Hi"


def test_options_name_the_parsers(hermes: Dictation) -> None:
    plain = Dictation(hermes.path, tool_parser="none", reasoning_parser="none")
    found = both(plain, body(), "<think>hm</think>Hi")
    assert found["content"] == "<think>hm</think>Hi" and found["finish"] == "stop"
    other = Dictation(hermes.path, tool_parser="llama3_json")
    found = both(other, body(), '{"name": "get_time", "parameters": {}}')
    assert parsed(found) == [NOW]
    with pytest.raises(ValueError, match="--tool-parser is 'x'; it can be auto, none, harmony"):
        Dictation(hermes.path, tool_parser="x")


# Models whose templates have no place for tools, on the real server.


def test_tools_for_a_template_without_them(server: Any) -> None:
    """B05, B15, B37: the tools are said in the system's words, and calls are read as JSON between marks."""
    tokens = server.post("/tokenize", {**chat("8"), "tools": TOOLS, "return_token_strs": True}).json()["token_strs"]
    prompt = "".join(tokens)
    assert "system\n" in prompt and json.dumps(WEATHER) in prompt
    for key, calls in (("8", [PARIS]), ("9", [("get_weather", {"city": "Oslo"}), ("get_time", {"tz": "UTC"})])):
        found = whole(server.post("/v1/chat/completions", chat(key, tools=TOOLS)))
        streamed = joined(server.post("/v1/chat/completions", chat(key, tools=TOOLS, stream=True)))
        for one in (found, streamed):
            assert parsed(one) == calls and one["finish"] == "tool_calls" and one["content"] == ""
    for stream in (False, True):
        cut = server.post("/v1/chat/completions", chat("8", tools=TOOLS, max_tokens=3, stream=stream))
        assert (joined if stream else whole)(cut)["finish"] == "length"  # B01
    answer = server.post("/v1/chat/completions", chat("A", tools=TOOLS))
    assert whole(answer)["content"] == scripted.TRIGGERS["A"].text


@pytest.mark.parametrize("key", [key for key, trigger in scripted.TRIGGERS.items() if not trigger.endless])
def test_every_script_is_the_same_whole_and_streamed(server: Any, key: str) -> None:
    """B37"""
    found = whole(server.post("/v1/chat/completions", chat(key, tools=TOOLS)))
    streamed = joined(server.post("/v1/chat/completions", chat(key, tools=TOOLS, stream=True)))
    assert {**streamed, "ids": None} == {**found, "ids": None}


#: Tools that leave little to choose: a model that knows nothing never ends a free text.
CLOSED = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "additionalProperties": False, **of}},
    }
    for name, of in (
        ("get_weather", {"properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"]}),
        ("get_time", {"properties": {}}),
    )
]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
        ({"type": "function", "function": {"name": "get_time"}}, {"get_time"}),
    ],
)
@pytest.mark.parametrize("key", ["0", "8"])
def test_a_call_can_be_demanded(server: Any, key: str, choice: Any, names: set[str]) -> None:
    """B06: whether the model would have called or not; whole and streamed alike, and the end is 'tool_calls'."""
    request = chat(key, tools=CLOSED, tool_choice=choice, parallel_tool_calls=False)
    found = whole(server.post("/v1/chat/completions", request))
    streamed = joined(server.post("/v1/chat/completions", {**request, "stream": True}))
    for one in (found, streamed):
        ((name, arguments),) = parsed(one)
        assert name in names and isinstance(arguments, dict) and one["finish"] == "tool_calls"
        assert one["content"] == "" and (name == "get_time" or arguments["city"] in ("Paris", "Oslo"))
    assert streamed["calls"] == found["calls"]


def test_a_demanded_call_that_can_not_be_kept_to_names_the_tool(server: Any) -> None:
    broken = {"name": "set_tags", "parameters": {"type": "object", "properties": {"tags": {"uniqueItems": True}}}}
    tools = [*CLOSED, {"type": "function", "function": broken}]
    refused = server.post("/v1/chat/completions", chat("0", tools=tools, tool_choice="required"))
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == "tool_choice" and error["code"] == "invalid_grammar"
    assert 'the tool "set_tags": Unimplemented keys: ["uniqueItems"]. Change it' in error["message"]
    assert len(error["message"]) < 300
    assert server.post("/v1/chat/completions", chat("0", tools=tools)).status_code == 200


def test_a_single_call_ends_the_engines_work_too(server: Any) -> None:
    request = chat("9", tools=TOOLS, parallel_tool_calls=False)
    assert parsed(whole(server.post("/v1/chat/completions", request))) == [("get_weather", {"city": "Oslo"})]
    server.wait_idle()


def test_the_openai_package_puts_calls_together(server: Any) -> None:
    """B15"""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        fields: dict[str, Any] = {"model": "scripted", "temperature": 0, "tools": TOOLS}
        with client.chat.completions.stream(messages=[{"role": "user", "content": "go 9"}], **fields) as stream:
            kinds = {event.type for event in stream}
            message = stream.get_final_completion().choices[0].message
        assert "tool_calls.function.arguments.done" in kinds
        calls = message.tool_calls
        assert calls is not None and [call.function.name for call in calls] == ["get_weather", "get_time"]
        history: list[Any] = [{"role": "user", "content": "a"}, message.model_dump(exclude_none=True)]
        history += [{"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in calls]
        history.append({"role": "user", "content": "go 0"})
        answer = client.chat.completions.create(messages=history, **fields)
        assert answer.choices[0].message.content == " hello there!"


def test_harmony_through_a_real_engine(start_server: Any, tmp_path: Path) -> None:
    """Control tokens that an engine samples: those of the format reach the parser, and the turn ends where it ends."""
    specials = (*HARMONY, "<|call|>", "<|return|>")
    template = HEAD + "{% if false %}<|channel|>analysis<|message|>{% endif %}" + TAIL
    dictation = Dictation(model(tmp_path, template, specials))
    server = start_server(hook={"step_s": 0}, model=dictation.path)
    server.wait_serving()
    assert "tools harmony, reasoning harmony" in server.log
    call = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
    for answer, calls, finish in (
        (f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{call}<|call|>", [PARIS], "tool_calls"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
            [],
            "stop",
        ),
    ):
        said = ",".join(map(str, dictation.tokens(answer)))
        request = body(messages=[{"role": "user", "content": f"say:{said};"}])
        found = whole(server.post("/v1/chat/completions", request))
        streamed = joined(server.post("/v1/chat/completions", {**request, "stream": True}))
        for one in (found, streamed):
            assert (parsed(one), one["finish"], one["reasoning_content"]) == (calls, finish, "hm")
            assert one["content"] == ("" if calls else "Hi")
        usage = server.post("/v1/chat/completions", request).json()["usage"]
        assert usage["completion_tokens"] == len(dictation.tokens(answer))


def test_server_info_names_the_parsers(server: Any) -> None:
    info = server.get("/server_info").json()["server"]
    assert (info["tool_parser"], info["reasoning_parser"]) == ("hermes", "none")
    assert "tools hermes, reasoning none" in server.log


def test_the_history_of_a_call_is_told_to_any_template(tmp_path: Path) -> None:
    """A16: names of results, ids, arguments; and reasoning where the template shows it."""
    template = (
        HEAD + "{% for m in messages %}[{{ m.role }}:{{ m.name }}:{{ m.reasoning_content }}]{{ m.content }}"
        "{% for c in m.tool_calls %}({{ c.id | length != 9 }}{{ c.function.arguments.city }}){% endfor %}{% endfor %}"
    )
    dictation = Dictation(model(tmp_path, template))
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
        {"role": "assistant", "function_call": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
        {"role": "function", "name": "get_weather", "content": "rainy"},
    ]
    dictation.ask({"messages": messages}, "Hi")
    assert dictation.prompt == (
        "[user::]u[assistant::hm](FalseRome)[tool:get_weather:]sunny[assistant::](FalseOslo)[tool:get_weather:]rainy"
    )
