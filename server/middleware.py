"""Pure ASGI middleware: request ids, keys, body limit, last-resort errors. None of it hides a disconnect."""

from __future__ import annotations

import hmac
import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

logger = logging.getLogger("bireme.server")

#: Paths that need no key: probes and scrapers hold none, and they tell nothing of any request.
OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})
_GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


async def send_error(error: ApiError, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    body = error.json()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class RequestIdMiddleware:
    """Takes a well-formed X-Request-Id or makes one; answers carry it, log lines name it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _GOOD_ID.fullmatch(given) else secrets.token_hex(12)
        scope["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if started:
                raise
            await send_error(
                ApiError(500, f"Internal error; see the server's log for request {request_id}."), send_with_id
            )


class ApiKeyMiddleware:
    """Asks for ``Authorization: Bearer KEY`` (or ``x-api-key``); preflights and open paths pass."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and not self._passes(scope):
            await send_error(ApiError(401, "Missing or wrong API key.", code="invalid_api_key"), send)
            return
        await self._app(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        if scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS:
            return True
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = (token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
        # Every key is compared, each in constant time: the answer's time tells nothing of the keys.
        return sum(hmac.compare_digest(given, key) for key in self._keys) > 0


class BodyLimitMiddleware:
    """Refuses bodies over ``limit`` bytes: by their declared length before reading, by count while reading."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        error = ApiError(413, f"The body is larger than {self._limit} bytes, the most this server takes.")
        if declared.isdigit() and int(declared) > self._limit:
            await send_error(error, send)
            return
        await self._app(scope, self._counted(receive, error), send)

    def _counted(self, receive: Receive, error: ApiError) -> Receive:
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self._limit:
                raise error
            return message

        return counted
