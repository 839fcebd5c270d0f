"""``smolagents``: agents that write code, and agents that call tools."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from servers import Server
from spoken import say

pytestmark = pytest.mark.python_package("smolagents")

CODE = "Thought: that is easy.\n<code>\nfinal_answer(str(6 * 7))\n</code>"


@pytest.fixture
def smolagents() -> Any:
    return importlib.import_module("smolagents")


def model(smolagents: Any, server: Server, name: str, **options: Any) -> Any:
    return smolagents.OpenAIServerModel(name, api_base=server.url + "/v1", api_key="none", **options)


@pytest.mark.parametrize("stream", [False, True])
def test_code_is_run(smolagents: Any, spoken_server: Server, stream: bool) -> None:
    """The agent's stop strings end the answer at the code's end."""
    agent = smolagents.CodeAgent([], model(smolagents, spoken_server, "spoken"), max_steps=1, stream_outputs=stream)
    assert agent.run(say(CODE + "\nObservation: never read")) == "42"


def test_a_tool_is_called_whatever_the_model_would_say(smolagents: Any, demo_server: Server) -> None:
    """Agents say ``tool_choice: "required"``."""

    @smolagents.tool
    def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Where.
        """
        return f"It rains in {city}."

    asked = model(smolagents, demo_server, "demo", parallel_tool_calls=False, temperature=0, max_tokens=200)
    agent = smolagents.ToolCallingAgent([weather], asked, max_steps=1)
    agent.run("Say hello.")
    (step,) = (step for step in agent.memory.steps if getattr(step, "tool_calls", None))
    (call,) = step.tool_calls
    assert call.name in ("weather", "final_answer") and step.observations
