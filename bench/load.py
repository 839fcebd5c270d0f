"""A load generator for OpenAI-compatible servers: closed loop (so many users at once) or open loop (so many a second).

What the numbers mean:

* TTFT runs from the moment a request was meant to start to its first non-empty text; reasoning and tool calls count,
  role chunks and comments do not. In an open loop it is the scheduled moment: a stall counts for all who waited.
* Tokens are the server's own ``usage``; without it chunks are counted and the report says so.
* Only requests that ended well give samples. Failures are counted by kind and never retried.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from .percentile import percentile


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how to ask it."""

    url: str  # with /v1
    model: str
    api_key: str = ""
    extra: dict[str, Any] = field(default_factory=dict)  # fields added to every request
    timeout: float = 600.0  # seconds for one request


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks: token ids or text for /v1/completions, or messages for /v1/chat/completions."""

    content: tuple[int, ...] | str | tuple[dict[str, Any], ...]
    max_tokens: int

    def request(self, target: Target) -> tuple[str, dict[str, Any]]:
        """(path below /v1, JSON body)"""
        body: dict[str, Any] = {
            "model": target.model,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if isinstance(self.content, tuple) and self.content and isinstance(self.content[0], dict):
            return "/chat/completions", body | {"messages": list(self.content)} | target.extra
        content = self.content if isinstance(self.content, str) else list(self.content)
        return "/completions", body | {"prompt": content} | target.extra


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of one user, one after the other. With more than one, each is a chat turn: its messages are appended to
    those before it and the answers they got."""

    turns: tuple[Prompt, ...]
    think: float = 0.0  # seconds between an answer and the next turn


@dataclass(slots=True)
class Sample:
    """One request as it went. Times are seconds on one monotonic clock."""

    due: float  # when it was meant to start
    sent: float = 0.0
    first: float | None = None  # first non-empty text
    last: float | None = None
    end: float = 0.0
    chunks: int = 0
    tokens: int | None = None  # from usage
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finished: bool = False  # a finish reason came
    failure: str | None = None  # its kind; None: it ended well
    times: list[float] = field(default_factory=list)  # of every chunk with text
    text: str = ""  # the answer, where a next turn needs it

    @property
    def output_tokens(self) -> int:
        return self.chunks if self.tokens is None else self.tokens


@dataclass(frozen=True, slots=True)
class Report:
    """One phase of load. Latencies are seconds; None where no request gave a sample."""

    requests: int
    good: int
    failures: dict[str, int]
    wall: float  # first due to last end
    output_tokens: int  # of the good
    tokens_from: str  # "usage" or "chunks"
    output_tokens_per_second: float
    requests_per_second: float
    prompt_tokens: int
    cached_tokens: int
    ttft: dict[str, float | None]  # p50, p95, p99
    tpot: dict[str, float | None]  # time per output token after the first
    latency: dict[str, float | None]
    send_lag: float  # the longest that a request left later than due

    def failed_line(self) -> str:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.failures.items()))
        return f"{self.requests - self.good} of {self.requests} requests FAILED: {kinds}" if self.failures else ""


OnSample = Callable[[Sample], None]


async def closed_loop(target: Target, prompts: Sequence[Prompt], concurrency: int) -> Report:
    """So many users, each sending its next request when its last one ended."""
    return report(await closed_samples(target, [Session((prompt,)) for prompt in prompts], concurrency))


async def open_loop(target: Target, prompts: Sequence[Prompt], due: Sequence[float]) -> Report:
    """Request i starts ``due[i]`` seconds from now, however the server is doing."""
    return report(await open_samples(target, [Session((prompt,)) for prompt in prompts], due))


async def closed_samples(
    target: Target, sessions: Sequence[Session], concurrency: int, on_sample: OnSample | None = None
) -> list[Sample]:
    """A closed loop: so many users, each taking the next session when its last one ended."""
    waiting = iter(sessions)
    samples: list[Sample] = []

    async def user(client: httpx.AsyncClient) -> None:
        for session in waiting:
            async for sample in _session(client, target, session, time.perf_counter()):
                _note(sample, samples, on_sample)

    async with _client(target, concurrency) as client:
        await asyncio.gather(*(user(client) for _ in range(concurrency)))
    return samples


async def open_samples(
    target: Target,
    sessions: Sequence[Session],
    due: Sequence[float],
    on_sample: OnSample | None = None,
    max_concurrency: int | None = None,
) -> list[Sample]:
    """An open loop: session i starts ``due[i]`` seconds from now, a schedule fixed before anything is sent.

    With ``max_concurrency`` no more are sent at once; the wait for a place counts as latency, and as send lag.
    """
    samples: list[Sample] = []
    places = asyncio.Semaphore(max_concurrency or max(1, len(sessions)))
    async with _client(target, max(1, len(sessions))) as client:
        start = time.perf_counter() + 0.05  # the tasks' own start is over by then

        async def one(session: Session, at: float) -> None:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            async with places:
                async for sample in _session(client, target, session, start + at):
                    _note(sample, samples, on_sample)

        await asyncio.gather(*(one(session, at) for session, at in zip(sessions, due, strict=True)))
    return samples


def _note(sample: Sample, samples: list[Sample], on_sample: OnSample | None) -> None:
    samples.append(sample)
    if on_sample is not None:
        on_sample(sample)


async def _session(client: httpx.AsyncClient, target: Target, session: Session, due: float) -> AsyncIterator[Sample]:
    """Ask turn after turn; a failed one ends the session."""
    keep = len(session.turns) > 1
    history: tuple[Any, ...] = ()
    for number, turn in enumerate(session.turns):
        if number:
            await asyncio.sleep(session.think)
            due = time.perf_counter()
        prompt = Prompt((*history, *turn.content), turn.max_tokens) if keep else turn
        sample = await ask(client, target, prompt, due)
        yield sample
        if sample.failure is not None:
            return
        if keep:
            assert isinstance(prompt.content, tuple)
            history = (*prompt.content, {"role": "assistant", "content": sample.text})


def _client(target: Target, connections: int) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    # An environment's proxy is not for a server under test, least of all one on this machine.
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=target.timeout, trust_env=False)


async def ask(client: httpx.AsyncClient, target: Target, prompt: Prompt, due: float) -> Sample:
    """Send one request and read its stream to the end. Failures are recorded in the sample, never raised."""
    sample = Sample(due=due, sent=time.perf_counter())
    path, body = prompt.request(target)
    try:
        async with asyncio.timeout(target.timeout):
            async with client.stream("POST", target.url.rstrip("/") + path, json=body) as response:
                if response.status_code == 200:
                    await _read(response, sample)
                else:
                    await response.aread()
                    sample.failure = f"HTTP {response.status_code}"
    except TimeoutError:
        sample.failure = "timeout"
    except httpx.TimeoutException:
        sample.failure = "timeout"
    except httpx.HTTPError as error:
        sample.failure = f"connection ({type(error).__name__})"
    except (ValueError, TypeError, AttributeError):
        sample.failure = "malformed answer"
    sample.end = time.perf_counter()
    return sample


async def _read(response: httpx.Response, sample: Sample) -> None:
    async for event in _events(response):
        if event.get("error"):
            sample.failure = "error event"
            return
        _usage(event.get("usage"), sample)
        for choice in event.get("choices") or ():
            if _has_text(choice):
                sample.last = time.perf_counter()
                sample.first = sample.first or sample.last
                sample.chunks += 1
                sample.times.append(sample.last)
                sample.text += _answer(choice)
            sample.finished = sample.finished or choice.get("finish_reason") is not None
    if sample.first is None:
        sample.failure = "no token"
    elif not sample.finished:
        sample.failure = "cut off"


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent ``data:`` line, up to ``[DONE]``; comments and other fields are passed over."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        yield json.loads(data)


def _usage(usage: dict[str, Any] | None, sample: Sample) -> None:
    if not usage:
        return
    if usage.get("completion_tokens") is not None:
        sample.tokens = int(usage["completion_tokens"])
    if usage.get("prompt_tokens") is not None:
        sample.prompt_tokens = int(usage["prompt_tokens"])
    sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _answer(choice: dict[str, Any]) -> str:
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(
        choice.get("text")
        or delta.get("content")
        or delta.get("reasoning_content")
        or delta.get("reasoning")
        or delta.get("tool_calls")
    )


def report(samples: Sequence[Sample]) -> Report:
    """Sum a phase up; latencies and throughput are of the requests that ended well."""
    good = [sample for sample in samples if sample.failure is None]
    wall = max((s.end for s in samples), default=0.0) - min((s.due for s in samples), default=0.0)
    tokens = sum(sample.output_tokens for sample in good)
    return Report(
        requests=len(samples),
        good=len(good),
        failures=dict(Counter(sample.failure for sample in samples if sample.failure is not None)),
        wall=wall,
        output_tokens=tokens,
        tokens_from="usage" if all(sample.tokens is not None for sample in good) else "chunks",
        output_tokens_per_second=tokens / wall if wall > 0 else 0.0,
        requests_per_second=len(good) / wall if wall > 0 else 0.0,
        prompt_tokens=sum(sample.prompt_tokens or 0 for sample in good),
        cached_tokens=sum(sample.cached_tokens or 0 for sample in good),
        ttft=_spread([s.first - s.due for s in good if s.first is not None]),
        tpot=_spread([_tpot(s) for s in good if s.output_tokens > 1]),
        latency=_spread([s.end - s.due for s in good]),
        send_lag=max((s.sent - s.due for s in samples), default=0.0),
    )


def _tpot(sample: Sample) -> float:
    assert sample.first is not None and sample.last is not None
    return (sample.last - sample.first) / (sample.output_tokens - 1)


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {f"p{p}": percentile(values, p) for p in (50, 95, 99)}
