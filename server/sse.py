"""Server-sent events (WHATWG HTML, section 9.2) as a pure ASGI response that notices a client going away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection; nobody reads an answer."""


def event(data: bytes) -> bytes:
    """One event of JSON ``data`` (which never holds a line break: JSON escapes them)."""
    return b"data: " + data + b"\n\n"


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; if the client goes away first, cancel it and raise ``ClientGoneError``.

    Every byte of the request must have been read before: what ``receive`` gives next is a disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for one in (task, gone):
            if not one.done():
                one.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await one


async def wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends headers at once, then events as they come, comments while nothing comes, and stops with its client.

    ``events`` is closed in every case, so its ``finally`` is the place to abort the work behind it.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], close: Callable[[], None], keep_alive: float, idle: bytes = COMMENT
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._keep_alive = keep_alive
        self._idle = idle  # what breaks a silence
        self._sent_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with contextlib.suppress(ClientGoneError):
                await until_gone(receive, self._send_events(send))
        finally:
            self._close()

    async def _send_events(self, send: Send) -> None:
        comments = asyncio.ensure_future(self._send_comments(send))
        try:
            async for chunk in self._events:
                self._sent_at = time.monotonic()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            comments.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_comments(self, send: Callable[[Any], Awaitable[None]]) -> None:
        """Break every silence of ``keep_alive`` seconds, so that no proxy hangs up during a long prefill."""
        while True:
            silent = time.monotonic() - self._sent_at
            if silent < self._keep_alive:
                await asyncio.sleep(self._keep_alive - silent)
                continue
            self._sent_at = time.monotonic()
            await send({"type": "http.response.body", "body": self._idle, "more_body": True})
