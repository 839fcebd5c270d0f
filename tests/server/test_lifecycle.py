"""Start, failure and end of a server: ports, loading, crashes, signals (kinds B and F)."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import scripted
from api_bodies import PATIENCE, chat, events, wait_for

#: In a stream's line that brings text.
TOKEN = '"delta":{"content":'
ENDLESS = chat("6", stream=True, ignore_eos=True)
BIREME = (sys.executable, "-m", "bireme.server.cli")


def port_of(url: str) -> int:
    return httpx.URL(url).port or 80


def test_taken_port_is_found_before_loading(server: Any) -> None:
    """F02: one line that names the port, before anything is read."""
    port = str(port_of(server.url))
    command = [*BIREME, "serve", "/no/such/model", "--port", port]
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1 and f"port {port}" in second.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["/no/such/model"], 2, "/no/such/model"),
        (["BROKEN"], 2, "broken.gguf"),
        (["MODEL", "--kv-cache-memory", "1"], 2, "kv_cache_memory"),
        (["MODEL", "--device", "cuda"], 1, "cuda"),
        (["MODEL", "--kv-cache-memory", "lots"], 2, "lots"),
        (["MODEL", "--max-num-seqs", "0"], 2, "max_num_seqs"),
        (["MODEL", "--host", "256.0.0.1"], 1, "256.0.0.1"),
    ],
)
def test_what_cannot_work_ends_with_one_line(options: list[str], code: int, words: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nonsense")
    paths = {"MODEL": str(scripted.SCRIPTED), "BROKEN": str(broken)}
    command = [*BIREME, "serve", "--port", "0", *(paths.get(one, one) for one in options)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("Listening")]
    assert ended.returncode == code and len(lines) == 1 and words in lines[0] and lines[0].startswith("bireme: ")


def test_not_ready_before_it_is(start_server: Any) -> None:
    """F03: while the model loads, everything answers, and says so."""
    server = start_server(hook={"load_s": 2})
    server.wait_listening()
    health = server.get("/health")
    assert health.status_code == 503 and health.json()["status"] == "loading"
    for response in (server.post("/v1/chat/completions", chat("0")), server.get("/v1/models")):
        assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "loading"
    assert server.get("/version").status_code == 200 and server.get("/metrics").status_code == 200
    server.wait_ready()
    assert server.get("/health").json() == {"status": "ok"}
    assert server.post("/v1/chat/completions", chat("0", max_tokens=3)).status_code == 200
    summary = server.log
    for words in ("quantisation", "device", "weights", "KV cache", "conversations at 2,048 tokens", "max_num_seqs=64"):
        assert words in summary
    assert server.stop() == 0


def test_stop_while_loading(start_server: Any) -> None:
    server = start_server(hook={"load_s": 600})
    server.wait_listening()
    engine = wait_for(lambda: psutil.Process(server.process.pid).children())
    assert server.stop(signal.SIGINT) == 0
    assert wait_for(lambda: not engine[0].is_running())


def test_engine_killed_in_a_stream(hooked: Any) -> None:
    """B13: an error event, no finish, no DONE; health red, then a new engine that answers."""
    engine = hooked.engine()
    with hooked.client() as client, client.stream("POST", "/v1/chat/completions", json=ENDLESS) as one:
        lines = one.iter_lines()
        for line in lines:
            if TOKEN in line:
                break
        engine.kill()
        rest = [line for line in lines if line]
    assert '"code":"engine_died"' in rest[-1] and rest[-1].startswith("data: {")
    assert not any("[DONE]" in line or '"finish_reason":"' in line for line in rest)
    assert wait_for(lambda: hooked.get("/health").status_code == 200)
    assert hooked.post("/v1/chat/completions", chat("0", max_tokens=3)).status_code == 200
    assert hooked.engine().pid != engine.pid
    assert "signal 9" in hooked.log and "engine restart 1 of" in hooked.log


def test_engine_killed_under_many_streams(hooked: Any) -> None:
    """B13: each of 32 streams, of all APIs, ends with an error; then a new engine serves."""
    streams = {
        "/v1/chat/completions": (chat("L"), '"code":"engine_died"'),
        "/v1/completions": ({"prompt": "xL", "max_tokens": 2000}, '"code":"engine_died"'),
        "/v1/responses": ({"input": "go L"}, '"type":"response.failed"'),
        "/v1/messages": ({**chat("L"), "max_tokens": 2000}, '"type":"error"'),
    }
    hooked.wait_idle()
    began, ends = threading.Barrier(33, timeout=PATIENCE), []

    def listen(path: str) -> None:
        body, mark = streams[path]
        with client.stream("POST", path, json={**body, "stream": True}) as one:
            lines = one.iter_lines()
            assert any('"l"' in line for line in lines)
            began.wait()
            last = [line for line in lines if line.startswith("data: ")][-1]
            ends.append(mark in last)

    paths = [path for path in streams for _ in range(8)]
    readers = [threading.Thread(target=listen, args=(path,), daemon=True) for path in paths]
    with hooked.client() as client:
        for reader in readers:
            reader.start()
        engine = hooked.engine()
        began.wait()
        engine.kill()
        for reader in readers:
            reader.join(PATIENCE)
    assert ends == [True] * 32
    assert wait_for(lambda: hooked.get("/health").status_code == 200)
    for path, (body, _) in streams.items():
        assert hooked.post(path, {**body, "stream": False, "max_tokens": 3, "max_output_tokens": 3}).status_code == 200


def test_engine_that_fails_a_step(hooked: Any) -> None:
    """The same from within: whole answers get 500, openai's client raises, the next engine serves."""
    hooked.wait_idle()
    answer = hooked.post("/v1/chat/completions", chat("K", ignore_eos=True))
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "internal_error"
    assert wait_for(lambda: hooked.get("/health").status_code == 200)
    with openai.OpenAI(base_url=hooked.url + "/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "go K"}],
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        with pytest.raises(openai.APIError):
            list(stream)
    assert wait_for(lambda: hooked.get("/health").status_code == 200)


def test_nan_ends_its_own_request_alone(hooked: Any) -> None:
    """C20"""
    with hooked.client() as client, client.stream("POST", "/v1/chat/completions", json=ENDLESS) as good:
        lines = good.iter_lines()
        assert any(TOKEN in line for line in lines)
        bad = hooked.post("/v1/chat/completions", chat("N"))
        assert bad.status_code == 500
        streamed = events(hooked.post("/v1/chat/completions", chat("N", stream=True)))
        assert "error" in streamed[-1]
        assert any(TOKEN in line for line in lines)
    hooked.wait_idle()


def test_silence_is_broken_by_comments(hooked: Any) -> None:
    """B40: headers at once, comments through a long prefill, then the answer; openai's client does not mind."""
    raw = hooked.post("/v1/chat/completions", chat("Z", stream=True, max_tokens=4)).text
    assert raw.count(": keep-alive\n\n") >= 2
    assert raw.index(": keep-alive") < raw.index('"finish_reason":"')
    assert raw.endswith("data: [DONE]\n\n")


def test_stalled_engine_turns_health_red(start_server: Any) -> None:
    server = start_server(hook={"watchdog_s": 1.0})
    server.wait_serving()
    with (
        server.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat("W", stream=True)),
        client.stream("POST", "/v1/chat/completions", json=chat("0", stream=True, max_tokens=3)) as one,
    ):
        assert wait_for(lambda: server.get("/health").json()["status"] == "stalled")
        assert server.get("/health").status_code == 503
        assert one.status_code == 200
    assert "engine stalled" in server.log
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_drains_and_exits(start_server: Any, number: int) -> None:
    """F01: running requests get their grace, new ones are refused, idle connections hold nothing up."""
    server = start_server(hook={"grace": 3.0, "step_s": 0.02})
    server.wait_serving()
    engine = server.engine()
    with server.client() as client, socket.create_connection(("127.0.0.1", port_of(server.url))) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        with client.stream("POST", "/v1/chat/completions", json=ENDLESS) as one:
            lines = one.iter_lines()
            assert any(TOKEN in line for line in lines)
            rest: list[str] = []  # read as it comes: a client that doesn't is cut off with a full socket
            reader = threading.Thread(target=lambda: rest.extend(line for line in lines if line))
            reader.start()
            server.process.send_signal(number)
            assert wait_for(lambda: server.get("/health").json()["status"] == "draining")
            refused = server.post("/v1/chat/completions", chat("0"))
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
            reader.join(PATIENCE)
        assert '"code":"shutting_down"' in rest[-1] and not any("[DONE]" in line for line in rest)
    assert server.process.wait(PATIENCE) == 0
    assert wait_for(lambda: not engine.is_running())
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port_of(server.url)))


def test_second_signal_exits_at_once_and_short_answers_finish(start_server: Any) -> None:
    server = start_server(hook={"grace": 600.0})
    server.wait_serving()
    engine = server.engine()
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=ENDLESS) as one:
        lines = one.iter_lines()
        assert any(TOKEN in line for line in lines)
        server.process.send_signal(signal.SIGINT)
        assert wait_for(lambda: server.get("/health").json()["status"] == "draining")
        assert any(TOKEN in line for line in lines)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 130
    assert wait_for(lambda: not engine.is_running())


def test_killed_server_leaves_nothing_behind(start_server: Any) -> None:
    """F10: with open connections, again and again on one port; the engine goes with its server."""
    port = 0
    for _ in range(3):
        server = start_server("--port", str(port), "--device", "sim")
        server.wait_listening()
        port = port_of(server.url)
        engine = wait_for(lambda process=server.process: psutil.Process(process.pid).children())[0]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert connection.recv(100)
            server.process.kill()
            server.process.wait(PATIENCE)
            assert wait_for(lambda engine=engine: not engine.is_running())


def test_engine_that_keeps_dying_stays_dead(start_server: Any) -> None:
    """Restarts are bounded. In the end the server stays, red, and everyone is told why."""
    server = start_server(hook={"max_restarts": 2, "restart_delay": 0.05})
    server.wait_serving()
    for restart in ("1 of 2", "2 of 2", None):
        answer = server.post("/v1/chat/completions", chat("K", ignore_eos=True))
        assert answer.status_code == 500
        if restart is not None:
            assert wait_for(lambda words=restart: f"engine restart {words}" in server.log)
            assert wait_for(lambda: server.get("/health").status_code == 200)
    assert wait_for(lambda: server.get("/health").json()["status"] == "failed")
    health = server.get("/health")
    assert health.status_code == 503 and "died 3 times in a row" in health.json()["error"]
    refused = server.post("/v1/chat/completions", chat("0"))
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_failed"
    assert server.get("/metrics").status_code == 200
    assert "restart the server" in server.log and server.stop() == 0
