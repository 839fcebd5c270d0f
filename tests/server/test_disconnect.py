"""A client that goes away takes its request with it, whatever the request was doing."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest
from api_bodies import PATIENCE, chat, wait_for


@contextmanager
def raw_post(server: Any, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A request on a socket of its own, closed without a word at the end."""
    url = httpx.URL(server.url)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with socket.create_connection((url.host, url.port or 80)) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(head + data)
        yield connection


def aborted(server: Any) -> float:
    return float(server.metrics()['vllm:request_success_total{finished_reason="abort"}'])


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        part = connection.recv(65536)
        assert part, data
        data += part
    return data


ENDLESS = chat("6", max_tokens=2000, ignore_eos=True)
MANY = {**ENDLESS, "n": 32}  # some seconds, on the fastest of these servers
TOKEN = b'"delta":{"content":'


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["server", "hooked"])
def test_while_tokens_come(request: pytest.FixtureRequest, where: str, stream: bool) -> None:
    """C13. ``hooked`` has a decorator middleware around the application."""
    server = request.getfixturevalue(where)
    before = server.metrics()
    with raw_post(server, "/v1/chat/completions", {**MANY, "stream": stream}) as connection:
        if stream:
            read_until(connection, TOKEN)
        made = before["vllm:generation_tokens_total"]
        assert wait_for(lambda: server.metrics()["vllm:generation_tokens_total"] > made)
    assert wait_for(lambda: aborted(server) == before['vllm:request_success_total{finished_reason="abort"}'] + 1)
    server.wait_idle()
    after = server.metrics()
    assert after["bireme:kv_blocks_live"] == 0
    made = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert 0 < made < 32 * 2000 * 0.95


def test_several_choices_and_prompts(paced: Any) -> None:
    body = {"prompt": ["x6", "xC"], "n": 2, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    before = aborted(paced)
    with raw_post(paced, "/v1/completions", body) as one:
        read_until(one, b"tock")
        assert wait_for(lambda: paced.metrics()["vllm:num_requests_running"] == 4)
    assert wait_for(lambda: aborted(paced) > before)
    paced.wait_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_in_the_prefill(hooked: Any, stream: bool) -> None:
    """The step under way can't be called back; nothing comes after it."""
    before = aborted(hooked)
    with raw_post(hooked, "/v1/chat/completions", {**chat("Z", max_tokens=2000), "stream": stream}):
        time.sleep(0.5)
    assert wait_for(lambda: aborted(hooked) == before + 1)
    hooked.wait_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_in_the_queue(paced_small: Any, stream: bool) -> None:
    """One sequence runs at once: the second request waits, goes away, and the third is served."""
    with raw_post(paced_small, "/v1/chat/completions", {**ENDLESS, "stream": True}) as first:
        read_until(first, TOKEN)
        before = aborted(paced_small)
        with raw_post(paced_small, "/v1/chat/completions", {**ENDLESS, "stream": stream}):
            assert wait_for(lambda: paced_small.metrics()["vllm:num_requests_waiting"] == 1)
        assert wait_for(lambda: aborted(paced_small) == before + 1)
        assert wait_for(lambda: paced_small.metrics()["vllm:num_requests_waiting"] == 0)
    answer = paced_small.post("/v1/chat/completions", chat("0")).json()
    assert answer["choices"][0]["message"]["content"] == " hello there!"


def test_full_queue_answers_429(paced_small: Any) -> None:
    body = {**ENDLESS, "stream": True}
    with raw_post(paced_small, "/v1/chat/completions", body) as first:
        read_until(first, TOKEN)
        with raw_post(paced_small, "/v1/chat/completions", body):
            assert wait_for(lambda: paced_small.metrics()["vllm:num_requests_waiting"] == 1)
            for stream in (False, True):
                full = paced_small.post("/v1/chat/completions", {**ENDLESS, "stream": stream})
                assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1
                assert full.json()["error"]["type"] == "rate_limit_error"
    paced_small.wait_idle()
    assert paced_small.get("/health").status_code == 200


def test_aborted_requests_are_in_every_metric(paced: Any) -> None:
    """F05: five streams closed early; totals and per-request sums move alike."""
    paced.wait_idle()
    before = paced.metrics()
    for _ in range(5):
        with raw_post(paced, "/v1/chat/completions", {**ENDLESS, "stream": True}) as connection:
            read_until(connection, TOKEN)
    assert wait_for(lambda: aborted(paced) == before['vllm:request_success_total{finished_reason="abort"}'] + 5)
    paced.wait_idle()
    after = paced.metrics()
    moved = {name: after[name] - before.get(name, 0) for name in after}
    assert moved["vllm:prompt_tokens_total"] == moved["vllm:request_prompt_tokens_sum"] > 0
    assert moved["vllm:generation_tokens_total"] == moved["vllm:request_generation_tokens_sum"] > 0
    assert moved["vllm:request_prompt_tokens_count"] == moved["vllm:e2e_request_latency_seconds_count"] == 5
    assert ": abort; prompt" in paced.log


#: Requests that would go on for long, by every road into the engine.
LONG = {
    "/v1/chat/completions": {**ENDLESS, "n": 2},
    "/v1/completions": {"prompt": ["x6", "xC"], "max_tokens": 2000, "ignore_eos": True},
    "/v1/responses": {"input": "go 6", "max_output_tokens": 1900},
    "/v1/messages": {"messages": [{"role": "user", "content": "go 6"}], "max_tokens": 1900},
}
PHASES = ("connect", "head", "body", "sent", "waiting", "streaming", "whole", "form")


async def leave(port: int, phase: str, rng: random.Random) -> None:
    """Connect, go as far as ``phase``, and be gone, with a reset half of the time."""
    path, fields = rng.choice(list(LONG.items()))
    body: dict[str, Any] = {**fields, "stream": phase != "whole"}
    if phase == "form":
        path, number = "/v1/chat/completions", rng.randrange(10**6)
        body = {**ENDLESS, "stream": True, "guided_regex": f"[a-z]{{1500}}{number}"}
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    sent = {"connect": b"", "head": head[: rng.randrange(len(head))], "body": head + data[: rng.randrange(len(data))]}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if rng.random() < 0.5:
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.write(sent.get(phase, head + data))
    await writer.drain()
    if phase == "streaming":
        for _ in range(rng.randrange(1, 6)):
            await asyncio.wait_for(reader.read(500), PATIENCE)
    elif phase not in ("connect", "sent"):
        await asyncio.sleep(rng.random() * 0.15)
    writer.transport.abort() if rng.random() < 0.5 else writer.close()


def test_five_hundred_that_leave_at_any_time_leave_nothing(hooked: Any) -> None:
    """C13: no sequence, no block, no task and no connection; by every road, in every phase, eighty at once."""
    hooked.wait_idle()
    rng, port = random.Random(7), httpx.URL(hooked.url).port or 80
    process = psutil.Process(hooked.process.pid)
    tasks, files, said = hooked.get("/tasks").json()["tasks"], process.num_fds(), len(hooked.log)

    async def everyone() -> None:
        gate = asyncio.Semaphore(80)

        async def one(number: int) -> None:
            async with gate:
                await leave(port, PHASES[number % len(PHASES)], random.Random(rng.random()))

        await asyncio.gather(*(one(number) for number in range(500)))

    asyncio.run(everyone())
    hooked.wait_idle()
    assert hooked.metrics()["bireme:kv_blocks_live"] == 0
    assert wait_for(lambda: hooked.get("/tasks").json()["tasks"] == tasks)
    assert wait_for(lambda: process.num_fds() <= files)
    assert hooked.post("/v1/chat/completions", chat("0", max_tokens=3)).status_code == 200
    assert "Traceback" not in hooked.log[said:], hooked.log[said:]
