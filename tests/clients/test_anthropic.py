"""The ``anthropic`` package over /v1/messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from servers import Server
from spoken import say, say_call

pytestmark = pytest.mark.python_package("anthropic")

TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client(spoken_server: Server) -> Iterator[Any]:
    import anthropic

    with anthropic.Anthropic(base_url=spoken_server.url, api_key="none", max_retries=0) as one:
        yield one


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "spoken", "max_tokens": 1024, "messages": [{"role": "user", "content": text}], **fields}


def test_whole_and_streamed(client: Any) -> None:
    whole = client.messages.create(**ask(say("Good morning.")), system=[{"type": "text", "text": "Be kind."}])
    assert whole.content[0].text == "Good morning." and whole.stop_reason == "end_turn"
    assert whole.usage.output_tokens == 14
    with client.messages.stream(**ask(say("Good morning."))) as stream:
        assert "".join(stream.text_stream) == "Good morning."
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 14


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_answered(client: Any, stream: bool) -> None:
    fields = ask(say_call("get_weather", city="Lima"), tools=[TOOL])
    for step in ("call", "answer"):
        if stream:
            with client.messages.stream(**fields) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**fields)
        if step == "call":
            assert answer.stop_reason == "tool_use"
            (used,) = [block for block in answer.content if block.type == "tool_use"]
            assert used.name == "get_weather" and used.input == {"city": "Lima"}
            result = {"type": "tool_result", "tool_use_id": used.id, "content": say("Drizzle.")}
            fields["messages"] += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [result]},
            ]
    assert answer.content[0].text == "Drizzle." and answer.stop_reason == "end_turn"


def test_tokens_are_counted_and_models_listed(client: Any) -> None:
    fields = ask("How many?", system="Count.")
    del fields["max_tokens"]
    counted = client.messages.count_tokens(**fields).input_tokens
    used = client.messages.create(**fields, max_tokens=1).usage
    assert counted == used.input_tokens + used.cache_read_input_tokens
    assert [one.id for one in client.models.list()] == ["spoken"]
    assert client.models.retrieve("spoken").type == "model"


def test_errors_are_the_packages_own(client: Any) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ask("hello"), "model": "none-such"})
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**ask("hello"), extra_body={"temperature": -1})


def test_stop_sequences_and_length(client: Any) -> None:
    stopped = client.messages.create(**ask(say("one, two, three"), stop_sequences=[", three"]))
    assert stopped.content[0].text == "one, two"
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == ", three"
    cut = client.messages.create(**{**ask(say("one, two, three")), "max_tokens": 3})
    assert cut.content[0].text == "one" and cut.stop_reason == "max_tokens"
