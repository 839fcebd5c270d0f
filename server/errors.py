"""Errors in the shape OpenAI clients read: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
from typing import Any

import orjson

from .messages import Rejected

INVALID = "invalid_request_error"
_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer other than success: HTTP status and OpenAI error fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, INVALID)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers

    def json(self) -> bytes:
        return orjson.dumps(self.body)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


class ContextExceededError(ApiError):
    """The prompt alone fills the context. Clients look for the words and the code to compact and try again."""

    def __init__(self, limit: int, prompt: int, param: str) -> None:
        super().__init__(
            400,
            f"This model's maximum context length is {limit} tokens, but the prompt has {prompt} tokens and at least "
            f"one is needed for the answer. Shorten the {param}.",
            param=param,
            code="context_length_exceeded",
        )
        self.limit = limit  # tokens
        self.prompt = prompt  # tokens


def from_rejection(rejected: Rejected, param: str) -> ApiError:
    """The engine's refusal as an HTTP answer."""
    if rejected.retry_after is not None:
        return ApiError(429, rejected.message, code=rejected.code, retry_after=rejected.retry_after)
    return bad_request(rejected.message, param, rejected.code)
