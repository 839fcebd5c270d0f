"""Coding assistants from npm, each in a folder with one file: the prompt dictates a call that reads the file, and what
stands in the file dictates the answer to that. So an answer shows a whole turn: call, result, answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from spoken import say, say_call

NOTE = "note.txt"
ANSWER = "The note was read."
CODEX = """\
model = "spoken"
model_provider = "bireme"

[model_providers.bireme]
name = "Bireme"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "BIREME_KEY"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / NOTE).write_text(say(ANSWER) + "\n")
    return folder


@pytest.mark.npm_package("@openai/codex")
def test_codex(node: Any, spoken_server: Server, project: Path) -> None:
    """Over the Responses API."""
    (node.home / "config.toml").write_text(CODEX.format(url=spoken_server.url))
    prompt = say_call("exec_command", cmd=f"cat {NOTE}")
    options = ["--skip-git-repo-check", "--sandbox", "danger-full-access"]
    printed = node.run("codex", "exec", *options, prompt, cwd=project, CODEX_HOME=str(node.home), BIREME_KEY="none")
    assert printed.strip() == ANSWER


@pytest.mark.npm_package("opencode-ai")
def test_opencode(node: Any, spoken_server: Server, project: Path) -> None:
    """Over chat completions, through Vercel's provider for servers like OpenAI's."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Bireme",
        "options": {"baseURL": spoken_server.url + "/v1", "apiKey": "none"},
        "models": {"spoken": {"name": "Spoken"}},
    }
    settings = {"provider": {"bireme": provider}, "model": "bireme/spoken", "autoupdate": False}
    (project / "opencode.json").write_text(json.dumps(settings))
    prompt = say_call("read", filePath=str(project / NOTE))
    assert ANSWER in node.run("opencode", "run", prompt, cwd=project)


@pytest.mark.npm_package("@qwen-code/qwen-code")
def test_qwen_code(node: Any, spoken_server: Server, project: Path) -> None:
    """Over chat completions."""
    prompt = say_call("read_file", file_path=str(project / NOTE))
    where = {"OPENAI_BASE_URL": spoken_server.url + "/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "spoken"}
    printed = node.run("qwen", "--auth-type", "openai", "--prompt", prompt, cwd=project, **where)
    assert printed.strip() == ANSWER


@pytest.mark.npm_package("@continuedev/cli")
def test_continue(node: Any, spoken_server: Server, project: Path) -> None:
    """Over chat completions."""
    model = {"name": "Bireme", "provider": "openai", "model": "spoken", "apiKey": "none", "roles": ["chat"]}
    model["apiBase"] = spoken_server.url + "/v1"
    settings = {"name": "Local", "version": "1.0.0", "schema": "v1", "models": [model]}
    (node.home / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    prompt = say_call("Read", filepath=str(project / NOTE))
    printed = node.run("cn", "--print", "--auto", "--config", str(node.home / "config.yaml"), prompt, cwd=project)
    assert printed.strip() == ANSWER


@pytest.mark.npm_package("@anthropic-ai/claude-code")
def test_claude_code(node: Any, spoken_server: Server, project: Path) -> None:
    """Over /v1/messages."""
    prompt = say_call("Read", file_path=str(project / NOTE))
    where = {
        "ANTHROPIC_BASE_URL": spoken_server.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    printed = node.run("claude", "--print", "--model", "spoken", prompt, cwd=project, **where)
    assert printed.strip() == ANSWER
