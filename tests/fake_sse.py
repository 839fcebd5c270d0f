"""A small OpenAI-like server for load tests: each request is answered by a function, in a thread of its own loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = Callable[[asyncio.StreamWriter, int, dict[str, Any]], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"
_MODELS = json.dumps({"data": [{"id": "fake"}]}).encode()
LISTED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_MODELS), _MODELS)


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(content: str, finish: str | None = None) -> bytes:
    """A chunk that both kinds of completion are satisfied with."""
    return event(choices=[{"index": 0, "text": content, "delta": {"content": content}, "finish_reason": finish}])


def usage(tokens: int, prompt: int = 5, cached: int = 0) -> bytes:
    details = {"cached_tokens": cached}
    counts = {"completion_tokens": tokens, "prompt_tokens": prompt, "prompt_tokens_details": details}
    return event(choices=[], usage=counts)


def failure(number: int) -> bytes | None:
    """What seven of ten requests get in the place of an answer: 503 (five), no token (one), an error event (one)."""
    kinds = [b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"] * 5
    kinds += [HEAD + DONE, HEAD + text("x") + event(error={"message": "broken"}) + DONE]
    return kinds[number % 10] if number % 10 < len(kinds) else None


def with_places(count: int, seconds: float, full: bytes, answer: Answer) -> Answer:
    """Answers ``count`` requests at once, each after so many seconds, and all others with ``full``."""
    running = 0

    async def place(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        nonlocal running
        if running >= count:
            writer.write(full)
            return
        running += 1
        await asyncio.sleep(seconds)
        running -= 1
        await answer(writer, number, body)

    return place


@contextmanager
def serving(answer: Answer, listed: bytes = LISTED) -> Iterator[str]:
    """Serve until the block ends; gives the base URL. ``answer`` gets the writer, the request's number and its body;
    ``listed`` answers every GET."""
    loop = asyncio.new_event_loop()
    seen = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(listed)
            else:
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                number, seen = seen, seen + 1
                await answer(writer, number, body)
            await writer.drain()
        finally:
            writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(handle, "127.0.0.1", 0)

    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
