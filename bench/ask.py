"""One request to an OpenAI-compatible server, streamed: what it asks, and what came of it and when.

What the numbers mean:

* TTFT runs from the moment a request was meant to start to its first non-empty text; reasoning and tool calls count,
  role chunks and comments do not. In an open loop it is the scheduled moment: a stall counts for all who waited.
* Tokens are the server's own ``usage``; without it those of the text by a tokenizer, where one is given, or else chunks
  are counted, and the report says which.
* Only requests that ended well give samples. Failures are counted by kind and never retried.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

_REASON = 200  # characters kept of what a server says went wrong


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
    user: str = ""  # whose requests they are, where that matters


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
    reason: str = ""  # of a failure, in the server's words or the library's
    times: list[float] = field(default_factory=list)  # of every chunk with text
    text: str = ""  # the answer, where a next turn needs it or its tokens must be counted
    spoken: int = 0  # chunks whose text is in ``text``: all but those of reasoning and of tool calls
    counted: bool = False  # ``tokens`` were counted here, by a tokenizer
    user: str = ""
    unasked: int = 0  # later turns of its conversation that were not asked, since this one failed

    def count(self, tokens_of: Callable[[str], int]) -> None:
        """Count what the server sent no usage for, if all of it is known as text."""
        if self.tokens is None and self.failure is None and self.spoken == self.chunks:
            self.tokens, self.counted = tokens_of(self.text), True

    @property
    def output_tokens(self) -> int:
        return self.chunks if self.tokens is None else self.tokens


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
                    sample.failure, sample.reason = f"HTTP {response.status_code}", _words(await response.aread())
    except (TimeoutError, httpx.TimeoutException):
        sample.failure = "timeout"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        sample.failure, sample.reason = f"connection ({type(error).__name__})", _line(str(error))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        sample.failure, sample.reason = "malformed answer", _line(str(error))
    sample.end = time.perf_counter()
    return sample


async def _read(response: httpx.Response, sample: Sample) -> None:
    async for event in _events(response):
        if event.get("error"):
            sample.failure, sample.reason = "error event", _message(event)
            return
        _usage(event.get("usage"), sample)
        for choice in event.get("choices") or ():
            if _has_text(choice):
                sample.last = time.perf_counter()
                sample.first = sample.first or sample.last
                sample.chunks += 1
                sample.times.append(sample.last)
                answer = _answer(choice)
                sample.text += answer
                sample.spoken += bool(answer)
            sample.finished = sample.finished or choice.get("finish_reason") is not None
    if sample.first is None:
        sample.failure = "no token"
        kind = response.headers.get("content-type", "")
        sample.reason = "" if kind.startswith("text/event-stream") else f"the answer is no event stream but {kind!r}"
    elif not sample.finished:
        sample.failure = "cut off"


def _words(body: bytes) -> str:
    """What an error's body says, of whatever form it is."""
    try:
        return _message(json.loads(body))
    except ValueError:
        return _line(body.decode("utf-8", "replace"))


def _message(answer: Any) -> str:
    error = answer.get("error", answer.get("detail")) if isinstance(answer, dict) else answer
    return _line(str(error.get("message", error) if isinstance(error, dict) else error))


def _line(text: str) -> str:
    return " ".join(text.split())[:_REASON]


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent ``data:`` line, up to ``[DONE]``; comments and other fields are passed over."""
    async for line in _lines(response):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Lines as event streams have them (CRLF, LF or CR; an empty one says nothing here): what else Unicode breaks lines
    at may stand in a text."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            yield line
    yield rest


def _usage(usage: dict[str, Any] | None, sample: Sample) -> None:
    if not usage:
        return
    if usage.get("completion_tokens") is not None:
        sample.tokens = int(usage["completion_tokens"])
    if usage.get("prompt_tokens") is not None:
        sample.prompt_tokens = int(usage["prompt_tokens"])
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is not None:
        sample.cached_tokens = int(cached)


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
