"""Pure ASGI middleware: request ids, keys, body limit, last-resort errors. None of it hides a disconnect."""

from __future__ import annotations

import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .anthropic.errors import asks_for
from .errors import ApiError
from .users.caller import Caller, address_of
from .users.directory import Directory
from .users.limit_headers import anthropic_headers, openai_headers

logger = logging.getLogger("bireme.server")

#: Paths that need no key: probes and scrapers hold none, and they tell nothing of any request.
OPEN_PATHS = frozenset({"/health", "/live", "/ready", "/metrics", "/version"})
#: The page and its files hold nothing of anybody; the page asks for a key when it needs one.
PAGE = re.compile(r"/|/dashboard|/web/.*")
#: Paths that take a POST and no time of the model's.
UNCOUNTED_PATHS = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens"})
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


class UserMiddleware:
    """Who is it, and may they? Asks for ``Authorization: Bearer KEY`` (or ``x-api-key``) where keys are asked for at
    all; preflights and open paths pass. Holds users to their limits, and counts what they send."""

    def __init__(self, app: ASGIApp, directory: Directory) -> None:
        self._app = app
        self._directory = directory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        caller = self._directory.find(_key(Headers(scope=scope)), address_of(scope))
        if caller is None:
            await send_error(ApiError(401, "Missing or wrong API key.", code="invalid_api_key"), send)
            return
        scope["caller"] = caller
        if scope["method"] == "POST" and scope["path"] not in UNCOUNTED_PATHS:
            await self._counted(caller, scope, receive, send)
        else:
            await self._app(scope, receive, _with_limits(caller, scope, send))

    async def _counted(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """A request for the model."""
        send = _with_limits(caller, scope, _counting(caller, send))
        try:
            if caller.allowance is not None:
                caller.allowance.enter()
        except ApiError as error:
            await send_error(error, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if caller.allowance is not None:
                caller.allowance.leave()


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or PAGE.fullmatch(path) is not None


def _key(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _with_limits(caller: Caller, scope: Scope, send: Send) -> Send:
    """Answers of a limited user say what is left, in the headers of the API that was asked."""
    allowance = caller.allowance
    if allowance is None or not allowance.user.limited:
        return send
    headers = anthropic_headers if asks_for(scope) else openai_headers

    async def send_with_limits(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers(allowance.left()))
        await send(message)

    return send_with_limits


def _counting(caller: Caller, send: Send) -> Send:
    async def send_counting(message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] == 429:
                caller.usage.rejected += 1
            elif message["status"] < 400:
                caller.usage.requests += 1
        await send(message)

    return send_counting


class BodyLimitMiddleware:
    """Refuses bodies over ``limit`` bytes: by their declared length before reading, by count while reading."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        coding = headers.get("content-encoding", "identity")
        if coding.strip().lower() not in ("", "identity"):
            text = f"content-encoding is {coding[:40]!r}; bodies are taken as they are, so send it uncompressed."
            await send_error(ApiError(415, text, code="unsupported_content_encoding"), send)
            return
        declared = headers.get("content-length", "0")
        error = ApiError(
            413, f"The body is larger than {self._limit} bytes, the most this server takes (--max-body-size)."
        )
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
