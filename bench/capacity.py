"""How much load this generator can make by itself: the same client, a server in a thread that computes nothing."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from .ask import Prompt, Target, ask
from .load import allow_files

_CHUNKS = 64
_USERS = 32
_GAP = 0.002  # seconds between a stream's chunks: each arrives by itself, as a model's do
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one process on one core of this machine, requests of 64 chunks each."""

    requests_per_second: float
    chunks_per_second: float


def measure_capacity(seconds: float = 0.5) -> Capacity:
    """Ask until this thread has worked for ``seconds``; only its processor time counts, so that other work on the
    machine, the server's own among it, hides nothing."""
    allow_files(2 * _USERS)  # both ends are here
    with _serving() as url:
        done, used = asyncio.run(_ask_for(url, seconds))
    return Capacity(done / used, done * _CHUNKS / used)


async def _ask_for(url: str, seconds: float) -> tuple[int, float]:
    """(requests answered, seconds of this thread)"""
    target, prompt = Target(url, "m"), Prompt("x", _CHUNKS)
    start, done = time.thread_time(), 0

    async def user(client: httpx.AsyncClient) -> None:
        nonlocal done
        while time.thread_time() - start < seconds:
            sample = await ask(client, target, prompt, time.perf_counter())
            done += sample.failure is None

    async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=_USERS)) as client:
        await asyncio.gather(*(user(client) for _ in range(_USERS)))
    return done, time.thread_time() - start


@contextmanager
def _serving() -> Iterator[str]:
    """A server on a loop of its own; gives its URL."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(_answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.sleep(0.01)  # closed connections are let go of by the loop


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        # What is left unread when a connection is closed makes the client's end fail.
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
        writer.write(_HEAD)
        for event in _EVENTS:
            writer.write(event)
            await asyncio.sleep(_GAP)
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass  # the client has what it wanted; asyncio would report a cancelled handler as an error
    finally:
        writer.close()


def _events() -> list[bytes]:
    chunk = {"choices": [{"index": 0, "text": " word", "finish_reason": None}]}
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": _CHUNKS}}
    return [f"data: {text}\n\n".encode() for text in [*map(json.dumps, [*[chunk] * _CHUNKS, end, usage]), "[DONE]"]]


_EVENTS = _events()
