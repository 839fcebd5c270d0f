"""``litellm`` by each of its roads to servers of this kind."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from servers import Server
from spoken import say, say_call

pytestmark = pytest.mark.python_package("litellm")

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # asks no other host for prices
    return importlib.import_module("litellm")


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "lm_studio", "llamafile"])
def test_each_provider(litellm: Any, spoken_server: Server, provider: str) -> None:
    where = {"model": f"{provider}/spoken", "api_base": spoken_server.url + "/v1", "api_key": "none"}
    messages = [{"role": "user", "content": say("By way of many.")}]
    whole = litellm.completion(messages=messages, **where)
    assert whole.choices[0].message.content == "By way of many." and whole.usage.completion_tokens == 16
    chunks = litellm.completion(messages=messages, stream=True, stream_options={"include_usage": True}, **where)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "By way of many."
    messages = [{"role": "user", "content": say_call("get_weather", city="Rome")}]
    made = litellm.completion(messages=messages, tools=[TOOL], **where).choices[0]
    assert made.finish_reason == "tool_calls" and made.message.tool_calls[0].function.name == "get_weather"


def test_errors_are_of_its_own_kinds(litellm: Any, spoken_server: Server) -> None:
    where = {"api_base": spoken_server.url + "/v1", "api_key": "none", "num_retries": 0}
    message = [{"role": "user", "content": "hello"}]
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/none-such", messages=message, **where)
    long = [{"role": "user", "content": "long " * 220_000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model="openai/spoken", messages=long, **where)
