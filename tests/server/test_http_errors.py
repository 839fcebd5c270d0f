"""Errors in OpenAI's shape, names, bodies, ids: what is the same on every endpoint."""

from __future__ import annotations

import gzip
import socket
from typing import Any

import httpx
import orjson
import pytest
from api_bodies import chat


def check(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["code"] == code
    return error


def test_unknown_paths_and_methods(server: Any) -> None:
    check(server.get("/v1/nothing"), 404)
    check(server.get("/v1/chat/completions"), 405)
    for path, allowed in (
        ("/health", "GET, HEAD"),
        ("/v1/models", "GET, HEAD"),
        ("/v1/chat/completions", "POST"),
        ("/v1/responses/x", "DELETE, GET"),
    ):
        refused = httpx.put(server.url + path)
        check(refused, 405)
        assert refused.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/scripted", "/version", "/server_info", "/dashboard", "/ready"]
)
def test_probes_may_ask_for_the_head_alone(server: Any, path: str) -> None:
    """RFC 9110, 9.3.2: what GET would answer, without the body."""
    head, get = httpx.head(server.url + path), httpx.get(server.url + path)
    assert head.status_code == get.status_code < 400 and not head.content
    assert head.headers.get("content-type") == get.headers.get("content-type")
    assert head.headers.get("content-length") == get.headers.get("content-length")
    assert httpx.head(server.url + "/v1/models/none").status_code == 404


def test_compressed_bodies_are_named_as_such(server: Any) -> None:
    body = gzip.compress(b'{"messages": [{"role": "user", "content": "0"}]}')
    for path in ("/v1/chat/completions", "/v1/embeddings", "/tokenize"):
        refused = httpx.post(server.url + path, content=body, headers={"content-encoding": "gzip"})
        error = check(refused, 415, "unsupported_content_encoding")
        assert "'gzip'" in error["message"]
    plain = httpx.post(server.url + "/tokenize", json={"prompt": "0"}, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_plain_bodies(server: Any, stream: bool) -> None:
    """RFC 9112, 6.1: no chunks to HTTP/1.0. A body of unknown length ends with the connection, even if kept alive."""
    body = orjson.dumps(chat("0", stream=stream, stream_options={"include_usage": True} if stream else None))
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        head, _, answer = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding" not in head.lower()
    if stream:
        events = answer.split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""] and all(one.startswith(b"data: ") for one in events[:-1])
        assert orjson.loads(events[-3][6:])["usage"]["completion_tokens"] > 0
    else:
        assert orjson.loads(answer)["choices"][0]["message"]["content"] == " hello there!"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", [1, 2]),
        ("bad_words", ["no"]),
        ("prompt_logprobs", 0),
        ("truncate_prompt_tokens", 5),
        ("use_beam_search", True),
    ],
)
def test_what_would_change_the_answer_is_not_ignored(server: Any, field: str, value: Any) -> None:
    for path, body in (("/v1/chat/completions", chat("0")), ("/v1/completions", {"prompt": "x0"})):
        error = check(server.post(path, {**body, field: value}), 400)
        assert error["param"] == field and field in error["message"]
        off = None if field in ("prompt_logprobs", "truncate_prompt_tokens") else type(value)()
        assert server.post(path, {**body, field: off, "max_tokens": 1}).status_code == 200
    assert check(server.post("/v1/chat/completions", chat("0", echo=True)), 400)["param"] == "echo"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"messages": "\xff"}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_wrong_bodies(server: Any, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        error = check(httpx.post(server.url + path, content=body), 400)
        assert error["type"] == "invalid_request_error"


def test_body_needs_no_content_type_and_nul_is_text(server: Any) -> None:
    body = b'{"messages":[{"role":"user","content":"\\u0000go 0"}],"temperature":0}'
    answer = httpx.post(server.url + "/v1/chat/completions", content=body)
    assert answer.json()["choices"][0]["message"]["content"] == " hello there!"


def test_body_over_the_limit_is_refused(server: Any) -> None:
    size = 33 * 1024 * 1024
    check(httpx.post(server.url + "/tokenize", content=b"x" * size), 413)
    pieces = (b"x" * 1024 * 1024 for _ in range(33))
    check(httpx.post(server.url + "/tokenize", content=pieces), 413)


def test_model_names(server: Any) -> None:
    """B28"""
    listed = server.get("/v1/models").json()["data"]
    name = listed[0]["id"]
    assert name == "scripted" and listed[0]["max_model_len"] == 2048 and listed[0]["object"] == "model"
    for accepted in (name, name + ".gguf", f"any/{name}", None, ""):
        response = server.post("/v1/chat/completions", chat("0", model=accepted))
        if accepted == f"any/{name}":
            error = check(response, 404, "model_not_found")
            assert error["param"] == "model" and name in error["message"]
        else:
            assert response.json()["model"] == name
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        check(server.post(path, {"model": "no-such"}), 404, "model_not_found")
    assert server.get(f"/v1/models/{name}").json()["id"] == name
    check(server.get("/v1/models/org/no-such"), 404, "model_not_found")


def test_request_ids(server: Any) -> None:
    given = server.post("/v1/chat/completions", chat("0"), **{"X-Request-Id": "trace-42"})
    assert given.headers["x-request-id"] == "trace-42"
    assert "request trace-42-" in server.log
    made = server.get("/health").headers["x-request-id"]
    assert made and made != server.get("/health").headers["x-request-id"]
    odd = server.get("/health", **{"X-Request-Id": "a b\t" + "x" * 500})
    assert odd.headers["x-request-id"] != "a b\t" + "x" * 500
    assert check(server.get("/nope", **{"X-Request-Id": "e1"}), 404) and True


def test_prompts_never_reach_the_log(server: Any) -> None:
    body = chat("0")
    body["messages"].insert(0, {"role": "system", "content": "xyzzy-secret"})
    server.post("/v1/chat/completions", body)
    server.post("/v1/chat/completions", {**body, "temperature": -1})
    server.post("/v1/completions", {"prompt": "xyzzy-secret", "stream": True})
    assert "xyzzy" not in server.log and "hello there" not in server.log


def test_preflight_from_any_page(server: Any) -> None:
    """B29, without keys; with keys in test_server_options."""
    asked = {"Origin": "http://ui.example", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(server.url + "/v1/chat/completions", headers=asked)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "*"
    refused = httpx.post(server.url + "/v1/completions", content=b"{", headers={"Origin": "http://ui.example"})
    assert refused.headers["access-control-allow-origin"] == "*"  # else the page can't read the error


def test_no_page_of_the_server_calls_another_host(server: Any) -> None:
    """The API's description is where the root says; the pages FastAPI would make of it load scripts from elsewhere."""
    description = server.get(server.get("/").json()["docs"])
    assert description.status_code == 200 and "paths" in description.json()
    for path in ("/docs", "/redoc"):
        check(server.get(path), 404)


def test_openapi_describes_the_bodies(server: Any) -> None:
    document = server.get("/openapi.json").json()
    operation = document["paths"]["/v1/chat/completions"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rsplit("/", 1)[-1]]
    assert {"messages", "max_completion_tokens", "temperature"} <= set(schema["properties"])


def test_probes(server: Any) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert httpx.head(server.url + "/health").status_code == 200
    assert httpx.head(server.url + "/metrics").status_code == 200
    assert httpx.head(server.url + "/").status_code == 200
    from bireme import __version__

    assert server.get("/version").json() == {"version": __version__}
