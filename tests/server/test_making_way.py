"""Places that long answers give up for a newcomer, as clients see it: streams pause, and nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import orjson
from api_bodies import wait_for

LONG = 350  # tokens, at 10 ms a step: the newcomer, seen a second late at most, has waited long enough before one ends


def streamed(url: str, user: str, number: int, tokens: int) -> tuple[str, int]:
    """(text, output tokens by usage) of a greedy stream."""
    body = {"user": user, "prompt": f"story {number}", "max_tokens": tokens, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    text, made = "", 0
    for line in httpx.post(f"{url}/v1/completions", json=body, timeout=120).content.split(b"\n"):
        if line.startswith(b"data: {"):
            chunk = orjson.loads(line[6:])
            text += "".join(choice["text"] for choice in chunk["choices"])
            made = (chunk.get("usage") or {}).get("completion_tokens", made)
    return text, made


def test_a_stream_that_makes_way_goes_on_where_it_stopped(start_server: Any) -> None:
    server = start_server(hook={"step_s": 0.01, "max_num_seqs": 2})
    server.wait_serving()
    with ThreadPoolExecutor(3) as pool:
        flood = [pool.submit(streamed, server.url, "flood", number, LONG) for number in range(2)]
        wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 2)
        late = pool.submit(streamed, server.url, "late", 2, 5)
        assert late.result()[1] == 5
        paused = [one.result() for one in flood]
        assert server.metrics()["vllm:num_preemptions_total"] == 1
        alone = [pool.submit(streamed, server.url, "alone", number, LONG) for number in range(2)]
        assert paused == [one.result() for one in alone] and {made for _, made in paused} == {LONG}
    server.wait_idle()
    assert server.metrics()["bireme:kv_blocks_live"] == 0
