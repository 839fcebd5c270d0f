"""The ``llm`` command with a model from extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import Server
from spoken import say, say_call

MODELS = """\
- model_id: {id}
  model_name: {name}
  api_base: "{url}/v1"
  supports_schema: true
  supports_tools: true
"""
FUNCTION = """
def weather(city: str) -> str:
    "The weather in a city."
    return {result!r}
"""

pytestmark = pytest.mark.python_package("llm")


@pytest.fixture
def llm(tmp_path: Path, spoken_server: Server) -> Callable[..., str]:
    """Runs the command in a folder of its own; answers what it prints."""
    program = Path(sys.executable).with_name("llm")

    def run(*arguments: str, url: str = spoken_server.url, name: str = "spoken") -> str:
        (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(id="bireme", name=name, url=url))
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("how", [[], ["--no-stream"]])
def test_a_prompt_is_answered_and_logged(llm: Callable[..., str], how: list[str]) -> None:
    assert llm("prompt", "-m", "bireme", *how, say("Hello, terminal.")) == "Hello, terminal.\n"
    logged = json.loads(llm("logs", "list", "--json"))
    assert logged[0]["response"] == "Hello, terminal."


def test_a_conversation_goes_on(llm: Callable[..., str]) -> None:
    llm("prompt", "-m", "bireme", "-s", "Be brief.", say("First."))
    assert llm("prompt", "-c", say("Second.")) == "Second.\n"


def test_a_python_function_is_called(llm: Callable[..., str]) -> None:
    function = FUNCTION.format(result=say("It hails."))
    assert "It hails." in llm("prompt", "-m", "bireme", "--functions", function, say_call("weather", city="Brno"))


def test_a_schema_is_kept(llm: Callable[..., str], demo_server: Server) -> None:
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"animal": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "maximum": 9}},
            "required": ["animal", "legs"],
            "additionalProperties": False,  # a small model would invent more, for ever
        }
    )
    text = llm("prompt", "-m", "bireme", "--schema", schema, "A cat.", url=demo_server.url, name="demo")
    assert json.loads(text)["animal"] in ("cat", "dog")
