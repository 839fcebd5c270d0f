"""``pydantic-ai``: runs with tools and typed results, over chat completions and over responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from servers import Server
from spoken import say, say_call


class Reading(pydantic.BaseModel):
    """What a thermometer shows."""

    degrees: int
    place: str


@pytest.fixture(params=["OpenAIChatModel", "OpenAIResponsesModel"])
def model(request: pytest.FixtureRequest, package: Callable[[str], Any], spoken_server: Server) -> Any:
    package("pydantic_ai")
    provider = package("pydantic_ai.providers.openai").OpenAIProvider(
        base_url=spoken_server.url + "/v1", api_key="none"
    )
    return getattr(package("pydantic_ai.models.openai"), request.param)("spoken", provider=provider)


def test_a_tool_is_called_and_its_result_answered(model: Any, package: Callable[[str], Any]) -> None:
    runner = package("pydantic_ai").Agent(model, instructions="Be brief.")
    places = []

    @runner.tool_plain
    def weather(place: str) -> str:
        places.append(place)
        return say(f"Fog in {place}.")

    assert runner.run_sync(say_call("weather", place="Turin")).output == "Fog in Turin."
    assert places == ["Turin"]


def test_a_result_of_a_type(model: Any, package: Callable[[str], Any]) -> None:
    """The result is the call of a tool that the package makes of the type."""
    runner = package("pydantic_ai").Agent(model, output_type=Reading)
    result = runner.run_sync(say_call("final_result", degrees=7, place="Faro"))
    assert result.output == Reading(degrees=7, place="Faro")


def test_streamed_text(model: Any, package: Callable[[str], Any]) -> None:
    runner = package("pydantic_ai").Agent(model)

    async def parts() -> list[str]:
        async with runner.run_stream(say("One word after another.")) as result:
            return [part async for part in result.stream_text(delta=True)]

    assert "".join(asyncio.run(parts())) == "One word after another."
