"""Answers of a given form, from the demo model over HTTP: all that come out are of that form, whatever is asked."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest
from api_bodies import chat, events, joined

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{1,5}$"}]},
    },
    "required": ["name", "age", "tags", "note"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "boolean"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
KINDS = {
    "oneOf": [{"type": "integer"}, {"const": "none"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 2}]
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
HOT = {"temperature": 1.5, "max_tokens": 70}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.fixture(scope="module")
def demo(start_server: Any) -> Any:
    one = start_server("--kv-cache-memory", "96MiB", "--threads", "2", "--grammar-timeout-s", "1", model="demo")
    one.wait_listening()
    one.wait_ready()
    return one


def ask(server: Any, text: str = "Describe Ada.", **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], **HOT, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


def texts(response: httpx.Response) -> list[str]:
    """The answers that ended by themselves."""
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert all(choice["finish_reason"] in ("stop", "length") for choice in choices)
    return [choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"]


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@pytest.mark.parametrize("schema", [PERSON, TREE, KINDS], ids=["person", "tree", "kinds"])
def test_every_answer_of_a_schema_is_valid(demo: Any, schema: Any) -> None:
    found = texts(ask(demo, n=3, seed=1, response_format=schema_format(schema, strict=True)))
    assert found
    for text in found:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": schema_format(PERSON)},
        {"response_format": {"type": "json_object", "schema": PERSON}},
        {"guided_json": PERSON},
        {"guided_json": json.dumps(PERSON)},
        {"structured_outputs": {"json": PERSON}},
        {"json_schema": PERSON},
    ],
    ids=["response_format", "json_object", "guided_json", "text", "structured_outputs", "json_schema"],
)
def test_a_schema_may_come_in_many_fields(demo: Any, fields: Any) -> None:
    answers = {text for text in texts(ask(demo, temperature=0, **fields))}
    assert len(answers) == 1
    jsonschema.validate(json.loads(answers.pop()), PERSON)


def test_json_object_is_an_object_with_an_end_to_its_whitespace(demo: Any) -> None:
    response = ask(demo, "Say hello as JSON.", n=4, seed=3, response_format={"type": "json_object"})
    for text in texts(response):
        assert isinstance(json.loads(text), dict)
    for choice in response.json()["choices"]:
        signs = re.sub(r'"(\\.|[^"\\])*"?', '""', choice["message"]["content"])  # inside a string anything goes
        assert not re.search(r"[ \t]{42}|\n\s*\n", signs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", [{"type": "json_object"}, schema_format(CLOSED)], ids=["object", "schema"])
def test_a_model_that_wants_white_space_for_ever_gets_little(server: Any, form: Any, stream: bool) -> None:
    """B19: between the parts of the JSON it is bounded, so what has an end comes to it. (A text may be all spaces.)"""
    answer = server.post("/v1/chat/completions", chat("E", response_format=form, max_tokens=200, stream=stream))
    choice = (events(answer)[-1] if stream else answer.json())["choices"][0]
    text = joined(events(answer)) if stream else choice["message"]["content"]
    runs = re.findall(r"\s+", re.sub(r'"[^"]*("|$)', "", text))
    assert runs and max(map(len, runs)) <= 42
    if form["type"] == "json_schema":
        assert choice["finish_reason"] == "stop" and isinstance(json.loads(text)["a"], bool)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[A-Z][a-z]{2,6} (19|20)[0-9]{2}"}, "[A-Z][a-z]{2,6} (19|20)[0-9]{2}"),
        ({"structured_outputs": {"regex": r"^\d{3}-\d{2}$"}}, r"\d{3}-\d{2}"),
        ({"guided_choice": ["yes", "no", 'per"haps\n']}, 'yes|no|per"haps\n'),
        ({"guided_grammar": 'root ::= "the " animal+\nanimal ::= "cat" | "dog"'}, "the (cat|dog)+"),
        ({"structured_outputs": {"grammar": 'start: "a" B\nB: /[0-9]{2}/'}}, "a[0-9]{2}"),
        ({"grammar": "root ::= [0-9]{4}"}, "[0-9]{4}"),
    ],
)
def test_expressions_choices_and_grammars(demo: Any, fields: Any, pattern: str) -> None:
    response = ask(demo, n=3, seed=2, **fields)
    assert all(re.fullmatch(pattern, text) for text in texts(response))
    assert len(texts(response)) == 3 or "animal+" in str(fields)


def test_completions_follow_grammars_too(demo: Any) -> None:
    body = {"prompt": ["Two and two is", "A colour:"], "n": 2, **HOT, "guided_choice": ["four", "blue"]}
    response = httpx.post(f"{demo.url}/v1/completions", json=body, timeout=60).json()
    assert [choice["index"] for choice in response["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in response["choices"]} <= {"four", "blue"}


def test_a_stream_is_the_same_answer_with_its_logprobs(demo: Any) -> None:
    fields = {"seed": 7, "response_format": schema_format(PERSON), "logprobs": True, "top_logprobs": 2}
    whole = ask(demo, **fields).json()["choices"][0]
    pieces, tokens, finish = [], 0, None
    body = {"messages": [{"role": "user", "content": "Describe Ada."}], **HOT, **fields, "stream": True}
    with httpx.stream("POST", f"{demo.url}/v1/chat/completions", json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            pieces.append(choice["delta"].get("content") or "")
            tokens += len((choice.get("logprobs") or {}).get("content") or ())
            finish = choice["finish_reason"] or finish
    assert "".join(pieces) == whole["message"]["content"] and finish == whole["finish_reason"]
    assert tokens == len(whole["logprobs"]["content"]) > 5


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_can_be_forced(demo: Any, choice: Any) -> None:
    response = ask(demo, "Tell me a joke.", tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, n=3, seed=4)
    assert response.status_code == 200, response.text
    for one in response.json()["choices"]:
        if one["finish_reason"] == "length":
            continue
        (call,) = one["message"]["tool_calls"]
        assert call["function"]["name"] == "weather" and not one["message"]["content"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), TOOL["function"]["parameters"])


def test_with_tools_a_form_is_that_of_an_answer_without_calls(demo: Any) -> None:
    response = ask(demo, tools=[TOOL], response_format=schema_format(PERSON), n=4, seed=5)
    for choice in response.json()["choices"]:
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
        else:
            assert choice["finish_reason"] in ("tool_calls", "length")


def test_twenty_at_once_some_free_some_not(demo: Any) -> None:
    def free(i: int) -> str:
        return str(ask(demo, f"Count to {i}.", temperature=0, max_tokens=8).json()["choices"][0]["message"]["content"])

    def bound(i: int) -> None:
        schema = {"type": "object", "properties": {f"k{i}": {"type": "integer"}}, "required": [f"k{i}"]}
        for text in texts(ask(demo, seed=i, max_tokens=40, response_format=schema_format(schema))):
            jsonschema.validate(json.loads(text), schema)

    alone = {i: free(i) for i in range(0, 20, 5)}
    with ThreadPoolExecutor(20) as pool:
        jobs = [pool.submit(free if i % 2 == 0 or i in alone else bound, i) for i in range(20)]
        answers = [job.result() for job in jobs]
    assert {i: answers[i] for i in alone} == alone
    demo.wait_idle()


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": schema_format({"type": "strng"})}, "response_format", "strng"),
        ({"response_format": schema_format({"$ref": "#/nowhere"})}, "response_format", "nowhere"),
        (
            {"response_format": schema_format({"type": "string", "pattern": "^(unclosed$"})},
            "response_format",
            "unclosed",
        ),
        ({"response_format": schema_format({"type": "array", "uniqueItems": True})}, "response_format", "uniqueItems"),
        (
            {"response_format": schema_format({"x-guidance": {"lenient": True}, "uniqueItems": True})},
            "response_format",
            "",
        ),
        ({"response_format": schema_format(nested(70))}, "response_format", "--max-schema-depth"),
        ({"response_format": schema_format({"enum": ["x" * 300_000]})}, "response_format", "--max-schema-bytes"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"response_format": schema_format({"$ref": "#"})}, "response_format", "nothing"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_regex": "("}, "guided_regex", "regex"),
        ({"guided_regex": ""}, "guided_regex", "empty"),
        ({"guided_choice": []}, "guided_choice", "list"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar", "kept"),
        ({"guided_grammar": "start: start"}, "guided_grammar", "nothing"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "exactly one"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "both"),
        (
            {
                "tools": [{**TOOL, "function": {"name": "f", "parameters": {"type": "strng"}}}],
                "tool_choice": "required",
            },
            "tool_choice",
            "strng",
        ),
    ],
)
def test_what_can_not_be_kept_to_is_refused_by_name(demo: Any, fields: Any, param: str, words: str) -> None:
    """B17"""
    for more in ({}, {"stream": True}):
        response = ask(demo, **fields, **more)
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"] == param and words in error["message"], error


BOMBS = {
    "enum": {"guided_json": {"enum": [f"value number {i}" for i in range(8000)]}},
    "expression": {"guided_regex": "(a{1,1000}){1,1000}"},
    "long expression": {"guided_regex": "x{1000000}"},
    "brackets": {"guided_regex": "(" * 3000 + "a" + ")" * 3000},
    "minItems": {"guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 10**6}},
    "minLength": {"guided_json": {"type": "string", "minLength": 10**9}},
    "multipleOf": {"guided_json": {"type": "integer", "multipleOf": 1000003}},
    "allOf": {
        "guided_json": {
            "allOf": [{"anyOf": [{"required": [f"k{i}{j}"]} for j in range(6)]} for i in range(8)],
            "type": "object",
        }
    },
    "references": {
        "guided_json": {
            "$defs": {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{(i + 1) % 3000}"}} for i in range(3000)},
            "$ref": "#/$defs/d0",
        }
    },
    "rules": {"guided_grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9000)) + 'r9000: "a"'},
    "left recursion": {"guided_grammar": 'start: start "a" | "b"'},
    "lookahead of a thousand": {"guided_regex": "(.*a.{18}.*b){10}"},
}


def test_bombs_end_in_a_refusal_or_an_answer_while_others_flow(demo: Any) -> None:
    arrivals: list[float] = []
    stop = threading.Event()

    def flow() -> None:
        body = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 2000, "ignore_eos": True}
        with httpx.stream(
            "POST", f"{demo.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60
        ) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    arrivals.append(time.monotonic())
                if stop.is_set():
                    return

    with ThreadPoolExecutor(4) as pool:
        flowing = pool.submit(flow)
        found = dict(zip(BOMBS, pool.map(lambda name: ask(demo, max_tokens=4, **BOMBS[name]), BOMBS), strict=True))
        stop.set()
        flowing.result()
    codes = {name: response.status_code for name, response in found.items()}
    assert set(codes.values()) <= {200, 400}, (codes, demo.log[-3000:])
    assert codes["brackets"] == codes["references"] == codes["rules"] == codes["multipleOf"] == codes["allOf"] == 400
    assert codes["enum"] == codes["minItems"] == codes["left recursion"] == 200
    assert len(arrivals) > 20
    assert "unexpectedly" not in demo.log  # the engine is the same as before
    assert ask(demo, guided_choice=["fine"]).json()["choices"][0]["message"]["content"] == "fine"


def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing(demo: Any) -> None:
    schema = {"type": "integer", "multipleOf": 1000033}  # takes longer than is allowed
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "x"}], "guided_json": schema, "stream": stream}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{demo.url}/v1/chat/completions", json=body, timeout=0.4)
    demo.wait_idle()
    assert texts(ask(demo, guided_choice=["here"])) == ["here"]
