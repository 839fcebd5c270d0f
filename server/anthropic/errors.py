"""Errors in the shape Anthropic's clients read: ``{"type": "error", "error": {"type", "message"}}``."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Paths that only this API has.
PREFIX = "/v1/messages"
#: Sent by every client of this API: it tells apart who asks for a path that both APIs have.
VERSION_HEADER = "anthropic-version"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(status: int, message: str, request_id: str | None = None) -> dict[str, Any]:
    """An error as this API tells it."""
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def asks_for(scope: Scope) -> bool:
    """Whether a request is made in this API's terms."""
    return bool(scope["path"].startswith(PREFIX)) or VERSION_HEADER in Headers(scope=scope)


class AnthropicErrors:
    """Goes around everything, since any part of the server may refuse: to clients of this API an error is told in its
    shape, and each answer carries ``request-id``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and asks_for(scope):
            send = _Translating(send).send
        await self._app(scope, receive, send)


class _Translating:
    """One answer's messages; those of an error are held until the whole body is there."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if request_id := headers.get("x-request-id"):
                headers["request-id"] = request_id
            if message["status"] >= 400:
                self._start = message
                return
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body"):
            await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        headers = MutableHeaders(scope=start)
        body = _translated(start["status"], self._body, headers.get("x-request-id"))
        headers["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _translated(status: int, body: bytes, request_id: str | None) -> bytes:
    """The same error in this API's shape; a body that is no error stays as it is."""
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body
    return orjson.dumps(error_body(status, message, request_id))
