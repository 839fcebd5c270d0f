"""The load generator against small servers whose right numbers are known."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable

import pytest
from api_bodies import PATIENCE
from fake_sse import DONE, HEAD, event, failure, serving, text, usage

from bireme.bench.ask import Prompt, Session, Target
from bireme.bench.level import Level, Load
from bireme.bench.load import closed_samples, open_samples
from bireme.bench.percentile import percentile
from bireme.bench.summary import summarise

Answer = Callable[[asyncio.StreamWriter, int], Awaitable[None]]


def run(answer: Answer, count: int, concurrency: int | None = None, due: list[float] | None = None) -> Level:
    """Load a server that answers request number n (from 0) with ``answer``; closed loop unless ``due`` is given."""

    async def load(url: str) -> Level:
        target = Target(url=url, model="m", timeout=PATIENCE)
        sessions = [Session((Prompt(({"role": "user", "content": "x"},), 100),))] * count
        if due is not None:
            return summarise(await open_samples(target, sessions, due), Load("open", None, None))
        users = concurrency or count
        return summarise(await closed_samples(target, sessions, users), Load("closed", users, None))

    with serving(lambda writer, number, body: answer(writer, number)) as url:
        return asyncio.run(load(url))


def median(level: Level, figure: str) -> float | None:
    return level.spreads[figure].percentiles[50]


def test_a_chunk_may_hold_several_tokens() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(HEAD)
        for _ in range(25):
            writer.write(text("four tokens in one"))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(text("", "length") + usage(100, cached=3) + DONE)

    found = run(answer, 1)
    assert (found.output_tokens, found.tokens_from) == (100, "usage")
    ttft, tpot, whole = (median(found, name) for name in ("ttft", "tpot", "e2el"))
    assert ttft is not None and tpot is not None and whole is not None
    assert 24 * 10 / 99 * 0.9 < tpot < (whole - ttft) / 50  # a chunk would take a 24th of it
    assert (found.input_tokens, found.cached_tokens) == (5, 3)


def test_without_usage_chunks_are_counted_and_named() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(HEAD + text("a") + text("b", "stop") + DONE)

    found = run(answer, 1)
    assert (found.output_tokens, found.tokens_from) == (2, "chunks")


def test_first_token_is_the_first_text() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        writer.write(HEAD + role + b": ping\n\n")
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.write(text("now") + text("", "stop") + usage(1) + DONE)

    found = run(answer, 1)
    ttft = median(found, "ttft")
    assert ttft is not None and ttft > 290


def test_failures_never_improve_the_numbers() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if (failed := failure(number)) is not None:
            writer.write(failed)
        elif number % 10 == 7:
            writer.write(HEAD + text("cut"))
        else:
            await asyncio.sleep(0.1)
            writer.write(HEAD + text("good", "stop") + usage(7) + DONE)

    found = run(answer, 40, concurrency=1)
    assert found.failures == {"HTTP 503": 20, "no token": 4, "error event": 4, "cut off": 4}
    assert (found.completed, found.failed, found.output_tokens) == (8, 32, 56)
    ttft = median(found, "ttft")
    assert ttft is not None and ttft > 90
    assert found.output_throughput == pytest.approx(56 / found.duration)
    assert "32 of 40 requests FAILED: 20 x HTTP 503" in found.failed_line()


def test_all_failed_gives_no_latency() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(HEAD + b"data: {not json\n\n")

    found = run(answer, 2)
    assert found.failures == {"malformed answer": 2}
    assert set(found.spreads["ttft"].percentiles.values()) == {None}
    assert found.output_throughput == 0


def test_open_loop_counts_from_the_intended_start() -> None:
    """A server that stands still from 0.5 s to 1.5 s: half of the 2 s of arrivals wait in it."""
    began: list[float] = []

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        now = asyncio.get_running_loop().time()
        began.append(now)
        into = now - began[0]
        if 0.5 <= into < 1.5:
            await asyncio.sleep(1.5 - into)
        writer.write(HEAD + text("x", "stop") + usage(1) + DONE)

    due = [i * 0.02 for i in range(100)]
    found = run(answer, 100, due=due)
    assert found.completed == 100
    latency = found.spreads["e2el"].percentiles
    assert latency[99] is not None and latency[99] > 900  # a generator that waits for answers would see 0
    assert latency[95] is not None and latency[95] > 800


def test_an_open_loop_asks_whether_or_not_it_was_answered() -> None:
    """E06: this server answers nobody before all have asked."""
    everyone = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 7:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), PATIENCE)
        writer.write(HEAD + text("x", "stop") + usage(1) + DONE)

    assert run(answer, 8, due=[i * 0.01 for i in range(8)]).completed == 8


def test_percentiles_are_nearest_rank() -> None:
    for n in (1, 2, 3, 10, 20, 100, 101):
        values = list(range(1, n + 1))
        random.Random(n).shuffle(values)
        for p in (50, 90, 95, 99, 100):
            found = percentile(values, p)
            assert found is not None
            assert sum(value <= found for value in values) * 100 >= p * n
            assert sum(value < found for value in values) * 100 < p * n
    assert percentile(range(1, 101), 99) == 99
    assert percentile([1, 2, 3], 99) == 3
    assert percentile([], 50) is None
    with pytest.raises(ValueError, match="percentile 0"):
        percentile([1], 0)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_has_the_lines_of_event_streams(end: bytes) -> None:
    """A text may hold what else Unicode breaks lines at, and servers send it as it is."""
    chunk = {"choices": [{"index": 0, "text": "a\u2028b\x85c", "finish_reason": "stop"}]}

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        line = b"data: " + json.dumps(chunk, ensure_ascii=False).encode()
        writer.write(HEAD + b": hello" + end)
        for part in (line[:30], line[30:] + end, end, b"data: [DONE]", end, end):
            writer.write(part)
            await writer.drain()

    found = run(answer, 1)
    assert (found.completed, found.failures) == (1, {})


def test_a_count_beyond_all_bounds_is_a_malformed_answer() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(HEAD + text("x", "stop") + event(choices=[], usage={"completion_tokens": float("inf")}) + DONE)

    assert run(answer, 1).failures == {"malformed answer": 1}
