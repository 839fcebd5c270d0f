"""The ``openai`` package for Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import openai
import pydantic
import pytest
from servers import Server
from spoken import call, say, say_call

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": PARAMETERS}}


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Paint(pydantic.BaseModel):
    colour: Colour
    litres: int


def user(text: str) -> Any:
    return {"role": "user", "content": text}


@pytest.fixture
def client(spoken_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=spoken_server.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_answered(client: openai.OpenAI, stream: bool) -> None:
    """A turn of two steps, as applications write it; the stream through the package's own helper."""
    messages: list[Any] = [user(say_call("get_weather", city="Århus"))]
    for step in ("call", "answer"):
        if stream:
            with client.chat.completions.stream(model="spoken", messages=messages, tools=[WEATHER]) as events:
                kinds = [event.type for event in events]
                answer: Any = events.get_final_completion()
            assert ("tool_calls.function.arguments.done" in kinds) == (step == "call")
        else:
            answer = client.chat.completions.create(model="spoken", messages=messages, tools=[WEATHER])
        choice = answer.choices[0]
        if step == "call":
            assert choice.finish_reason == "tool_calls" and not choice.message.content
            (made,) = choice.message.tool_calls
            assert json.loads(made.function.arguments) == {"city": "Århus"}
            result = {"role": "tool", "tool_call_id": made.id, "content": say("It rains.")}
            messages += [choice.message.model_dump(exclude_none=True), result]
    assert choice.finish_reason == "stop" and choice.message.content == "It rains."


def test_parallel_calls(client: openai.OpenAI) -> None:
    text = call("get_weather", {"city": "Rome"}) + "\n" + call("get_weather", {"city": "Oslo"})
    answer: Any = client.chat.completions.create(model="spoken", messages=[user(say(text))], tools=[WEATHER])
    calls = answer.choices[0].message.tool_calls
    assert [json.loads(one.function.arguments)["city"] for one in calls] == ["Rome", "Oslo"]
    assert len({one.id for one in calls}) == 2


def test_parsed_tools_have_their_arguments_as_objects(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Paint)
    messages = [user(say_call("Paint", colour="red", litres=3))]
    answer = client.chat.completions.parse(model="spoken", messages=messages, tools=[tool])
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and calls[0].function.parsed_arguments == Paint(colour=Colour.RED, litres=3)


def test_embeddings_or_a_clear_refusal(client: openai.OpenAI) -> None:
    """B27: the package asks for base64 unless told otherwise; both ways the numbers are the same."""
    try:
        plain = client.embeddings.create(model="spoken", input=["a", "b"], encoding_format="float")
    except openai.APIStatusError as refused:
        assert 400 <= refused.status_code < 500 or refused.status_code == 501
        return
    packed = client.embeddings.create(model="spoken", input=["a", "b"])
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6) and one.index == other.index


def test_what_helpers_know_of_a_stream(client: openai.OpenAI) -> None:
    options: Any = {"stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2}
    with client.chat.completions.stream(model="spoken", messages=[user(say("Hi, you."))], **options) as events:
        deltas = [event.delta for event in events if event.type == "content.delta"]
        final = events.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == "Hi, you."
    scores = final.choices[0].logprobs
    assert scores is not None and scores.content is not None
    assert "".join(one.token for one in scores.content[:-1]) == "Hi, you."  # the last is the end token's
    assert final.usage is not None and final.usage.completion_tokens == len("Hi, you.") + 1


def test_a_form_is_kept(demo_server: Server) -> None:
    with openai.OpenAI(base_url=demo_server.url + "/v1", api_key="none", max_retries=0) as client:
        messages = [user("Ten litres of red paint, please.")]
        answer = client.chat.completions.parse(model="demo", messages=messages, response_format=Paint, max_tokens=40)
        assert isinstance(answer.choices[0].message.parsed, Paint)
        with client.chat.completions.stream(
            model="demo", messages=messages, response_format=Paint, max_tokens=40, temperature=0
        ) as events:
            assert any(event.type == "content.done" for event in events)
            assert isinstance(events.get_final_completion().choices[0].message.parsed, Paint)
