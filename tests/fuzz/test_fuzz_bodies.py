"""Bodies that nobody should send, made from ones that people do: a valid one with some fields changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import pytest
from hypothesis import strategies as st
from servers import Server

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
USED = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {"city": "Rome"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": CALL}]},
            {"role": "tool", "tool_call_id": "c", "content": "go 4"},
        ],
        "max_tokens": 4,
        "temperature": 0,
        "n": 1,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "logprobs": True,
        "top_logprobs": 1,
        "stream": False,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": WEATHER}],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "seed": 1,
        "user": "u",
    },
    "/v1/completions": {
        "prompt": ["x4"],
        "max_tokens": 4,
        "n": 1,
        "best_of": 1,
        "echo": False,
        "suffix": None,
        "logprobs": 1,
        "stop": None,
        "stream": False,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "top_p": 1,
        "top_k": 0,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "go 4"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": None},
            {"type": "function_call", "call_id": "c", **CALL},
            {"type": "function_call_output", "call_id": "c", "output": "go 4"},
        ],
        "instructions": "Be brief.",
        "max_output_tokens": 4,
        "tools": [{"type": "function", **WEATHER}],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "include": [],
        "stream": False,
        "store": False,
        "previous_response_id": None,
    },
    "/v1/messages": {
        "max_tokens": 4,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go 4"}]},
            {"role": "assistant", "content": [USED, {"type": "thinking", "thinking": "hm", "signature": "s"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "go 4"}]},
        ],
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "get_weather", "input_schema": WEATHER["parameters"]}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["x"],
        "stream": False,
    },
    "/v1/embeddings": {"input": ["a"], "encoding_format": "base64", "dimensions": None},
    "/tokenize": {"prompt": "abc", "add_special_tokens": False},
    "/detokenize": {"tokens": [1, 2]},
}
#: 499 is for a client that went away, 404 for embeddings or models that aren't here.
EXPECTED = {200, 400, 404, 413, 429}

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    -(2**63) - 1,
    2**64,
    90,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "\0",
    "\ud800",
    "a\udfffb",
    "\U0010ffff",
    "5",
    "x" * 5000,
    [],
    [[]],
    {},
    [None],
    ["\ud800"],
    [10**30],
    {"\0": "\ud800"},
    {"type": "\ud800"},
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}},
    [{"role": "\0", "content": None}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}],
]
odd = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def changed(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A path and its body with one to three places changed, anywhere in it."""
    path = draw(st.sampled_from(sorted(BODIES)))
    body = json.loads(json.dumps(BODIES[path]))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = body
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys)) if keys else None
            if key is None:
                break
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            place[key] = copy.deepcopy(draw(odd))
            break
    return path, body


@pytest.fixture(scope="module")
def client(fuzzed_server: Server) -> Any:
    with httpx.Client(base_url=fuzzed_server.url, timeout=20) as one:
        yield one


@pytest.mark.parametrize("path", sorted(set(BODIES) - {"/v1/embeddings"}))
def test_the_bodies_themselves_are_good(client: httpx.Client, path: str) -> None:
    """Else the changes would show nothing. A simulated device has no embeddings."""
    assert client.post(path, json=BODIES[path]).status_code == 200


@hypothesis.seed(20261130)
@hypothesis.settings(
    max_examples=300,
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(changed())
def test_an_odd_body_is_answered_or_refused(client: httpx.Client, case: tuple[str, dict[str, Any]]) -> None:
    path, body = case
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in EXPECTED, (path, body, answer.text)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"], "a refusal says why"


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.parametrize("value", ODD, ids=[str(at) for at in range(len(ODD))])
def test_every_field_takes_or_refuses_odd_values(client: httpx.Client, path: str, value: Any) -> None:
    """No field of any body leads to a 5xx, whichever value it gets."""
    for field in BODIES[path]:
        body = json.dumps({**BODIES[path], field: value})
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in EXPECTED, (field, answer.text)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside ``value``."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*at, key))


@pytest.mark.parametrize("path", sorted(BODIES))
def test_every_place_takes_or_refuses_values_of_other_kinds(client: httpx.Client, path: str) -> None:
    """However deep: objects and lists where a word is expected are no keys of a table."""
    for way in places(BODIES[path]):
        for value in ({"a": 1}, ["a"], 5, None, True, "\0", "x"):
            body = copy.deepcopy(BODIES[path])
            inner: Any = body
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = value
            answer = client.post(path, json=body)
            assert answer.status_code in EXPECTED, (way, value, answer.text)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"{" * 3000,
        b"[" * 200_000,
        b'{"messages":' + b"9" * 10_000 + b"}",
    ],
)
@pytest.mark.parametrize("path", sorted(BODIES))
def test_what_is_no_object_is_refused(client: httpx.Client, path: str, content: bytes) -> None:
    assert client.post(path, content=content).status_code in {400, 404}


@pytest.mark.parametrize("path", sorted(BODIES))
def test_other_methods_are_refused(client: httpx.Client, path: str) -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"):
        answer = client.request(method, path)
        assert answer.status_code == 405 and "POST" in answer.headers["allow"], method
    assert client.request("X-ODD", path).status_code == 400  # none that HTTP knows
