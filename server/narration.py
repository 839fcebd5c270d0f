"""One answer told as server-sent events, in an API's own order: the one loop that all streams go through."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from .errors import ApiError
from .generation import GenerationGroup, Piece
from .json_text import json_text

logger = logging.getLogger("bireme.server")


class Narrator(Protocol):
    """Writes one API's events. Each method returns the bytes of those that are due."""

    def opening(self) -> bytes: ...

    def take(self, piece: Piece) -> bytes: ...

    def closing(self) -> bytes:
        """After the piece that brought the end."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Instead of the closing: nobody may take half an answer for a whole one."""
        ...


def named_event(name: str, data: object) -> bytes:
    """An event with its name, and ``data`` as JSON."""
    return b"event: " + name.encode() + b"\ndata: " + json_text(data) + b"\n\n"


async def narrate(group: GenerationGroup, narrator: Narrator, request_id: str) -> AsyncIterator[bytes]:
    """The events of ``group``'s answers, those that are due together in one write."""
    try:
        if first := narrator.opening():
            yield first
        async with contextlib.aclosing(group.pieces()) as batches:
            async for pieces in batches:
                if told := b"".join([narrator.take(piece) for piece in pieces]):
                    yield told  # text may be held back, and then the stream is silent
        yield narrator.closing()
    except ApiError as error:
        logger.warning("request %s failed in its stream: %s", request_id, error.message)
        yield narrator.failed(error)
    except Exception:
        logger.exception("request %s failed in its stream", request_id)
        yield narrator.failed(ApiError(500, f"Internal error; see the server's log for request {request_id}."))
