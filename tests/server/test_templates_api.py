"""Chat templates that refuse, or need helpers, as HTTP answers. The application alone: no engine is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import scripted

from bireme.backends.base import BackendInfo
from bireme.core.config import EngineConfig
from bireme.server.app import create_app
from bireme.server.client import EngineClient, EngineState
from bireme.server.frontend import load_frontend
from bireme.server.metrics import Metrics
from bireme.server.names import ServedNames
from bireme.server.settings import EngineSpec, ServerSettings
from bireme.server.state import ServerState

INFO = BackendInfo("sim", "tiny", "F16", 352, 2048, frozenset({307, 308}), 64, 16, 0, 8, 1)


def ask(model: Path, *requests: tuple[str, dict[str, Any]]) -> list[httpx.Response]:
    """Answers of an application over ``model``'s text side."""

    async def everyone() -> list[httpx.Response]:
        settings = ServerSettings(EngineSpec(str(model)))
        client = EngineClient(settings)
        client.state, client.info, client.config = EngineState.READY, INFO, EngineConfig()
        frontend = load_frontend(str(model))
        state = ServerState(settings, client, ServedNames(("tiny",)), Metrics("tiny"), frontend)
        transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            answers = [await http.post(path, json=body) for path, body in requests]
        frontend.pool.shutdown()
        client.terminate()
        return answers

    return asyncio.run(everyone())


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("variant", "messages", "sentence"),
    [
        ("template_raises_on_system", [{"role": "system", "content": "s"}, user("u")], "System role not supported"),
        ("template_alternates", [user("a"), user("b")], "roles must alternate user/assistant"),
        ("template_none", [user("a")], "no chat template"),
    ],
)
def test_refusals_are_400_in_the_templates_words(
    tmp_path: Path, variant: str, messages: list[dict[str, str]], sentence: str
) -> None:
    """A14"""
    body = {"messages": messages}
    for answer in ask(
        scripted.variant(tmp_path, variant),
        ("/v1/chat/completions", body),
        ("/v1/chat/completions", {**body, "stream": True}),
        ("/tokenize", body),
    ):
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["type"] == "invalid_request_error" and error["param"] == "messages"
        assert sentence in error["message"]


@pytest.mark.parametrize("variant", ["template_strftime", "template_parts_only", "template_bos_without_id"])
def test_templates_with_needs_render(tmp_path: Path, variant: str) -> None:
    """A11, A13, A15"""
    (answer,) = ask(scripted.variant(tmp_path, variant), ("/tokenize", {"messages": [user("go 0")]}))
    assert answer.status_code == 200 and answer.json()["tokens"][-1] == ord("0")


def test_one_bos_on_every_road(tmp_path: Path) -> None:
    """A09, A10"""
    bos = scripted.SPECIAL_IDS["<|bos|>"]
    answers = ask(
        scripted.variant(tmp_path, "template_bos_in_template"),
        ("/tokenize", {"messages": [user("hi")]}),
        ("/tokenize", {"prompt": "<|bos|>hello"}),
        ("/tokenize", {"prompt": "hello"}),
        ("/tokenize", {"prompt": "hello", "add_special_tokens": False}),
    )
    counts = [answer.json()["tokens"].count(bos) for answer in answers]
    assert counts == [1, 1, 1, 0]
    assert answers[1].json()["tokens"] == answers[2].json()["tokens"]


def test_template_options_can_not_replace_what_the_server_sets(tmp_path: Path) -> None:
    body = {"messages": [user("hi")], "chat_template_kwargs": {"messages": []}}
    ok = {"messages": [user("hi")], "chat_template_kwargs": {"enable_thinking": False}}
    refused, taken = ask(scripted.SCRIPTED, ("/tokenize", body), ("/tokenize", ok))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "chat_template_kwargs"
    assert taken.status_code == 200
