"""How much load this generator can make by itself: the same client against a server that answers at once, in memory."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import httpx

from .load import Prompt, Target, ask

_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one process on one core of this machine, requests of 64 chunks each."""

    requests_per_second: float
    chunks_per_second: float


def measure_capacity(seconds: float = 0.5) -> Capacity:
    """Ask for about ``seconds``; what is counted is processor time, so that other work on the machine hides nothing."""
    return asyncio.run(_measure(seconds))


async def _measure(seconds: float) -> Capacity:
    chunk = {"choices": [{"index": 0, "text": " word", "finish_reason": None}]}
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": _CHUNKS}}
    events = [json.dumps(item) for item in [*[chunk] * _CHUNKS, end, usage]]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    target, prompt = Target("http://memory/v1", "m"), Prompt("x", _CHUNKS)
    done = 0
    async with httpx.AsyncClient(transport=transport) as client:
        start = time.process_time()
        while (used := time.process_time() - start) < seconds:
            sample = await ask(client, target, prompt, time.perf_counter())
            assert sample.failure is None, sample.failure
            done += 1
    return Capacity(done / used, done * _CHUNKS / used)
