"""Anthropic's Messages API, raw and through the ``anthropic`` package. Case numbers are those of the fault list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pydantic
import pytest
import scripted
from dictated import Dictation, model

from bireme.server.anthropic.input import chat_messages
from bireme.server.anthropic.types import MessagesRequest
from bireme.server.errors import ApiError
from bireme.server.opaque import seal, unseal

PATH = "/v1/messages"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}
TIME: Any = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
OSLO = ("get_weather", {"city": "Oslo"})
NOW = ("get_time", {"tz": "UTC"})


def body(trigger: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "scripted",
        "max_tokens": 100,
        "temperature": 0,
        "messages": [{"role": "user", "content": f"go {trigger}"}],
        **fields,
    }


def named_events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; each one's name is its data's type."""
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.strip().split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The events' types; repeated deltas count once."""
    names = [one["type"] for one in events]
    return [name for at, name in enumerate(names) if not at or names[at - 1] != name]


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content blocks that a stream's events add up to."""
    blocks: list[dict[str, Any]] = []
    pieces: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            assert event["index"] == len(blocks) - 1
            if delta["type"] == "input_json_delta":
                pieces.append(delta["partial_json"])
            else:
                field = delta["type"].removesuffix("_delta")
                blocks[-1][field] += delta[field]
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads("".join(pieces))
            pieces = []
    return blocks


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as one:
        yield one


@pytest.mark.parametrize("trigger", ["0", "1", "3", "4"])
def test_a_text_whole_and_streamed(server: Any, trigger: str) -> None:
    whole = server.post(PATH, body(trigger)).json()
    assert whole["type"] == "message" and whole["role"] == "assistant" and whole["stop_reason"] == "end_turn"
    assert whole["content"] == [{"type": "text", "text": scripted.TRIGGERS[trigger].text}]
    events = named_events(server.post(PATH, body(trigger, stream=True)))
    assert kinds(events) == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    assert folded(events) == whole["content"]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_usage_tells_what_the_cache_saved(server: Any) -> None:
    counted = server.post(PATH + "/count_tokens", body("0", max_tokens=None)).json()["input_tokens"]
    server.post(PATH, body("0"))
    usage = server.post(PATH, body("0")).json()["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted
    chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "go 0"}]}).json()
    assert chat["usage"]["prompt_tokens"] == counted
    streamed = named_events(server.post(PATH, body("0", stream=True)))
    assert streamed[-2]["usage"] == usage


def test_what_ended_it(server: Any) -> None:
    stopped = server.post(PATH, body("4", stop_sequences=["zzz", "DEFGHIJ"])).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "DEFGHIJ")
    assert stopped["content"][0]["text"] == "abc"
    cut = server.post(PATH, body("6", max_tokens=5)).json()
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 5)
    endless = server.post(PATH, body("6", max_tokens=32000)).json()
    assert endless["stop_reason"] == "model_context_window_exceeded"
    streamed = named_events(server.post(PATH, body("4", stop_sequences=["DEFGHIJ"], stream=True)))
    assert streamed[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "DEFGHIJ"}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}, "assistant's"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "no"}}, "'no'"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"tool_choice": {"type": "some"}}, "'some'"),
        ({"thinking": {"type": "some"}}, "'some'"),
        ({"stop_sequences": [""]}, "stop_sequences holds an empty"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort is 'huge'"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"temperature": "hot"}, "temperature"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "prompt is too long: 90"),
    ],
)
def test_refusals_have_this_apis_shape(server: Any, fields: dict[str, Any], word: str) -> None:
    for stream in (False, True):
        answer = server.post(PATH, body("0") | fields | {"stream": stream})
        assert answer.status_code == 400, answer.text
        error = answer.json()
        assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
        assert word in error["error"]["message"], error
        assert error["request_id"] == answer.headers["request-id"]


def test_refusals_from_any_part_of_the_server(server: Any, start_server: Any) -> None:
    unknown = server.post(PATH, body("0", model="no-such"))
    assert unknown.status_code == 404 and unknown.json()["error"]["type"] == "not_found_error"
    assert server.get(PATH).json()["error"]["type"] == "invalid_request_error"  # 405
    missing = server.get("/v1/nothing", **{"anthropic-version": "2023-06-01"})
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"
    assert "type" not in server.get("/v1/nothing").json()
    guarded = start_server("--api-key", "secret", "--max-body-size", "1KiB", "--threads", "1")
    guarded.wait_listening()
    wrong = guarded.post(PATH, body("0"), **{"x-api-key": "wrong"})
    assert wrong.status_code == 401 and wrong.json()["error"]["type"] == "authentication_error"
    large = guarded.post(PATH, body("x" * 2000), **{"x-api-key": "secret"})
    assert large.status_code == 413 and large.json()["error"]["type"] == "request_too_large"
    assert httpx.head(server.url + "/").status_code == 200


def test_a_failure_in_the_stream_is_an_error_event(hooked: Any) -> None:
    """B13."""
    fields = {"model": None, "messages": [{"role": "user", "content": "go N"}], "max_tokens": 5}
    events = named_events(hooked.post(PATH, {**fields, "stream": True}))
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error"
    assert not any(one["type"] in ("message_delta", "message_stop") for one in events)


#: The package has no name for it any more.
GREEDY = {"temperature": 0}


def test_the_sdk(client: anthropic.Anthropic) -> None:
    assert client.models.list().data[0].id == "scripted"
    assert client.models.retrieve("scripted").display_name == "scripted"
    messages: Any = [{"role": "user", "content": "go 4"}]
    whole = client.messages.create(model="scripted", max_tokens=50, messages=messages, extra_body=GREEDY)
    assert whole.content[0].text == "abcDEFGHIJklm"  # type: ignore[union-attr]
    with client.messages.stream(model="scripted", max_tokens=50, messages=messages, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == "abcDEFGHIJklm"
        final = stream.get_final_message()
    assert final.content[0].text == "abcDEFGHIJklm" and final.stop_reason == whole.stop_reason  # type: ignore[union-attr]
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(model="scripted", messages=messages)
    assert counted.input_tokens == final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=5, messages=messages)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model="scripted", max_tokens=5, messages=[{"role": "user", "content": "x" * 9000}])


def test_tools_through_the_sdk(client: anthropic.Anthropic) -> None:
    """B05, B15: parallel calls are blocks of their own, whole and streamed."""
    asked: Any = {
        "model": "scripted",
        "max_tokens": 100,
        "extra_body": GREEDY,
        "messages": [{"role": "user", "content": "go 9"}],
        "tools": [WEATHER, TIME],
    }
    whole: Any = client.messages.create(**asked)
    assert whole.stop_reason == "tool_use"
    assert [(one.name, one.input) for one in whole.content] == [OSLO, NOW]
    with client.messages.stream(**asked) as stream:
        final: Any = stream.get_final_message()
    assert [(one.name, one.input) for one in final.content] == [OSLO, NOW]
    assert len({one.id for one in final.content}) == 2
    single: Any = client.messages.create(**asked, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [(one.name, one.input) for one in single.content] == [OSLO]
    none: Any = client.messages.create(**asked, tool_choice={"type": "none"})
    assert none.content[0].type == "text" and none.stop_reason == "end_turn"
    cities = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    forced = asked | {"max_tokens": 400, "tools": [WEATHER | {"input_schema": cities}, TIME]}
    named: Any = client.messages.create(**forced, tool_choice={"type": "tool", "name": "get_weather"})
    assert [(one.name, one.input) for one in named.content] == [OSLO] and named.stop_reason == "tool_use"


class Answer(pydantic.BaseModel):
    answer: int


def test_the_sdk_parses_a_form(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "go D"}]
    parsed = client.messages.parse(
        model="scripted", max_tokens=50, extra_body=GREEDY, messages=messages, output_format=Answer
    )
    assert isinstance(parsed.parsed_output, Answer)


def test_a_call_that_is_cut_keeps_its_words(server: Any) -> None:
    """B01."""
    fields = {"tools": [WEATHER], "max_tokens": 3}
    whole = server.post(PATH, body("8", **fields)).json()
    events = named_events(server.post(PATH, body("8", stream=True, **fields)))
    assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"] == "max_tokens"
    assert set(whole["content"][-1]["input"]) == {"INVALID_JSON"}


THINKING = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{# <think></think> #}"
    "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{% endfor %}{% endfor %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}(off){% endif %}"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = f"<think>\nhm\n</think>\n\nI look.\n{CALL}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Dictation:
    return Dictation(model(tmp_path_factory.mktemp("thinker"), THINKING))


def ask(thinker: Dictation, **fields: Any) -> httpx.Response:
    return thinker.ask(body("0", model=None, **{"max_tokens": 400} | fields), ANSWER, path=PATH)


def test_thinking_text_and_tools_are_blocks_in_order(thinker: Dictation) -> None:
    fields = {"tools": [WEATHER], "thinking": {"type": "adaptive"}}
    whole = ask(thinker, **fields).json()
    thinking, text, call = whole["content"]
    assert thinking["thinking"] == "hm" and thinking["signature"]
    assert text == {"type": "text", "text": "I look."}
    assert (call["name"], call["input"]) == OSLO and whole["stop_reason"] == "tool_use"
    events = named_events(ask(thinker, stream=True, **fields))
    assert without_ids(folded(events)) == without_ids(whole["content"])
    signed = [one for one in events if one.get("delta", {}).get("type") == "signature_delta"]
    assert len(signed) == 1 and signed[0]["index"] == 0


def test_thinking_that_is_not_shown_comes_back(thinker: Dictation) -> None:
    fields = {"tools": [WEATHER], "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"}}
    whole = ask(thinker, **fields).json()
    assert whole["content"][0]["thinking"] == "" and unseal(whole["content"][0]["signature"]) == "hm"
    events = named_events(ask(thinker, stream=True, **fields))
    assert without_ids(folded(events)) == without_ids(whole["content"])
    history = [{"role": "user", "content": "go 0"}, {"role": "assistant", "content": whole["content"]}]
    result = {"type": "tool_result", "tool_use_id": whole["content"][2]["id"], "content": "sun"}
    ask(thinker, messages=[*history, {"role": "user", "content": [result]}])
    assert thinker.prompt.endswith("[user]go 0[assistant]hmI look.<get_weather>[tool]sun[assistant](off)")


@pytest.mark.parametrize(
    ("fields", "off"),
    [
        ({}, True),
        ({"thinking": {"type": "disabled"}}, True),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, True),
        ({"thinking": {"type": "adaptive"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, False),
        ({"output_config": {"effort": "max"}}, False),
    ],
)
def test_a_model_thinks_where_it_is_asked_to(thinker: Dictation, fields: dict[str, Any], off: bool) -> None:
    assert ask(thinker, **fields).status_code == 200
    assert thinker.prompt.endswith("(off)") is off


def test_b35_the_billing_line_is_no_part_of_the_prompt(thinker: Dictation) -> None:
    """What Claude Code sends: blocks of the system, a changing line first, a mark for the cache, thinking options."""
    prompts = []
    for number in "12":
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
        ]
        fields = {"context_management": {"edits": []}, "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}}
        assert ask(thinker, system=system, **fields).status_code == 200
        prompts.append(thinker.prompt)
    assert prompts[0] == prompts[1] and prompts[0].startswith("[system]Be kind.[user]go 0")


def test_blocks_become_turns() -> None:
    def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
        return chat_messages(MessagesRequest(messages=list(messages)))

    result = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [{"type": "text", "text": "no"}]}
    found = turns(
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": "", "signature": seal("deep")},
                {"type": "text", "text": "well"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ],
        },
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
        {"role": "system", "content": "mind"},
        {"role": "user", "content": [{"type": "document", "title": "T", "source": {"type": "text", "data": "D"}}]},
    )
    assert [one["role"] for one in found] == ["user", "assistant", "tool", "user", "system", "user"]
    assert found[0]["content"] == "one\n\ntwo"
    assert found[1]["reasoning_content"] == "deep" and found[1]["content"] == "well"
    assert json.loads(found[1]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert found[2]["content"] == "Error: no" and found[5]["content"] == "T\nD"
    image = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}
    with pytest.raises(ApiError, match=r"messages\[0\].content\[0\].content\[0\] is a block of type 'image'"):
        turns({"role": "user", "content": [image]})
    with pytest.raises(ApiError, match=r"messages\[0\].content\[0\] is a text block without text"):
        turns({"role": "user", "content": [{"type": "text", "text": 5}]})


def test_a_client_that_leaves_ends_its_request(server: Any) -> None:
    with httpx.stream("POST", server.url + PATH, json=body("6", max_tokens=4000, stream=True)) as answer:
        next(answer.iter_bytes())
    server.wait_idle()
