"""OpenAI's packages for Node: openai_node.cjs and openai_agents.cjs use them, this looks at what they got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from spoken import say, say_call


@pytest.mark.npm_package("openai")
def test_what_an_application_does(node: Any, spoken_server: Server, tmp_path: Path) -> None:
    prompts = {"text": say("Hej, Node."), "call": say_call("get_weather", city="Kyiv"), "result": say("Sun.")}
    script = str(Path(__file__).with_name("openai_node.cjs"))
    printed = node.run("node", script, spoken_server.url, json.dumps(prompts), cwd=tmp_path)
    found = json.loads(printed)
    assert found["models"] == ["spoken"]
    assert found["whole"]["message"]["content"] == found["streamed"] == found["response"] == "Hej, Node."
    assert found["whole"]["finish_reason"] == "stop" and found["usage"]["completion_tokens"] == 11
    assert found["city"] == "Kyiv" and found["ran"] == "Sun."
    assert found["events"][0] == "response.created" and found["events"][-1] == "response.completed"
    assert found["error"] == {"status": 404, "code": "model_not_found", "kind": "NotFoundError"}


@pytest.mark.npm_package("@openai/agents")
def test_agents(node: Any, spoken_server: Server, tmp_path: Path) -> None:
    prompts = {"text": say("Streamed."), "call": say_call("get_weather", city="Kyiv"), "result": say("It snows.")}
    script = str(Path(__file__).with_name("openai_agents.cjs"))
    printed = node.run("node", script, spoken_server.url, json.dumps(prompts), cwd=tmp_path)
    said = {"called": "It snows.", "streamed": "Streamed."}
    assert json.loads(printed) == {"chat_completions": said, "responses": said}
