"""What one request may hold, and how many may wait: each limit has a flag, and a refusal that names both."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from api_bodies import PATIENCE, chat, wait_for

LOW = {
    "--max-messages": "3",
    "--max-tools": "2",
    "--max-prompts": "2",
    "--max-stop-strings": "2",
    "--max-n": "2",
    "--max-logprobs": "3",
    "--max-logit-bias": "2",
    "--max-schema-bytes": "200",
    "--max-schema-depth": "4",
    "--max-body-size": "64KiB",
    "--max-header-size": "4KiB",
}


@pytest.fixture(scope="module")
def strict(start_server: Any) -> Any:
    options = [word for pair in LOW.items() for word in pair]
    server = start_server("--device", "sim", "--cors-origins", "none", *options)
    server.wait_serving()
    return server


def tool(number: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}}}


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {}


MESSAGES = [{"role": "user", "content": "go 0"}, {"role": "assistant", "content": "a"}] * 2
CHAT = [
    ("messages", MESSAGES, "messages holds 4 messages", "3 (--max-messages)"),
    ("tools", [tool(i) for i in range(3)], "tools holds 3 tools", "2 (--max-tools)"),
    ("functions", [tool(i)["function"] for i in range(3)], "functions holds 3", "2 (--max-tools)"),
    ("stop", ["a", "b", "c"], "stop holds 3 strings", "2 (--max-stop-strings)"),
    ("n", 3, "n is 3", "2 (--max-n)"),
    ("top_logprobs", 4, "top_logprobs is 4", "3 (--max-logprobs)"),
    ("logit_bias", {"1": 1, "2": 1, "3": 1}, "logit_bias holds 3 entries", "2 (--max-logit-bias)"),
    ("guided_json", nested(5), "nested more than 4 levels", "--max-schema-depth"),
    ("guided_regex", "a" * 201, "201 bytes", "at most 200 are taken (--max-schema-bytes)"),
]


@pytest.mark.parametrize(("field", "value", "what", "limit"), CHAT, ids=[case[0] for case in CHAT])
def test_chat(strict: Any, field: str, value: Any, what: str, limit: str) -> None:
    for stream in (False, True):
        body = {**chat("0", logprobs=True, max_tokens=2), "stream": stream, field: value}
        refused = strict.post("/v1/chat/completions", body)
        error = refused.json()["error"]
        assert refused.status_code == 400 and error["param"] == field, error
        assert what in error["message"] and limit in error["message"], error


@pytest.mark.parametrize(
    ("field", "value", "what", "limit"),
    [
        ("prompt", ["a", "b", "c"], "prompt holds 3 prompts", "2 (--max-prompts)"),
        ("prompt", [[1], [2], [3]], "prompt holds 3 prompts", "2 (--max-prompts)"),
        ("best_of", 3, "best_of is 3", "2 (--max-n)"),
        ("logprobs", 4, "logprobs is 4", "3 (--max-logprobs)"),
    ],
)
def test_completions(strict: Any, field: str, value: Any, what: str, limit: str) -> None:
    refused = strict.post("/v1/completions", {"prompt": "x", "max_tokens": 2, field: value})
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == field
    assert what in error["message"] and limit in error["message"]


def test_what_is_within_passes(strict: Any) -> None:
    body = chat("0", n=2, stop=["zz", "yy"], logit_bias={"1": 1, "2": 1}, logprobs=True, top_logprobs=3, max_tokens=2)
    assert strict.post("/v1/chat/completions", {**body, "tools": [tool(0), tool(1)]}).status_code == 200
    two = {"prompt": [[120] * 9, [121] * 9], "max_tokens": 2, "logprobs": 3}
    assert strict.post("/v1/completions", two).status_code == 200
    ids = {"prompt": [120] * 100, "max_tokens": 2}  # a hundred tokens are one prompt
    assert strict.post("/v1/completions", ids).status_code == 200


def test_bodies(strict: Any) -> None:
    for content in (b"x" * 70_000, (b"x" * 1000 for _ in range(70))):
        refused = httpx.post(strict.url + "/v1/completions", content=content)
        assert refused.status_code == 413
        message = refused.json()["error"]["message"]
        assert "65536 bytes" in message and "--max-body-size" in message


def send(strict: Any, *parts: bytes) -> bytes:
    """Raw bytes to the server; its answer until it hangs up, or falls silent."""
    host, port = strict.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
            while piece := connection.recv(65536):
                answer += piece
                if b"\r\n\r\n" in answer and b'"status"' in answer:
                    break
        except (ConnectionError, TimeoutError):
            pass
        return answer


def test_headers(strict: Any) -> None:
    """Many, long, endless, and a long line: 431 and the connection closed. What is within passes, behind it too."""
    head = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    for parts in (
        (head, *(b"X-A%d: %s\r\n" % (i, b"y" * 90) for i in range(60)), b"\r\n"),
        (head + b"X-A: " + b"y" * 5000 + b"\r\n\r\n",),
        (head + b"X-A: ", *(b"y" * 1000 for _ in range(200))),
        (b"GET /health?" + b"q" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",),
    ):
        answer = send(strict, *parts)
        if not answer:  # the server had hung up before all was sent; the answer was lost with the connection
            assert len(parts) > 50
            continue
        assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
        assert b"4096 bytes" in answer and b"--max-header-size" in answer and b"connection: close" in answer
    fine = send(strict, head + b"X-A: " + b"y" * 3000 + b"\r\n\r\n")
    assert fine.startswith(b"HTTP/1.1 200 ")
    split = send(strict, head, b"X-A: y\r\n", b"X-B: z\r\n", b"\r\n")
    assert split.startswith(b"HTTP/1.1 200 ")
    body = b'{"prompt":"x"}' + b" " * 20_000  # a large body is no header
    posted = send(
        strict,
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body),
        body,
    )
    assert posted.startswith(b"HTTP/1.1 200 ")


def test_no_page_may_call_where_none_is_named(strict: Any) -> None:
    origin = {"Origin": "http://ui.example"}
    answer = httpx.options(strict.url + "/v1/models", headers={**origin, "Access-Control-Request-Method": "GET"})
    assert "access-control-allow-origin" not in answer.headers
    assert "access-control-allow-origin" not in httpx.get(strict.url + "/v1/models", headers=origin).headers


def test_waiting_per_user(start_server: Any) -> None:
    """--max-queue-per-user: who fills their own line is told so; others are served."""
    hook = {"max_num_seqs": 1, "max_queue_per_user": 2, "max_queue": 50, "step_s": 0.03}
    server = start_server(hook=hook)
    server.wait_serving()

    def body(user: str, trigger: str = "x") -> dict[str, Any]:
        return {"prompt": trigger, "max_tokens": 1000, "ignore_eos": True, "stream": True, "user": user}

    with server.client() as client:
        streams = []
        try:
            for _ in range(3):  # one runs, two wait
                context = client.stream("POST", "/v1/completions", json=body("greedy"))
                response = context.__enter__()
                streams.append(context)
                assert response.status_code == 200
                wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 1)
            refused = server.post("/v1/completions", body("greedy"))
            error = refused.json()["error"]
            assert refused.status_code == 429 and error["code"] == "queue_full"
            assert "2 requests of this user are waiting, the most allowed (max_queue_per_user)" in error["message"]
            assert int(refused.headers["retry-after"]) >= 1
            with client.stream("POST", "/v1/completions", json=body("modest")) as other:
                assert other.status_code == 200
        finally:
            for context in streams:
                context.__exit__(None, None, None)
    server.wait_idle()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--slo", "ttft=fast"), "no term of an objective"),
        (("--trusted-proxies", "10.0.0.1/8"), "trusted_proxies: 10.0.0.1/8 has host bits set"),
        (("--cors-credentials",), "cors_credentials needs cors_origins that are named"),
        (("--max-body-size", "big"), "'big' is not a size"),
    ],
)
def test_wrong_options_end_with_a_line(start_server: Any, options: tuple[str, ...], words: str) -> None:
    server = start_server("--device", "sim", *options)
    assert server.process.wait(PATIENCE) == 2  # what was asked for is wrong
    assert words in server.log and "Traceback" not in server.log


def test_an_open_door_to_the_network_is_said(start_server: Any) -> None:
    for options, warns in (
        (("--host", "0.0.0.0"), True),
        (("--host", "0.0.0.0", "--api-key", "k"), False),
        (("--host", "127.0.0.1"), False),
    ):
        server = start_server("--device", "sim", *options)
        server.wait_listening()
        assert ("it asks for no key" in server.log) == warns
        server.process.kill()
        server.process.wait()


def test_ready_and_live(start_server: Any) -> None:
    """Before the model is there the process lives and is not ready; /health keeps its own words."""
    server = start_server(hook={"load_s": 1.5, "api_keys": ["k"]})
    server.wait_listening()
    assert server.get("/live").json() == {"status": "live"}
    early = server.get("/ready")
    assert (
        early.status_code == 503 and early.json()["error"]["code"] == "loading" and early.headers["retry-after"] == "2"
    )
    assert server.get("/health").json()["status"] == "loading"
    server.wait_ready()
    assert server.get("/ready").json() == {"status": "ready"}
    assert httpx.head(server.url + "/ready").status_code == httpx.head(server.url + "/live").status_code == 200
