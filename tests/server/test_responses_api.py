"""The Responses API, raw and through the ``openai`` package. Case numbers are those of the fault list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
import scripted
from dictated import Dictation, model

from bireme.server.errors import ApiError
from bireme.server.opaque import seal, unseal
from bireme.server.responses.input import chat_messages, with_instructions
from bireme.server.responses.store import USER_PART, ResponseStore, StoredResponse
from bireme.server.responses.tools import ToolTable, tool_table

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}
TIME = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
CALLS = [("get_weather", {"city": "Oslo"}), ("get_time", {"tz": "UTC"})]
TEXT_ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def body(trigger: str, **fields: Any) -> dict[str, Any]:
    return {"input": f"go {trigger}", "temperature": 0, **fields}


def named_events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; each one's name is its data's type, and numbers count up from 0."""
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    return found


def without_repeats(kinds: list[str]) -> list[str]:
    return [kind for at, kind in enumerate(kinds) if not at or kinds[at - 1] != kind]


def same_items(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """Whether items are equal but for their ids."""
    return [one | {"id": "", "call_id": ""} for one in left] == [one | {"id": "", "call_id": ""} for one in right]


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.mark.parametrize("trigger", ["0", "1", "3", "4"])
def test_b33_events_of_a_text(server: Any, trigger: str) -> None:
    whole = server.post("/v1/responses", body(trigger)).json()
    events = named_events(server.post("/v1/responses", body(trigger, stream=True)))
    assert without_repeats([one["type"] for one in events]) == TEXT_ORDER
    deltas = [one for one in events if one["type"] == "response.output_text.delta"]
    text = scripted.TRIGGERS[trigger].text
    assert "".join(one["delta"] for one in deltas) == text == whole["output"][0]["content"][0]["text"]
    first, last = events[0]["response"], events[-1]["response"]
    assert first["status"] == "in_progress" and first["output"] == [] and first["usage"] is None
    assert last["id"] == first["id"] and last["status"] == whole["status"] == "completed"
    assert (
        same_items(last["output"], whole["output"])
        and last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    )
    item_ids = {one["item_id"] for one in events if "item_id" in one}
    assert item_ids == {last["output"][0]["id"]}


def test_usage_is_that_of_a_chat(server: Any) -> None:
    chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "go 0"}]}).json()["usage"]
    usage = server.post("/v1/responses", body("0")).json()["usage"]
    assert usage["input_tokens"] == chat["prompt_tokens"] and usage["output_tokens"] == 4
    assert usage["total_tokens"] == usage["input_tokens"] + 4
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    again = server.post("/v1/responses", body("0")).json()["usage"]
    assert again["input_tokens_details"]["cached_tokens"] > 0


def test_b04_length_is_incomplete(server: Any) -> None:
    whole = server.post("/v1/responses", body("6", max_output_tokens=5)).json()
    events = named_events(server.post("/v1/responses", body("6", max_output_tokens=5, stream=True)))
    last = events[-1]["response"]
    for one in (whole, last):
        assert one["status"] == "incomplete" and one["incomplete_details"] == {"reason": "max_output_tokens"}
        assert one["output"][0]["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete" and same_items(last["output"], whole["output"])


def test_b13_a_failure_in_the_stream_is_no_success(hooked: Any) -> None:
    failed = hooked.post("/v1/responses", {"input": "go N", "stream": True, "max_output_tokens": 5})
    events = named_events(failed)
    assert events[-1]["type"] == "response.failed"
    error = events[-1]["response"]["error"]
    assert error["code"] == "server_error" and "NaN" in error["message"]
    assert not any(one["type"] == "response.completed" for one in events)


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"input": None}, "input", "missing"),
        ({"input": []}, "input", "at least one"),
        ({"input": [{"type": "input_image"}]}, "input", "input_image"),
        ({"input": [5]}, "input", "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "input_image"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"background": True}, "background", "background"),
        ({"conversation": "c"}, "conversation", "previous_response_id"),
        ({"n": 2}, "n", "one answer"),
        ({"truncation": "some"}, "truncation", "some"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools", "code_interpreter"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar"}}]}, "tools", "grammar"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice", "web_search"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "huge"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "schema is missing"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "xml"),
        ({"top_logprobs": 21}, "top_logprobs", "21"),
        ({"input": "go " + "x" * 9000}, "input", "maximum context length"),
    ],
)
def test_refusals_name_the_field(server: Any, fields: dict[str, Any], param: str, word: str) -> None:
    for stream in (False, True):
        answer = server.post("/v1/responses", {**body("0"), **fields, "stream": stream})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param and word in error["message"], error


def test_what_agents_always_send_is_taken(server: Any) -> None:
    """Codex's request: tools of all kinds, a summary asked for, nothing stored."""
    namespace = {"type": "namespace", "name": "team", "description": "d", "tools": [TIME]}
    fields = {
        "tools": [WEATHER, namespace, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go 0"}]},
        ],
    }
    answer = server.post("/v1/responses", {**body("0"), **fields})
    assert answer.status_code == 200, answer.text
    assert server.get(f"/v1/responses/{answer.json()['id']}").status_code == 404


def test_the_sdk_creates_streams_and_parses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="scripted", input="go 4", temperature=0)
    assert whole.output_text == "abcDEFGHIJklm" and whole.status == "completed"
    with client.responses.stream(model="scripted", input="go 4", temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text and kinds[-1] == "response.completed"
    count = client.responses.input_tokens.count(model="scripted", input="go 4")
    assert count.input_tokens == whole.usage.input_tokens  # type: ignore[union-attr]


class Answer(pydantic.BaseModel):
    answer: int


def test_the_sdk_parses_a_form(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="scripted", input="go D", temperature=0, text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer)
    with client.responses.stream(model="scripted", input="go D", temperature=0, text_format=Answer) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_tools_through_the_sdk(client: openai.OpenAI) -> None:
    """B05, B15: calls come whole, each an item of its own, with the arguments that the deltas add up to."""
    whole: Any = client.responses.create(
        model="scripted",
        input="go 9",
        temperature=0,
        tools=[WEATHER, TIME],  # type: ignore[list-item]
    )
    calls = [one for one in whole.output if one.type == "function_call"]
    assert [one.name for one in calls] == [one[0] for one in CALLS] and whole.status == "completed"
    assert [json.loads(one.arguments) for one in calls] == [one[1] for one in CALLS]
    with client.responses.stream(
        model="scripted",
        input="go 9",
        temperature=0,
        tools=[WEATHER, TIME],  # type: ignore[list-item]
    ) as stream:
        kinds = [event.type for event in stream]
        final: Any = stream.get_final_response()
    assert [one.arguments for one in final.output] == [one.arguments for one in whole.output]
    assert kinds.count("response.function_call_arguments.done") == len(CALLS)


def test_a_call_that_is_cut_is_incomplete(server: Any) -> None:
    """B01."""
    fields = {"tools": [WEATHER], "max_output_tokens": 3}
    for stream in (False, True):
        answer = server.post("/v1/responses", body("8", stream=stream, **fields))
        last = named_events(answer)[-1]["response"] if stream else answer.json()
        assert last["status"] == "incomplete"
        assert last["output"][-1]["status"] == "incomplete" and last["output"][-1]["type"] == "function_call"


def test_previous_responses_and_items_are_found(client: openai.OpenAI, server: Any) -> None:
    first = client.responses.create(model="scripted", input="go 0", temperature=0, instructions="Be kind.")
    second = client.responses.create(model="scripted", input="go 4", temperature=0, previous_response_id=first.id)
    by_hand = client.responses.create(
        model="scripted",
        temperature=0,
        store=False,
        input=[
            {"role": "user", "content": "go 0"},
            {"type": "item_reference", "id": first.output[0].id},  # type: ignore[typeddict-item]
            {"role": "user", "content": "go 4"},
        ],
    )
    assert second.usage.input_tokens == by_hand.usage.input_tokens  # type: ignore[union-attr]
    assert client.responses.retrieve(second.id).output_text == "abcDEFGHIJklm"
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [one.type for one in items] == ["message"]
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not stored here"):
        client.responses.retrieve(first.id)
    gone = server.post("/v1/responses", body("0", previous_response_id=first.id))
    assert gone.status_code == 404 and gone.json()["error"]["param"] == "previous_response_id"


def test_truncation_drops_the_oldest_and_says_so(server: Any) -> None:
    """B11: refused by default; cut only where asked for, and visibly."""
    turns = [{"role": role, "content": f"{at} " + "y" * 300} for at in range(12) for role in ("user", "assistant")]
    fields = {"input": [{"role": "system", "content": "Keep me."}, *turns, {"role": "user", "content": "go 0"}]}
    refused = server.post("/v1/responses", body("0", **fields))
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    cut = server.post("/v1/responses", body("0", truncation="auto", **fields)).json()
    assert cut["output"][0]["content"][0]["text"] == " hello there!"
    assert 0 < cut["truncated_items"] < len(turns) and cut["truncation"] == "auto"
    limit = server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert limit // 4 < cut["usage"]["input_tokens"] <= limit * 3 // 4


def test_logprobs_are_those_of_the_text(server: Any) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = server.post("/v1/responses", body("4", **fields)).json()["output"][0]["content"][0]
    assert "".join(one["token"] for one in whole["logprobs"]).startswith(whole["text"])
    assert all(len(one["top_logprobs"]) == 2 for one in whole["logprobs"])
    events = named_events(server.post("/v1/responses", body("4", stream=True, **fields)))
    deltas = [one["logprobs"] for one in events if one["type"] == "response.output_text.delta"]
    assert [score for one in deltas for score in one] == whole["logprobs"][: sum(map(len, deltas))]


THINKING = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{# <think></think> #}"
    "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}[assistant]"
)
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
WEATHER_CALL = CALL % ("get_weather", '{"city": "Paris"}')
NOTE_CALL = CALL % ("note", '{"input": "a\\nb"}')
ANSWER = f"<think>\nhm\n</think>\n\nI look.\n{WEATHER_CALL}\n{NOTE_CALL}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Dictation:
    return Dictation(model(tmp_path_factory.mktemp("thinker"), THINKING))


NOTE = {"type": "custom", "name": "note", "description": "Notes."}


@pytest.mark.parametrize("summary", [None, "auto"])
def test_reasoning_text_and_calls_are_items_in_order(thinker: Dictation, summary: str | None) -> None:
    fields = {"tools": [WEATHER, NOTE], "reasoning": {"summary": summary}, "include": ["reasoning.encrypted_content"]}
    whole = thinker.ask(body("0", **fields), ANSWER, path="/v1/responses").json()
    kinds = [one["type"] for one in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call"]
    reasoning, message, call, custom = whole["output"]
    assert message["content"][0]["text"] == "I look."
    assert call["name"] == "get_weather" and json.loads(call["arguments"]) == {"city": "Paris"}
    assert custom["input"] == "a\nb" and custom["name"] == "note"
    assert unseal(reasoning["encrypted_content"]) == "hm"
    told = reasoning["summary"] if summary else reasoning["content"]
    assert [part["text"] for part in told] == ["hm"] and (summary is None or "content" not in reasoning)
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = named_events(thinker.ask(body("0", stream=True, **fields), ANSWER, path="/v1/responses"))
    last = events[-1]["response"]
    assert [one["type"] for one in last["output"]] == kinds
    dones = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    added = [one["item"]["id"] for one in events if one["type"] == "response.output_item.added"]
    assert dones == last["output"] and added == [one["id"] for one in dones]
    thought = "response.reasoning_summary_text.delta" if summary else "response.reasoning_text.delta"
    assert "".join(one["delta"] for one in events if one["type"] == thought) == "hm"


def test_items_become_turns() -> None:
    table = tool_table([WEATHER, {"type": "namespace", "name": "team", "tools": [TIME, WEATHER]}, NOTE])
    assert [one["function"]["name"] for one in table.functions] == [
        "get_weather",
        "get_time",
        "team__get_weather",
        "note",
    ]
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [], "encrypted_content": seal("deep"), "content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]},
        {"type": "function_call", "call_id": "a", "name": "get_weather", "namespace": "team", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "note", "input": "x"},
        {"type": "function_call_output", "call_id": "a", "output": "sun"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "last"}]},
    ]
    messages = chat_messages(items, table)
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    turn = messages[1]
    assert turn["reasoning_content"] == "deep" and turn["content"][0]["text"] == "well"
    names = [one["function"]["name"] for one in turn["tool_calls"]]
    assert names == ["team__get_weather", "note"]
    assert json.loads(turn["tool_calls"][1]["function"]["arguments"]) == {"input": "x"}
    assert messages[4]["reasoning_content"] == "last"


def test_instructions_go_first() -> None:
    messages = [{"role": "developer", "content": "b"}, {"role": "user", "content": "c"}]
    joined = with_instructions("a", messages)
    assert joined == [{"role": "system", "content": "a\n\nb"}, messages[1]]
    assert with_instructions(None, messages) is messages
    assert ToolTable().place("x") == (None, "x")


def entry(name: str, owner: str, size: int) -> StoredResponse:
    return StoredResponse(name, owner, b"{}", b"[" + b" " * (size - 4) + b"]", 0, 0, (f"item-{name}",))


def test_the_store_is_bounded_and_each_user_apart() -> None:
    store = ResponseStore(4000)
    for at in range(20):
        store.put(entry(f"a{at}", "a", 300))
    assert store.num_bytes <= 4000 // USER_PART and len(store) == 3
    store.put(entry("b", "b", 500))
    assert store.get("a19", "a").response_id == "a19"  # the other user's is untouched
    for user in "cdefgh":
        store.put(entry(user, user, 900))
    assert store.num_bytes <= 4000
    with pytest.raises(ApiError, match="not stored here"):
        store.get("b", "a")
    with pytest.raises(ApiError, match="not stored here"):
        store.get("a0", "a")
    store.put(entry("huge", "z", 2000))
    with pytest.raises(ApiError):
        store.get("huge", "z")
    store.delete("h", "h")
    assert store.find_item("item-h", "h") is None


def test_sealed_text_comes_back_and_nothing_else_does() -> None:
    for text in ("", "hm", "é😀" * 1000):
        assert unseal(seal(text)) == text
    bomb = seal("x" * (5 * 1024 * 1024))
    for token in ("", "gAAAA", "bireme1.", "bireme1.!!", seal("abc")[:-6], bomb):
        assert unseal(token) is None


def test_a_client_that_leaves_ends_its_request(server: Any) -> None:
    fields = body("6", max_output_tokens=2000, stream=True)
    with httpx.stream("POST", server.url + "/v1/responses", json=fields) as answer:
        next(answer.iter_bytes())
    server.wait_idle()
