"""Stream chunks as bytes: what stays the same is encoded once, what comes together is sent together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from .errors import ApiError
from .generation import GenerationGroup, Piece
from .narration import narrate
from .openai_types import StreamOptions, wants_usage
from .sse import DONE, event


class ChunkWriter:
    """Writes the chunks of one stream; ``head`` are the fields before ``choices``, ``usage`` gives those of usage."""

    def __init__(
        self, head: Mapping[str, Any], usage: Callable[[], Mapping[str, Any]], options: StreamOptions | None
    ) -> None:
        self.with_usage, self._always_usage = wants_usage(options)
        self._usage = usage
        self._head = b"data: " + orjson.dumps(dict(head))[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self.with_usage else b"]}\n\n"

    def choice(self, choice: bytes) -> bytes:
        """A chunk with one choice, given as JSON."""
        return self._head + choice + (self._usage_tail() if self._always_usage else self._tail)

    def usage(self) -> bytes:
        """The last chunk, where asked for: no choices, only usage."""
        return self._head + self._usage_tail()

    def _usage_tail(self) -> bytes:
        return b'],"usage":' + orjson.dumps(self._usage()) + b"}\n\n"


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks as a ``Narrator`` tells them."""

    writer: ChunkWriter
    first: Iterable[bytes]
    choices: Callable[[Piece], list[bytes]]

    def opening(self) -> bytes:
        return b"".join(map(self.writer.choice, self.first))

    def take(self, piece: Piece) -> bytes:
        return b"".join([self.writer.choice(choice) for choice in self.choices(piece)])

    def closing(self) -> bytes:
        return self.writer.usage() + DONE if self.writer.with_usage else DONE

    def failed(self, error: ApiError) -> bytes:
        """An error event, and no DONE."""
        return event(error.json())


def stream_chunks(
    group: GenerationGroup,
    writer: ChunkWriter,
    opening: Iterable[bytes],
    choices: Callable[[Piece], list[bytes]],
    request_id: str,
) -> AsyncIterator[bytes]:
    """A stream's events: ``opening``'s choices, ``choices`` of each piece, usage where asked, DONE."""
    return narrate(group, _Chunks(writer, opening, choices), request_id)
