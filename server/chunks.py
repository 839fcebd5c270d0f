"""Stream chunks as bytes: what stays the same is encoded once, what comes together is sent together."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import orjson

from .errors import ApiError
from .generation import GenerationGroup, Piece
from .openai_types import StreamOptions, wants_usage
from .sse import DONE, event
from .usage import usage_of

logger = logging.getLogger("bireme.server")


class ChunkWriter:
    """Writes the chunks of one stream; ``head`` are the fields before ``choices``."""

    def __init__(self, head: Mapping[str, Any], group: GenerationGroup, options: StreamOptions | None) -> None:
        self.with_usage, self._always_usage = wants_usage(options)
        self._group = group
        self._head = b"data: " + orjson.dumps(dict(head))[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self.with_usage else b"]}\n\n"

    def choice(self, choice: bytes) -> bytes:
        """A chunk with one choice, given as JSON."""
        return self._head + choice + (self._usage_tail() if self._always_usage else self._tail)

    def usage(self) -> bytes:
        """The last chunk, where asked for: no choices, only usage."""
        return self._head + self._usage_tail()

    def _usage_tail(self) -> bytes:
        return b'],"usage":' + orjson.dumps(usage_of(self._group)) + b"}\n\n"


async def stream_chunks(
    group: GenerationGroup,
    writer: ChunkWriter,
    opening: Iterable[bytes],
    choices: Callable[[Piece], list[bytes]],
    request_id: str,
) -> AsyncIterator[bytes]:
    """A stream's events: ``opening``'s choices, ``choices`` of each piece, usage where asked, DONE.

    A failure ends it with an error event and without DONE, so that no client takes half a text for a whole one.
    """
    try:
        if first := b"".join(map(writer.choice, opening)):
            yield first
        async with contextlib.aclosing(group.pieces()) as batches:
            async for pieces in batches:
                told = b"".join([writer.choice(choice) for piece in pieces for choice in choices(piece)])
                if told:  # text may be held back, and then the stream is silent
                    yield told
        yield writer.usage() + DONE if writer.with_usage else DONE
    except ApiError as error:
        logger.warning("request %s failed in its stream: %s", request_id, error.message)
        yield event(error.json())
    except Exception:
        logger.exception("request %s failed in its stream", request_id)
        yield event(ApiError(500, f"Internal error; see the server's log for request {request_id}.").json())
