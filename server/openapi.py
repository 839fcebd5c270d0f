"""The OpenAPI document: FastAPI's own, with the bodies that endpoints decode themselves and the errors they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .anthropic.errors import PREFIX as ANTHROPIC
from .anthropic.types import MessagesRequest
from .openai_types import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from .responses.types import ResponsesRequest
from .schema import components

BODIES = (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
#: What any operation may answer beside its own.
ERRORS = {
    "400": "The request is not valid; the message names the field, the limit and what to do.",
    "401": "The server has keys, and none of them was sent.",
    "404": "The model, or what the path names, is not here.",
    "429": "A limit is reached or the queue is full; Retry-After says when to try again.",
    "500": "The request was lost by a fault of the server's.",
    "503": "The model is loading, the engine is restarting, or the server is shutting down.",
}
#: And those that take a body.
BODY_ERRORS = {"413": "The body is larger than the server takes.", "499": "The client went away."}

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_OPENAI_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL},
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "properties": {"type": _TEXT, "message": _TEXT}, "required": ["type", "message"]},
        "request_id": _TEXT_OR_NULL,
    },
    "required": ["type", "error"],
}


def described(original: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """FastAPI's ``openapi`` method, completed."""

    def openapi() -> dict[str, Any]:
        document = original()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(components(*BODIES), Error=_OPENAI_ERROR, AnthropicError=_ANTHROPIC_ERROR)
        for path, operations in document["paths"].items():
            for operation in operations.values():
                _add_errors(operation, "AnthropicError" if path.startswith(ANTHROPIC) else "Error")
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        return document

    return openapi


def _add_errors(operation: dict[str, Any], schema: str) -> None:
    """FastAPI names 422 for what it finds invalid; this server answers 400."""
    responses = operation["responses"]
    responses.pop("422", None)
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    for status, why in (ERRORS | (BODY_ERRORS if "requestBody" in operation else {})).items():
        responses.setdefault(status, {"description": why, "content": content})
