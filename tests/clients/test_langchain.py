"""``langchain-openai``: chat, streams, tools and structured answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from servers import Server
from spoken import say, say_call

pytestmark = pytest.mark.python_package("langchain-openai")


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return say(f"It rains in {city}.")


@pytest.fixture
def chat(spoken_server: Server) -> Callable[..., Any]:
    from langchain_openai import ChatOpenAI

    def make(server: Server = spoken_server, model: str = "spoken", **options: Any) -> Any:
        return ChatOpenAI(base_url=server.url + "/v1", api_key="none", model=model, max_retries=0, **options)

    return make


def test_answers_and_streams(chat: Callable[..., Any]) -> None:
    whole = chat().invoke(say("Hello, chain."))
    assert whole.content == "Hello, chain." and whole.response_metadata["finish_reason"] == "stop"
    chunks = list(chat(stream_usage=True).stream(say("Hello, chain.")))
    assert "".join(chunk.content for chunk in chunks) == "Hello, chain."
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 14
    assert [one.content for one in chat().batch([say("one"), say("two")])] == ["one", "two"]


def test_a_tool_is_called_and_its_result_answered(chat: Callable[..., Any]) -> None:
    model = chat().bind_tools([get_weather], tool_choice="auto", parallel_tool_calls=False)
    question = {"role": "user", "content": say_call("get_weather", city="Bergen")}
    asked = model.invoke([question])
    (made,) = asked.tool_calls
    assert made["name"] == "get_weather" and made["args"] == {"city": "Bergen"}
    result = {"role": "tool", "tool_call_id": made["id"], "content": get_weather(**made["args"])}
    assert model.invoke([question, asked, result]).content == "It rains in Bergen."


def test_through_the_responses_api(chat: Callable[..., Any]) -> None:
    model = chat(use_responses_api=True)
    assert model.invoke(say("Hello again.")).text == "Hello again."
    assert "".join(chunk.text for chunk in model.stream(say("Hello again."))) == "Hello again."
    called = model.bind_tools([get_weather]).invoke(say_call("get_weather", city="Rome"))
    assert [one["args"] for one in called.tool_calls] == [{"city": "Rome"}]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_answers(chat: Callable[..., Any], demo_server: Server, method: str) -> None:
    """Schemas, and forced calls: the demo model's own words."""
    model = chat(demo_server, "demo", temperature=0, max_tokens=60).with_structured_output(Person, method=method)
    assert isinstance(model.invoke("Anna is 31 years old."), Person)
