"""``--device mlx`` through the whole server: start, two users at once, streamed and whole, and a clean end."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_bodies import chat, events, joined
from backend_kinds import NO_MLX

pytestmark = [pytest.mark.mlx, NO_MLX]


def test_a_server_on_mlx_answers_as_one_on_the_cpu(server: Any, start_server: Any) -> None:
    mlx = start_server("--device", "mlx", "--kv-cache-memory", "32MiB")
    mlx.wait_serving()
    assert "device       mlx" in mlx.log
    asked = [chat(digit, max_tokens=12, user=f"user {digit}") for digit in "0123"]
    wanted = [server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"] for body in asked]
    assert all(wanted)
    with ThreadPoolExecutor(4) as pool:
        streams = pool.map(lambda body: mlx.post("/v1/chat/completions", {**body, "stream": True}), asked)
        assert [joined(events(stream)) for stream in streams] == wanted
    whole = [mlx.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"] for body in asked]
    assert whole == wanted
    assert mlx.stop(signal.SIGINT) == 0
