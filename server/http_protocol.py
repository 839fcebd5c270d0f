"""uvicorn's HTTP protocol with what it lacks: a bound on a request's line and headers; plain bodies for HTTP/1.0."""

from __future__ import annotations

from typing import Any

from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .errors import ApiError


class HeadersTooLargeError(Exception):
    """Ends the parsing of a request."""


def _ended_by_closing(cycle: RequestResponseCycle) -> Send:
    """What sends an answer to HTTP/1.0, which knows no chunks: a body of unknown length ends with the connection."""
    send, untold = cycle.send, False

    async def plain(message: Message) -> None:
        nonlocal untold
        if message["type"] == "http.response.start":
            untold = not any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if untold:
                cycle.chunked_encoding = False
        elif untold:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)  # type: ignore[arg-type]

    return plain


class _BoundedProtocol(HttpToolsProtocol):
    """Counts bytes until a request's headers are complete; answers 431 and hangs up where they are too many."""

    limit: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = 0  # bytes of the line and headers that the parser has told
        self._held = 0  # bytes read in the midst of them, told or not: a header without an end is told to nobody
        self._reading = False  # in the midst of a request's line and headers
        self._messages = 0
        self._too_large = False

    def data_received(self, data: bytes) -> None:
        before = self._messages if self._reading else None
        super().data_received(data)
        if self._reading and before == self._messages and not self._too_large:
            self._held += len(data)
            if self._held > self.limit:
                self._too_large = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        self._head, self._held, self._reading = 0, 0, True
        self._messages += 1
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._add(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reading = False
        super().on_headers_complete()
        cycle: Any = self.cycle
        if cycle is not None and self.scope["http_version"] == "1.0":
            cycle.send = _ended_by_closing(cycle)

    def send_400_response(self, msg: str) -> None:
        if not self._too_large:
            super().send_400_response(msg)
            return
        text = f"The request's line and headers are larger than {self.limit} bytes, the most taken (--max-header-size)."
        body = ApiError(431, text, code="headers_too_large").json()
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()

    def _add(self, size: int) -> None:
        self._head += size
        if self._head > self.limit:
            self._too_large = True
            raise HeadersTooLargeError


def protocol(limit: int) -> type[HttpToolsProtocol]:
    """The protocol class for requests whose line and headers are at most ``limit`` bytes."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"limit": limit})
