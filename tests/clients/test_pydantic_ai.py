"""``pydantic-ai``: runs with tools and typed results, over chat completions and over responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from servers import Server
from spoken import say, say_call

pytestmark = pytest.mark.python_package("pydantic-ai-slim")


class Reading(pydantic.BaseModel, extra="forbid"):
    """What a thermometer shows."""

    degrees: int
    place: str = pydantic.Field(max_length=12)


@pytest.fixture(params=["OpenAIChatModel", "OpenAIResponsesModel"])
def model_of(request: pytest.FixtureRequest) -> Callable[[Server, str], Any]:
    from pydantic_ai.models import openai
    from pydantic_ai.providers.openai import OpenAIProvider

    def make(server: Server, name: str) -> Any:
        provider = OpenAIProvider(base_url=server.url + "/v1", api_key="none")
        return getattr(openai, request.param)(name, provider=provider)

    return make


@pytest.fixture
def model(model_of: Callable[[Server, str], Any], spoken_server: Server) -> Any:
    return model_of(spoken_server, "spoken")


def test_a_tool_is_called_and_its_result_answered(model: Any) -> None:
    from pydantic_ai import Agent

    runner = Agent(model, instructions="Be brief.")
    places = []

    @runner.tool_plain
    def weather(place: str) -> str:
        places.append(place)
        return say(f"Fog in {place}.")

    assert runner.run_sync(say_call("weather", place="Turin")).output == "Fog in Turin."
    assert places == ["Turin"]


def test_a_result_of_a_type(model_of: Callable[[Server, str], Any], demo_server: Server) -> None:
    """The result is the forced call of a tool that the package makes of the type."""
    from pydantic_ai import Agent

    runner = Agent(model_of(demo_server, "demo"), output_type=Reading)
    settings = {"temperature": 0, "max_tokens": 60, "parallel_tool_calls": False}
    result = runner.run_sync("It was 7 degrees in Faro.", model_settings=settings)
    assert isinstance(result.output, Reading)


def test_streamed_text(model: Any) -> None:
    from pydantic_ai import Agent

    runner = Agent(model)

    async def parts() -> list[str]:
        async with runner.run_stream(say("One word after another.")) as result:
            return [part async for part in result.stream_text(delta=True)]

    assert "".join(asyncio.run(parts())) == "One word after another."
